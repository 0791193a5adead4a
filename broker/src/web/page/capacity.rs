//! Whether there are enough GPUs: the present, and predictions from the course's own past.
//!
//! In: the last cells of the courses of which the caller is staff. Out: a page that works without a
//! script. Its only part is sent again when it has changed, at most twice a minute.

use super::{
    layout::{Fragment, Page, element},
    time::Zone,
    week::week,
};
use crate::web::{ApiError, Caller, Shared, api};
use axum::{Extension, extract::State, response::Response};
use baton_humanize::approximate;
use baton_plan::{
    Capacity, Effort, Forecast, PastCell, Rates, Row, expected_wait, fit, forecast,
    lesson_sentence, people_here, seconds,
};
use baton_protocol::api::{History, LessonOutlook};
use maud::{Markup, html};
use std::time::Duration;
use tokio::task::spawn_blocking;

const DAYS: u32 = 7;
/// The contents change slowly, and computing them takes part of a second.
pub(super) const UPDATE_EVERY: Duration = Duration::from_secs(30);
/// The recent past, in seconds.
const RECENT: f64 = 3600.0;

pub(super) async fn show(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    let fragments = fragments(&shared, &caller).await?;
    let page = Page {
        here: "capacity",
        title: "Capacity".to_owned(),
        live: Some("live?of=capacity".to_owned()),
        main: html! {
            div.head { h1 { "Capacity" } p.quiet { "Whether there are enough GPUs" } }
            (element(&fragments, "capacity"))
        },
    };
    Ok(page.show(&caller))
}

pub(super) async fn fragments(shared: &Shared, caller: &Caller) -> Result<Vec<Fragment>, ApiError> {
    let history = api::past(shared, &caller.identity, None, DAYS).await?;
    let lessons = api::lesson_outlooks(shared, caller).await?;
    let zone = Zone::of(shared);
    let now_ms = history.now_ms;
    let content = spawn_blocking(move || content(&history).into_string()).await;
    let content = content.map_err(|_| ApiError::Ending)?;
    let lessons = lessons_part(&lessons, &zone, now_ms).into_string();
    Ok(vec![("capacity", content + &lessons)])
}

/// The next lessons: what they need, and how they went the last time.
fn lessons_part(lessons: &[LessonOutlook], zone: &Zone, now_ms: i64) -> Markup {
    if lessons.is_empty() {
        return html! {};
    }
    html! {
        (week(lessons, zone, now_ms))
        section.card {
            h2 { "Timetable" }
            @for lesson in lessons { p { strong { (lesson.course) } ": " (lesson_sentence(lesson)) } }
            div.scroll tabindex="0" role="region" aria-label="Lessons" { table {
                caption { "Predicted waits, and waits of the last time" }
                thead { tr {
                    th scope="col" { "Course" }
                    th scope="col" { "Next" }
                    th.number scope="col" { "People" }
                    th.number scope="col" { "Slots now" }
                    th.number scope="col" { "Slots at its start" }
                    th.number scope="col" { "Slots needed" }
                    th.number scope="col" { "Predicted p99" }
                    th.number scope="col" { "Last time: people" }
                    th.number scope="col" { "Last time: p99" }
                } }
                tbody {
                    @for lesson in lessons { tr {
                        th scope="row" { (lesson.course) }
                        td { (zone.moment(lesson.starts_ms)) }
                        td.number { (lesson.people) }
                        td.number { (lesson.slots_now) }
                        td.number { (lesson.ready_slots) }
                        td.number { (lesson.enough_slots) }
                        td.number { @match expected_wait(lesson) { Some(wait) => (approximate(wait.as_secs_f64())), None => "–" } }
                        td.number { @match lesson.last { Some(last) => (last.people), None => "–" } }
                        td.number { @match lesson.last { Some(last) => (approximate(Duration::from_millis(last.wait_99_ms).as_secs_f64())), None => "–" } }
                    } }
                }
            } }
        }
    }
}

fn content(history: &History) -> Markup {
    let now = seconds(history.now_ms);
    let cells: Vec<PastCell> = history.cells.iter().map(PastCell::from).collect();
    let slots = history.slots as usize;
    if slots == 0 {
        return html! { section.card { "No connected worker accepts cells, so there is no capacity." } };
    }
    let fit = match fit(&cells, slots, now) {
        Ok(fit) => fit,
        Err(too_little) => {
            return html! { section.card { (too_little) ". Come back after more cells have run." } };
        }
    };
    let here = people_here(&cells, now);
    let rates = fit.rates;
    let recent = RecentWaits::of(&cells, now);
    let expected = (here > 0).then(|| forecast(&while_here(rates), here, slots, Effort::LIGHT));
    let capacity = Capacity::of(fit, history.gpus as usize, slots, Effort::LIGHT);
    html! {
        section.card { (now_part(here, &recent, expected.as_ref())) }
        section.card {
            h2 { "The last " (DAYS) " days, and a prediction" }
            @for sentence in capacity.sentences() { p { (sentence) } }
            (table(&capacity.rows()))
        }
        div.pair {
            section.card { h2 { "How long cells wait" } (capacity.plot_of_waits().svg()) }
            section.card { h2 { "How long cells run" } (capacity.plot_of_runs().svg()) }
        }
    }
}

/// Assumes that none of the present people leaves.
fn while_here(rates: Rates) -> Rates {
    Rates {
        departure: 0.0,
        ..rates
    }
}

/// The waits of cells in the last hour.
struct RecentWaits {
    /// In seconds. For a cell that still waits, the time so far.
    waits: Vec<f64>,
}

impl RecentWaits {
    fn of(cells: &[PastCell], now: f64) -> Self {
        let recent = cells.iter().filter(|cell| cell.submitted > now - RECENT);
        let wait = |cell: &PastCell| cell.started.or(cell.finished).unwrap_or(now) - cell.submitted;
        Self {
            waits: recent.map(wait).collect(),
        }
    }

    fn mean(&self) -> f64 {
        self.waits.iter().sum::<f64>() / (self.waits.len() as f64).max(1.0)
    }

    /// Whether significantly more than 10% of the waits exceeded the predicted 90th percentile (p < 0.005).
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

fn now_part(here: usize, recent: &RecentWaits, expected: Option<&Forecast>) -> Markup {
    html! {
        p.now {
            @match recent.waits.len() {
                0 => "No cells in the last hour.",
                count => {
                    (count) @if count == 1 { " cell" } @else { " cells" } " of the last hour waited "
                    (approximate(recent.mean())) " on average."
                },
            }
        }
        @if let Some(expected) = expected {
            p {
                (here) @if here == 1 { " person is" } @else { " people are" } " here. If no one leaves, expect to wait "
                (approximate(expected.wait)) " on average, and 1 in 10 longer than " (approximate(expected.waits[1])) ". "
                @if recent.waits.is_empty() {}
                @else if recent.is_worse_than(expected) {
                    strong { "More cells than predicted waited longer, and chance does not explain it." }
                    " Demand is higher than in the last days, or a worker is missing."
                }
                @else { "The waits of the last hour match the prediction." }
            }
        }
    }
}

fn table(rows: &[Row]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Past and predicted waits" { table {
            caption { "Past and predicted waits" }
            thead { tr {
                th scope="col" { "Case" }
                @for title in ["Start within 1 s", "Mean wait", "p50", "p90", "p99", "Slots busy", "Cells per hour"] {
                    th.number scope="col" { (title) }
                }
            } }
            tbody {
                @for row in rows { tr {
                    th scope="row" { (row.name) }
                    td.number { (format!("{:.0} %", 100.0 * row.at_once)) }
                    td.number { (approximate(row.wait)) }
                    @for wait in row.waits {
                        td.number { @match wait { Some(wait) => (approximate(wait)), None => "–" } }
                    }
                    td.number { (format!("{:.0} %", 100.0 * row.busy)) }
                    td.number { (format!("{:.1}", row.cells_per_hour)) }
                } }
            }
        } }
    }
}
