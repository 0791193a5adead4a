//! The pages: running and waiting jobs, workers, courses, usage, and the audit log.
//!
//! In: the engine's [`Overview`] and the store's rows. Out: pages that work without a script, and
//! their changing parts again as server-sent events. Forms become the same commands as those of the
//! API. All addresses are relative to the page, so everything works under any prefix.
//!
//! **Invariant:** no request to another host, no inline script or style. The output of a cell is
//! shown to its owner, and to staff if the course permits it. Its code is shown only to its owner.

mod act;
mod allowances;
mod audit;
mod capacity;
mod courses;
mod facts;
mod form;
mod job;
mod layout;
mod live;
mod now;
mod output;
mod people;
mod plain;
mod time;
mod week;
mod workers;

use crate::web::{ApiError, Caller, Shared};
use axum::{
    Extension, Router,
    extract::{Query, Request, State},
    http::{HeaderValue, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use baton_broker_queue::{JobView, Overview};
use baton_protocol::api::{Pool, Problem};
use layout::Page;
use std::sync::Arc;
use time::Zone;

pub(crate) use layout::POLICY;

pub(crate) fn routes() -> Router<Shared> {
    Router::new()
        .route("/", get(show_now))
        .route("/job", get(show_job))
        .route("/people", get(people::show))
        .route("/people.csv", get(people::csv))
        .route("/workers", get(show_workers))
        .route("/courses", get(courses::list))
        .route("/course", get(courses::one))
        .route("/capacity", get(capacity::show))
        .route("/audit", get(audit::show))
        .route("/act", post(act::post))
        .route("/sign-out", post(act::sign_out))
        .route("/live", get(live::live))
        .route("/status", get(status))
        .layer(middleware::from_fn(refusals_are_pages))
}

/// Static files. They need no sign-in.
pub(crate) fn files() -> Router<Shared> {
    let files = FILES.iter();
    files.fold(Router::new(), |router, (path, kind, text)| {
        router.route(path, get(async || file(kind, text)))
    })
}

/// The files that pages load. The names of htmx contain its version.
const FILES: &[(&str, &str, &str)] = &[
    (
        "/static/page.css",
        "text/css; charset=utf-8",
        include_str!("page/static/page.css"),
    ),
    (
        "/static/page.js",
        "text/javascript; charset=utf-8",
        include_str!("page/static/page.js"),
    ),
    (
        "/static/icon.svg",
        "image/svg+xml",
        include_str!("page/static/icon.svg"),
    ),
    (
        "/static/htmx-4.0.1.min.js",
        "text/javascript; charset=utf-8",
        include_str!("page/static/htmx-4.0.1.min.js"),
    ),
    (
        "/static/hx-sse-4.0.1.min.js",
        "text/javascript; charset=utf-8",
        include_str!("page/static/hx-sse-4.0.1.min.js"),
    ),
];

/// Everything that a page shows of the present and the past.
struct Facts {
    now_ms: i64,
    pools: Vec<Pool>,
    zone: Zone,
    /// Its jobs have been moved to the next two fields.
    present: Overview,
    /// All assigned jobs. How much of each is shown depends on the caller.
    running: Vec<JobView>,
    /// The waiting jobs that the caller may see, in queue order.
    waiting: Vec<JobView>,
    past: Arc<facts::Past>,
}

async fn show_now(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    let facts = facts::look(&shared, &caller).await?;
    let page = Page {
        here: "./",
        title: "Now".to_owned(),
        live: Some("live?of=now".to_owned()),
        main: now::main(&facts, &caller),
    };
    Ok(page.show(&caller))
}

async fn show_workers(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    let facts = facts::look(&shared, &caller).await?;
    Ok(workers::page(&facts, &caller, None).show(&caller))
}

#[derive(serde::Deserialize)]
struct AskedJob {
    id: String,
}

async fn show_job(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Query(asked): Query<AskedJob>,
) -> Result<Response, ApiError> {
    let unknown = || ApiError::UnknownJob {
        job: asked.id.clone(),
    };
    let job = asked.id.parse().map_err(|_| unknown())?;
    let job = job::look(&shared, &caller, job)
        .await?
        .ok_or_else(unknown)?;
    Ok(job::page(&job, &caller, None).show(&caller))
}

/// The present state as plain text.
async fn status(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<String, ApiError> {
    let facts = facts::look(&shared, &caller).await?;
    Ok(plain::status(&facts, &caller))
}

/// Replaces problem documents by pages.
async fn refusals_are_pages(
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    let mut response = next.run(request).await;
    match response.extensions_mut().remove::<Problem>() {
        Some(problem) => act::refused(&problem, &caller),
        None => response,
    }
}

fn file(kind: &'static str, text: &'static str) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, text)
}
