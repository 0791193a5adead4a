//! Jobs of a person whose notebook kernels have ended: `GET /v1/attachable` and
//! `DELETE /v1/attachable/{job}`.

use super::{Shared, states::OfPerson};
use crate::{
    engine::Event,
    web::{
        ApiError,
        api::{Refusal, ask},
    },
};
use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    routing::{delete, get},
};
use baton_protocol::{JobId, api::AttachableJob};
use utoipa::OpenApi;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/v1/attachable", get(list))
        .route("/v1/attachable/{job}", delete(discard))
}

#[derive(OpenApi)]
#[openapi(paths(list, discard))]
pub(crate) struct Description;

/// Your jobs in a course that continue, or have ended, without their notebook kernel
///
/// `%gpu_attach` in a notebook fetches their results.
#[utoipa::path(get, path = "/v1/attachable", operation_id = "attachable",
    params(("course" = Option<String>, Query)),
    responses((status = 200, body = [AttachableJob], description = "The answer"), Refusal))]
async fn list(
    State(shared): State<Shared>,
    OfPerson(account): OfPerson,
) -> Result<Json<Vec<AttachableJob>>, ApiError> {
    let jobs = ask(&shared, |answer| Event::Attachable(account, answer));
    jobs.await.map(Json)
}

/// Cancel such a job if it runs, and delete its results
#[utoipa::path(delete, path = "/v1/attachable/{job}", operation_id = "discard",
    params(("job" = String, Path), ("course" = Option<String>, Query)),
    responses((status = 204, description = "It is deleted"), Refusal))]
async fn discard(
    State(shared): State<Shared>,
    OfPerson(account): OfPerson,
    Path(job): Path<String>,
) -> Result<StatusCode, ApiError> {
    let Ok(id) = job.parse::<JobId>() else {
        return Err(ApiError::UnknownJob { job });
    };
    ask(&shared, |answer| Event::Discard(account, id, answer)).await??;
    Ok(StatusCode::NO_CONTENT)
}
