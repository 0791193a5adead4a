//! Workers that are connected, and those that were a short time ago.

use super::{ApiError, Refusal, ask, paging};
use crate::{engine::Event, web::Shared};
use axum::{Json, extract::State};
use baton_broker_queue::WorkerView;
use baton_protocol::{
    api::{Gpu, Page, Worker},
    worker::GpuLoad,
};

/// Workers, by name
#[utoipa::path(get, path = "/v1/workers", operation_id = "workers",
    responses((status = 200, body = Page<Worker>, description = "The answer"), Refusal))]
pub(super) async fn list(State(shared): State<Shared>) -> Result<Json<Page<Worker>>, ApiError> {
    let present = ask(&shared, Event::Overview).await?;
    let workers = present.workers.into_iter().map(worker);
    Ok(Json(paging::whole(workers.collect())))
}

pub(super) fn worker(view: WorkerView) -> Worker {
    let (used, whole) = view.memory.unzip();
    let gpu = |gpu: GpuLoad| Gpu {
        index: gpu.index,
        name: gpu.name,
        utilisation_percent: gpu.utilisation_percent,
        memory_used_bytes: gpu.memory_used_bytes,
        memory_bytes: gpu.memory_total_bytes,
    };
    let small = |count| u32::try_from(count).unwrap_or(u32::MAX);
    Worker {
        state: view.state(),
        reason: view.reason().map(str::to_owned),
        name: view.name,
        devices: view.devices,
        machine: view.machine,
        jobs: small(view.jobs),
        slots: view.slots,
        warm_sessions: small(view.sessions),
        memory_used_bytes: used,
        memory_bytes: whole,
        gpus: view.gpus.into_iter().map(gpu).collect(),
    }
}
