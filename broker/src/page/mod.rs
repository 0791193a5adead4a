//! What people see: who runs, who waits, which workers there are.
//!
//! In: the engine's [`Overview`] and the last finished jobs. Out: one page, complete without a script, and the same
//! fragments again as server-sent events, at most once a second and only those that changed.
//!
//! **Invariant:** no request to another host, no inline script or style, and nothing of a cell but its notebook's name.

mod capacity;
mod plain;
mod view;

use crate::{
    dispatch::Overview,
    engine::{Event, unix_ms},
    http::{Caller, Shared},
    store::JobRow,
};
use axum::{
    Extension, Router,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{
        IntoResponse, Response,
        sse::{self, KeepAlive, Sse},
    },
    routing::get,
};
use futures_util::{Stream, StreamExt, stream};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{sync::oneshot, time::sleep};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const HISTORY: u32 = 20;
const UPDATE_EVERY: Duration = Duration::from_secs(1);

pub(crate) fn routes() -> Router<Shared> {
    Router::new()
        .merge(capacity::routes())
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
    finished: Vec<JobRow>,
}

/// The parts of the page that change, by the id of their element.
#[derive(Clone, PartialEq, Eq)]
struct Fragments([(&'static str, String); 4]);

async fn page(State(shared): State<Shared>, Extension(caller): Extension<Caller>) -> Response {
    let Some(facts) = facts(&shared, &caller).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "The broker is ending").into_response();
    };
    let fragments = fragments(&facts);
    let body = view::page(&fragments.0);
    ([(header::CONTENT_SECURITY_POLICY, POLICY)], body).into_response()
}

/// The same as plain text.
async fn status(State(shared): State<Shared>, Extension(caller): Extension<Caller>) -> Response {
    match facts(&shared, &caller).await {
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

async fn live(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> impl IntoResponse {
    let access = Arc::clone(&shared.access);
    let until = caller.clone();
    let until = async move { access.until_changed(&until).await };
    Sse::new(updates(shared, caller).take_until(Box::pin(until))).keep_alive(KeepAlive::default())
}

/// Ends with the broker; the script then asks again by itself.
fn updates(shared: Shared, caller: Caller) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let known: Vec<(&'static str, String)> = Vec::new();
    let rounds = stream::unfold(
        (shared, caller, known),
        |(shared, caller, known)| async move {
            let stop = shared.stop.clone();
            if !known.is_empty() {
                tokio::select! {
                    () = sleep(UPDATE_EVERY) => {}
                    () = stop.cancelled() => return None,
                }
            }
            let Fragments(newest) = fragments(&facts(&shared, &caller).await?);
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
            Some((stream::iter(changed), (shared, caller, newest.to_vec())))
        },
    );
    rounds.flatten()
}

/// Only what the caller may see, but for the counts.
async fn facts(shared: &Shared, caller: &Caller) -> Option<Facts> {
    let (question, answer) = oneshot::channel();
    shared.inbox.send(Event::Overview(question)).await.ok()?;
    let mut present = answer.await.ok()?;
    present
        .jobs
        .retain(|job| caller.identity.may_see(&job.account));
    let finished = match shared.store.finished_jobs(&caller.identity, HISTORY).await {
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
