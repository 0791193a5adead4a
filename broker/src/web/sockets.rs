//! The WebSocket endpoints of proxies and workers.

use super::{Access, Caller, Meter, Shared, limits::limited};
use crate::{
    pace::Pace,
    screen::Screen,
    web::{
        ApiError,
        connection::{Opened, serve_proxy, serve_worker},
    },
};
use axum::{
    Extension, Router,
    extract::{State, WebSocketUpgrade},
    response::Response,
    routing::get,
};
use baton_protocol::Bound;
use std::sync::Arc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Each connection has such a buffer while it is open, and most connections are idle.
const READ_BUFFER_BYTES: usize = 16 << 10;

pub(super) fn for_proxies() -> Router<Shared> {
    Router::new().route("/v1/proxy", get(proxy))
}

pub(super) fn for_workers() -> Router<Shared> {
    Router::new().route("/v1/worker", get(worker))
}

/// A connection ends when the meaning of its token changes.
async fn proxy(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Extension(meter): Extension<Meter>,
    upgrade: WebSocketUpgrade,
) -> Result<Response, ApiError> {
    let person = limited(&caller.identity);
    meter.begin(person.map(|person| (person, &shared.in_flight)));
    let counted = person
        .map(|person| shared.of_person.open(person))
        .transpose()?;
    Ok(sized(upgrade).on_upgrade(move |socket| {
        let tracker = shared.connections.clone();
        let end = shared.stop.child_token();
        let identity = caller.identity.clone();
        let (stop, removed) = (end.clone(), CancellationToken::new());
        let is_removed = removed.clone();
        let serve = async move {
            let _counted = counted;
            let screen = |account| Screen {
                account: Arc::new(account),
                store: shared.store,
                chunks: shared.chunks,
                quotas: shared.quotas,
                submissions: shared.submissions,
                pace: match limited(&identity) {
                    Some(person) => shared.paces.of(person, Instant::now()),
                    None => Pace::new(Instant::now()),
                },
                counted: limited(&identity).map(Arc::from),
            };
            let opened = Opened {
                socket,
                meter,
                inbox: shared.inbox,
                stop,
                removed: is_removed,
            };
            serve_proxy(opened, &identity, screen).await;
        };
        tracker.track_future(as_long_as_admitted(
            serve,
            shared.access,
            caller,
            End { removed, end },
        ))
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
        let removed = CancellationToken::new();
        let is_removed = removed.clone();
        let serve = async move {
            let opened = Opened {
                socket,
                meter,
                inbox: shared.inbox,
                stop,
                removed: is_removed,
            };
            serve_worker(opened, &identity, shared.most_slots).await;
        };
        tracker.track_future(as_long_as_admitted(
            serve,
            shared.access,
            caller,
            End { removed, end },
        ))
    })
}

/// Ends a connection.
struct End {
    /// Cancelled before `end` if the caller's person was removed.
    removed: CancellationToken,
    end: CancellationToken,
}

async fn as_long_as_admitted(
    serve: impl Future<Output = ()>,
    access: Arc<Access>,
    caller: Caller,
    End { removed, end }: End,
) {
    tokio::pin!(serve);
    tokio::select! {
        () = &mut serve => return,
        () = access.until_changed(&caller) => {
            if access.is_removed(&caller) {
                removed.cancel();
            }
            end.cancel();
        }
    }
    serve.await;
}

fn sized(upgrade: WebSocketUpgrade) -> WebSocketUpgrade {
    upgrade
        .max_message_size(Bound::MESSAGE.bytes)
        .max_frame_size(Bound::MESSAGE.bytes)
        .read_buffer_size(READ_BUFFER_BYTES)
}
