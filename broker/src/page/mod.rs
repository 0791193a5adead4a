//! What people see: who runs, who waits, which workers there are.
//!
//! In: the engine's [`Overview`] and the last finished jobs. Out: one page, complete without a script, and the same
//! fragments again as server-sent events, at most once a second and only those that changed.
//!
//! **Invariant:** no request to another host, no inline script or style, and nothing of a cell but its notebook's name.

mod plain;
mod view;
mod words;

use crate::{
    dispatch::Overview,
    engine::{Event, unix_ms},
    http::Shared,
    store::FinishedJob,
};
use axum::{
    Router,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{
        IntoResponse, Response,
        sse::{self, KeepAlive, Sse},
    },
    routing::get,
};
use futures_util::{Stream, stream};
use std::{convert::Infallible, time::Duration};
use tokio::{sync::oneshot, time::sleep};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const HISTORY: u32 = 20;
const UPDATE_EVERY: Duration = Duration::from_secs(1);

pub(crate) fn routes() -> Router<Shared> {
    Router::new()
        .route("/", get(page))
        .route("/live", get(live))
        .route("/status", get(status))
        .route(
            "/static/page.css",
            get(|| async { file("text/css; charset=utf-8", include_str!("page.css")) }),
        )
        .route(
            "/static/live.js",
            get(|| async { file("text/javascript; charset=utf-8", include_str!("live.js")) }),
        )
}

/// Everything that a page shows, taken at one time.
pub(crate) struct Facts {
    now_ms: i64,
    present: Overview,
    finished: Vec<FinishedJob>,
}

/// The parts of the page that change, by the id of their element.
#[derive(Clone, PartialEq, Eq)]
struct Fragments([(&'static str, String); 4]);

async fn page(State(shared): State<Shared>) -> Response {
    let Some(facts) = facts(&shared).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "The broker is ending").into_response();
    };
    let fragments = fragments(&facts);
    let body = view::page(&fragments.0);
    ([(header::CONTENT_SECURITY_POLICY, POLICY)], body).into_response()
}

/// The same as plain text.
async fn status(State(shared): State<Shared>) -> Response {
    match facts(&shared).await {
        Some(facts) => plain::status(&facts).into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "The broker is ending").into_response(),
    }
}

fn file(kind: &'static str, text: &'static str) -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    (headers, text)
}

async fn live(State(shared): State<Shared>) -> impl IntoResponse {
    Sse::new(updates(shared)).keep_alive(KeepAlive::default())
}

/// Ends with the broker; the script then asks again by itself.
fn updates(shared: Shared) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let known: Vec<(&'static str, String)> = Vec::new();
    let rounds = stream::unfold((shared, known), |(shared, known)| async move {
        let stop = shared.stop.clone();
        if !known.is_empty() {
            tokio::select! {
                () = sleep(UPDATE_EVERY) => {}
                () = stop.cancelled() => return None,
            }
        }
        let Fragments(newest) = fragments(&facts(&shared).await?);
        let changed: Vec<Result<sse::Event, Infallible>> = newest
            .iter()
            .filter(|fragment| !known.contains(fragment))
            // A name may hold anything; an event must not hold carriage returns.
            .map(|(id, html)| {
                Ok(sse::Event::default()
                    .event(*id)
                    .data(html.replace('\r', " ")))
            })
            .collect();
        Some((stream::iter(changed), (shared, newest.to_vec())))
    });
    futures_util::StreamExt::flatten(rounds)
}

async fn facts(shared: &Shared) -> Option<Facts> {
    let (question, answer) = oneshot::channel();
    shared.inbox.send(Event::Overview(question)).await.ok()?;
    let present = answer.await.ok()?;
    let finished = match shared.store.finished_jobs(HISTORY).await {
        Ok(finished) => finished,
        Err(error) => {
            tracing::error!("The last jobs cannot be read: {error}");
            return None;
        }
    };
    Some(Facts {
        now_ms: unix_ms(),
        present,
        finished,
    })
}

fn fragments(facts: &Facts) -> Fragments {
    Fragments([
        ("now", view::now(facts).into_string()),
        ("jobs", view::jobs(facts).into_string()),
        ("workers", view::workers(facts).into_string()),
        ("finished", view::finished(facts).into_string()),
    ])
}
