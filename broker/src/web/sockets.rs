//! The two doors of WebSockets.

use super::{Access, Caller, Meter, Shared, limits::limited};
use crate::{
    screen::Screen,
    web::{
        api::ApiError,
        connection::{Opened, serve_proxy, serve_worker},
    },
};
use axum::{
    Extension, Router,
    extract::{State, WebSocketUpgrade},
    response::Response,
    routing::get,
};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// A manifest of a very large state is some megabytes; nothing comes near this. A little below what the peers read,
/// because what one of them sends goes on to the other in a larger message.
const MESSAGE_BYTES: usize = 60 << 20;

/// Each connection has that much for as long as it lasts, and most of them are silent.
const READ_BUFFER_BYTES: usize = 16 << 10;

pub(super) fn for_proxies() -> Router<Shared> {
    Router::new().route("/v1/proxy", get(proxy))
}

pub(super) fn for_workers() -> Router<Shared> {
    Router::new().route("/v1/worker", get(worker))
}

/// A connection ends with what its token meant at the beginning.
async fn proxy(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(meter): Extension<Meter>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, ApiError> {
    let person = limited(&caller.identity);
    meter.begin(person.map(|person| (person, &shared.in_flight)));
    let counted = shared.of_person.open(&caller.identity)?;
    Ok(sized(upgrade).on_upgrade(move |socket| {
        let tracker = shared.connections.clone();
        let end = shared.stop.child_token();
        let identity = caller.identity.clone();
        let stop = end.clone();
        let serve = async move {
            let _counted = counted;
            let screen = |account| Screen::new(account, shared.store, shared.chunks, shared.quotas);
            let opened = Opened {
                socket,
                meter,
                inbox: shared.inbox,
                stop,
            };
            serve_proxy(opened, &identity, screen).await;
        };
        tracker.track_future(as_long_as_admitted(serve, shared.access, caller, end))
    }))
}

async fn worker(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(meter): Extension<Meter>,
    upgrade: WebSocketUpgrade,
) -> Response {
    meter.begin(None);
    sized(upgrade).on_upgrade(move |socket| {
        let tracker = shared.connections.clone();
        let end = shared.stop.child_token();
        let (identity, stop) = (caller.identity.clone(), end.clone());
        let serve = async move {
            let opened = Opened {
                socket,
                meter,
                inbox: shared.inbox,
                stop,
            };
            serve_worker(opened, &identity, shared.most_slots).await;
        };
        tracker.track_future(as_long_as_admitted(serve, shared.access, caller, end))
    })
}

async fn as_long_as_admitted(
    serve: impl Future<Output = ()>,
    access: Arc<Access>,
    caller: Caller,
    end: CancellationToken,
) {
    tokio::pin!(serve);
    tokio::select! {
        () = &mut serve => return,
        () = access.until_changed(&caller) => end.cancel(),
    }
    serve.await;
}

fn sized(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade
        .max_message_size(MESSAGE_BYTES)
        .max_frame_size(MESSAGE_BYTES)
        .read_buffer_size(READ_BUFFER_BYTES)
}
