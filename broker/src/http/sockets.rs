//! The two doors of WebSockets.

use super::Shared;
use crate::connection::{serve_proxy, serve_worker};
use axum::{
    Router,
    extract::{State, WebSocketUpgrade},
    response::Response,
    routing::get,
};

/// A manifest of a very large state is some megabytes; nothing comes near this. A little below what the peers read,
/// because what one of them sends goes on to the other in a larger message.
const MESSAGE_BYTES: usize = 60 << 20;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/v1/proxy", get(proxy))
        .route("/v1/worker", get(worker))
}

async fn proxy(State(shared): State<Shared>, upgrade: WebSocketUpgrade) -> Response {
    limited(upgrade).on_upgrade(move |socket| {
        let serve = serve_proxy(socket, shared.inbox, shared.stop);
        shared.connections.track_future(serve)
    })
}

async fn worker(State(shared): State<Shared>, upgrade: WebSocketUpgrade) -> Response {
    limited(upgrade).on_upgrade(move |socket| {
        let serve = serve_worker(socket, shared.inbox, shared.stop);
        shared.connections.track_future(serve)
    })
}

fn limited(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade
        .max_message_size(MESSAGE_BYTES)
        .max_frame_size(MESSAGE_BYTES)
}
