//! What the broker serves over HTTP.

mod access;
mod chunks;
mod health;
mod sockets;

use crate::{api, engine::Event, page, store::Store};
use axum::{Router, middleware};
use baton_blobs::ChunkDirectory;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use access::{Access, Caller};

/// What requests share. No request holds a lock.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) access: Arc<Access>,
    pub(crate) store: Store,
    pub(crate) chunks: Arc<ChunkDirectory>,
    pub(crate) inbox: mpsc::Sender<Event>,
    pub(crate) stop: CancellationToken,
    pub(crate) connections: TaskTracker,
}

pub(crate) fn router(shared: Shared) -> Router {
    let for_programs = Router::new()
        .merge(sockets::for_proxies())
        .merge(
            sockets::for_workers().layer(middleware::from_fn(access::workers_need_the_own_token)),
        )
        .merge(chunks::routes())
        .merge(api::routes())
        .layer(middleware::from_fn_with_state(
            Arc::clone(&shared.access),
            access::programs_need_token,
        ));
    let for_people = page::routes().layer(middleware::from_fn_with_state(
        Arc::clone(&shared.access),
        access::people_need_token,
    ));
    Router::new()
        .merge(for_programs)
        .merge(for_people)
        .merge(health::routes())
        .with_state(shared)
}
