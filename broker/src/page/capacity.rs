//! Whether there are enough GPUs: the course as it is, beside what its own past lets expect.
//!
//! In: the last cells of the courses whose staff the caller is. Out: a page, complete without a script, and its one
//! fragment again as server-sent events, twice a minute if it changed.

use super::{POLICY, file};
use crate::{
    api,
    http::{Caller, Shared},
};
use axum::{
    Extension, Router,
    extract::State,
    http::{StatusCode, header},
    response::{
        IntoResponse, Response,
        sse::{self, KeepAlive, Sse},
    },
    routing::get,
};
use baton_plan::{
    Capacity, Effort, Forecast, PastCell, Rates, Row, duration, fit, forecast, people_here,
};
use baton_protocol::api::History;
use futures_util::{Stream, stream};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{task::spawn_blocking, time::sleep};

const DAYS: u32 = 7;
const UPDATE_EVERY: Duration = Duration::from_secs(30);
/// The live course, in seconds.
const LATELY: f64 = 3600.0;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/capacity", get(page))
        .route("/capacity/live", get(live))
        .route(
            "/static/capacity.css",
            get(|| async { file("text/css; charset=utf-8", include_str!("capacity.css")) }),
        )
        .route(
            "/static/capacity.js",
            get(|| async {
                file(
                    "text/javascript; charset=utf-8",
                    include_str!("capacity.js"),
                )
            }),
        )
}

async fn page(State(shared): State<Shared>, Extension(caller): Extension<Caller>) -> Response {
    let (status, content) = match fragment(&shared, &caller).await {
        Ok(content) => (StatusCode::OK, PreEscaped(content)),
        Err(refusal) => (refusal.status(), html! { p { (refusal) "." } }),
    };
    let policy = [(header::CONTENT_SECURITY_POLICY, POLICY)];
    (status, policy, layout(&content)).into_response()
}

/// Ends with the broker, or when the caller may see something else; the script then asks again by itself.
async fn live(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> impl IntoResponse {
    let access = Arc::clone(&shared.access);
    let until = caller.clone();
    let until = async move { access.until_changed(&until).await };
    let updates = futures_util::StreamExt::take_until(updates(shared, caller), Box::pin(until));
    Sse::new(updates).keep_alive(KeepAlive::default())
}

fn updates(shared: Shared, caller: Caller) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    stream::unfold(
        (shared, caller, String::new()),
        |(shared, caller, mut known)| async move {
            let stop = shared.stop.clone();
            loop {
                tokio::select! {
                    () = sleep(UPDATE_EVERY) => {}
                    () = stop.cancelled() => return None,
                }
                let newest = fragment(&shared, &caller).await.ok()?;
                if newest != known {
                    known.clone_from(&newest);
                    let event = sse::Event::default().event("capacity").data(newest);
                    return Some((Ok(event), (shared, caller, known)));
                }
            }
        },
    )
}

async fn fragment(shared: &Shared, caller: &Caller) -> Result<String, api::ApiError> {
    let history = api::past(shared, &caller.identity, None, DAYS).await?;
    let content = spawn_blocking(move || content(&history).into_string()).await;
    content.map_err(|_| api::ApiError::Ending)
}

fn content(history: &History) -> Markup {
    let now = seconds(history.now_ms);
    let cells: Vec<PastCell> = history.cells.iter().map(past).collect();
    let places = history.slots as usize;
    if places == 0 {
        return html! { p { "No worker is connected, so there is no capacity to speak of." } };
    }
    let fit = match fit(&cells, places, now) {
        Ok(fit) => fit,
        Err(too_little) => {
            return html! { p { (too_little) ". The page fills as the course goes on." } };
        }
    };
    let here = people_here(&cells, now);
    let rates = fit.rates;
    let lately = Lately::of(&cells, now);
    let expected = (here > 0)
        .then(|| forecast(&while_here(rates), here, places, Effort::QUICK))
        .flatten();
    let Some(capacity) = Capacity::of(fit, history.gpus as usize, places, Effort::QUICK) else {
        return html! { p { "The model has no answer for these times." } };
    };
    html! {
        (now_part(here, &lately, expected.as_ref()))
        h2 { "The last " (DAYS) " days, and what they let expect" }
        @for sentence in capacity.sentences() { p { (sentence) } }
        (table(&capacity.rows()))
        figure { (PreEscaped(capacity.plot_of_waits().svg())) figcaption { "How long cells wait" } }
        figure { (PreEscaped(capacity.plot_of_runs().svg())) figcaption { "How long cells run" } }
    }
}

/// Of those who are here, nobody leaves.
fn while_here(rates: Rates) -> Rates {
    Rates {
        departure: 0.0,
        ..rates
    }
}

/// What cells of the last hour waited.
struct Lately {
    /// In seconds; of a cell that still waits, so far.
    waits: Vec<f64>,
}

impl Lately {
    fn of(cells: &[PastCell], now: f64) -> Self {
        let lately = cells.iter().filter(|cell| cell.submitted > now - LATELY);
        let wait = |cell: &PastCell| cell.started.or(cell.finished).unwrap_or(now) - cell.submitted;
        Self {
            waits: lately.map(wait).collect(),
        }
    }

    fn mean(&self) -> f64 {
        self.waits.iter().sum::<f64>() / (self.waits.len() as f64).max(1.0)
    }

    /// Whether more waited longer than one in ten was to wait than chance explains (in 199 of 200 cases).
    fn is_worse_than(&self, expected: &Forecast) -> bool {
        let count = self.waits.len() as f64;
        let longer = self
            .waits
            .iter()
            .filter(|wait| **wait > expected.waits[1])
            .count() as f64;
        longer > 0.1 * count + 2.6 * (0.09 * count).sqrt()
    }
}

fn now_part(here: usize, lately: &Lately, expected: Option<&Forecast>) -> Markup {
    html! {
        p.now {
            @match lately.waits.len() {
                0 => "No cell came in the last hour.",
                count => {
                    (count) @if count == 1 { " cell" } @else { " cells" } " came in the last hour and waited "
                    (duration(lately.mean())) " on average."
                },
            }
        }
        @if let Some(expected) = expected {
            p {
                (here) @if here == 1 { " person is" } @else { " people are" } " here; so many are predicted to wait "
                (duration(expected.wait)) " on average, and 1 in 10 longer than " (duration(expected.waits[1])) ". "
                @if lately.waits.is_empty() {}
                @else if lately.is_worse_than(expected) {
                    strong { "More cells than that wait longer: this is not bad luck." }
                    " The course asks for more than in the days before, or a worker is missing."
                }
                @else { "What the last hour's cells waited is within chance." }
            }
        }
    }
}

fn table(rows: &[Row]) -> Markup {
    html! {
        div.scroll { table {
            caption { "The course" }
            thead { tr {
                th scope="col" { "" }
                @for title in ["Start within 1 s", "Mean wait", "p50", "p90", "p99", "Places busy", "Cells per hour"] {
                    th.number scope="col" { (title) }
                }
            } }
            tbody {
                @for row in rows { tr {
                    th scope="row" { (row.name) }
                    td.number { (format!("{:.0} %", 100.0 * row.at_once)) }
                    td.number { (duration(row.wait)) }
                    @for wait in row.waits {
                        td.number { @match wait { Some(wait) => (duration(wait)), None => "–" } }
                    }
                    td.number { (format!("{:.0} %", 100.0 * row.busy)) }
                    td.number { (format!("{:.1}", row.cells_per_hour)) }
                } }
            }
        } }
    }
}

fn layout(content: &Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Baton: capacity" }
                link rel="stylesheet" href="static/page.css";
                link rel="stylesheet" href="static/capacity.css";
                script src="static/capacity.js" defer {}
            }
            body {
                header {
                    h1 { "Capacity" }
                    nav { a href="./" { "Cells now" } }
                }
                main { section #capacity { (content) } }
            }
        }
    }
}

fn past(cell: &baton_protocol::api::PastCell) -> PastCell {
    PastCell {
        person: cell.person.into(),
        submitted: seconds(cell.submitted_ms),
        started: cell.started_ms.map(seconds),
        finished: cell.finished_ms.map(seconds),
        ended_itself: cell.ended_itself,
    }
}

fn seconds(ms: i64) -> f64 {
    ms as f64 / 1000.0
}
