//! What the broker serves over HTTP.

mod access;
mod admission;
pub(crate) mod api;
pub(crate) mod attachable;
mod attempts;
mod chunk_error;
mod chunk_listener;
mod chunks;
mod connection;
mod grants;
mod guests;
mod headers;
mod health;
mod limits;
mod meter;
mod metrics;
pub(crate) mod page;
mod problem;
mod seldom;
mod serve;
mod sign_in;
mod sockets;
pub(crate) mod states;

use crate::{
    chunk_store::ChunkStore,
    engine::{Event, Leadership},
    in_flight::InFlight,
    metrics::Metrics,
    pace::Paces,
    pools::Pools,
    quota::Quotas,
    submissions::Submissions,
};
use axum::{
    Router,
    extract::{DefaultBodyLimit, RawQuery, Request, State},
    http::{HeaderValue, StatusCode, header},
    middleware,
    response::{Redirect, Response},
    routing::get,
};
use baton_broker_queue::courses::Courses;
use baton_broker_store::Store;
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use access::{Access, Caller, is_from_here};
pub use chunk_listener::{ChunkListener, serve_chunks};
pub(crate) use chunks::hold_public;
pub(crate) use limits::{Connections, Limits, limited};
pub(crate) use meter::{Meter, OfBody, Watch};
pub(crate) use problem::ApiError;
pub(crate) use serve::serve;
pub(crate) use sign_in::sign_out;

/// What all requests share. No request holds a lock.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) access: Arc<Access>,
    pub(crate) store: Store,
    pub(crate) chunks: ChunkStore,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) inbox: mpsc::Sender<Event>,
    /// The settings of the file of courses.
    pub(crate) courses: watch::Receiver<Arc<Courses>>,
    pub(crate) stop: CancellationToken,
    pub(crate) connections: TaskTracker,
    pub(crate) prefix: Option<Arc<str>>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) limits: Arc<Limits>,
    pub(crate) chunk_limits: Arc<Limits>,
    /// For one worker.
    pub(crate) most_slots: u32,
    pub(crate) of_person: Arc<Connections>,
    pub(crate) requests_of_person: Arc<Connections>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) submissions: Arc<Submissions>,
    pub(crate) paces: Arc<Paces>,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) pools: Pools,
}

/// The largest body of a form or an action. Requests about chunks have their own limits.
const LARGEST_BODY: usize = 64 << 10;

pub(crate) fn router(shared: Shared) -> Router {
    let limited = |router: Router<Shared>| {
        router
            .layer(DefaultBodyLimit::max(LARGEST_BODY))
            .layer(middleware::from_fn_with_state(
                shared.clone(),
                admission::limit,
            ))
    };
    let no_workers = middleware::from_fn(admission::no_workers);
    let for_programs = Router::new()
        .merge(sockets::for_proxies())
        .merge(limited(api::routes()))
        .merge(states::routes())
        .merge(attachable::routes())
        .layer(no_workers.clone())
        .merge(
            limited(api::for_monitors())
                .route("/metrics", get(metrics::show))
                .layer(middleware::from_fn(admission::only_monitors)),
        )
        .merge(limited(api::for_joining_workers()))
        .merge(sockets::for_workers().layer(middleware::from_fn(admission::only_workers)))
        .merge(chunks::routes())
        .merge(grants::routes())
        .merge(chunk_listener::questions())
        .layer(middleware::from_fn_with_state(
            shared.clone(),
            admission::programs_need_token,
        ));
    let for_people =
        limited(page::routes())
            .layer(no_workers)
            .layer(middleware::from_fn_with_state(
                shared.clone(),
                admission::people_need_token,
            ));
    let router = Router::new()
        .merge(for_programs)
        .merge(for_people)
        .merge(page::files())
        .merge(sign_in::routes())
        .merge(health::routes())
        .layer(middleware::map_response_with_state(
            shared.leadership.clone(),
            no_more_from_here,
        ))
        .with_state(shared.clone());
    let router = match shared.prefix {
        Some(prefix) => below(&prefix, router),
        None => router,
    };
    router.layer(middleware::from_fn(headers::secure))
}

/// Marks encrypted requests as a reverse proxy would, so that cookies are sent only over TLS.
pub(crate) fn over_tls(router: Router) -> Router {
    router.layer(middleware::map_request(async |mut request: Request| {
        let https = HeaderValue::from_static("https");
        request.headers_mut().insert("x-forwarded-proto", https);
        request
    }))
}

/// Closes a connection that was accepted while there was no leader, or before another broker became
/// the leader. The peer's next connection is forwarded.
async fn no_more_from_here(
    State(leadership): State<watch::Receiver<Leadership>>,
    mut response: Response,
) -> Response {
    let upgraded = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    if !upgraded && *leadership.borrow() != Leadership::Leader {
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(header::CONNECTION, close);
    }
    response
}

/// Serves the same at the root and below a prefix.
fn below(prefix: &str, router: Router) -> Router {
    // The links of pages are relative, so the address of the first page must end with a slash.
    let home = format!("{prefix}/");
    let to_home = {
        let home = home.clone();
        async move |RawQuery(query): RawQuery| {
            let query = query.map_or_else(String::new, |query| format!("?{query}"));
            Redirect::to(&format!("{home}{query}"))
        }
    };
    Router::new()
        .route(prefix, get(to_home))
        .nest_service(&home, router.clone())
        .merge(router)
}
