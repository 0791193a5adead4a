//! How much each person used and how long they waited, by person and by day, also as CSV.

use super::layout::Page;
use crate::{
    clock::unix_ms,
    engine::Event,
    web::{
        ApiError, Caller, Shared,
        api::{ask, day_of},
    },
    words,
};
use axum::{
    Extension,
    body::Body,
    extract::{Query, State},
    http::header,
    response::{IntoResponse, Response},
};
use baton_broker_queue::{Account, JobView};
use baton_broker_store::{DAY_MS, StoreError, UsageFilter, UsageRow, UsageSums};
use futures_util::{Stream, StreamExt, stream};
use maud::{Markup, html};
use std::{collections::BTreeMap, future::ready, ops::RangeInclusive};

/// How many rows of the CSV are read at a time.
const CSV_ROWS: u32 = 10_000;

#[derive(serde::Deserialize)]
pub(super) struct Asked {
    days: Option<u32>,
    course: Option<String>,
}

/// What was used in some days.
struct Used {
    by_day: BTreeMap<i64, u64>,
    /// By person and course.
    sums: BTreeMap<(String, String), Sum>,
    waits_ms: Vec<u64>,
}

#[derive(Default)]
struct Sum {
    run_ms: u64,
    runs: u64,
    /// How many of them are still running.
    now: u64,
    waits_ms: Vec<u64>,
}

pub(super) async fn show(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Query(asked): Query<Asked>,
) -> Result<Response, ApiError> {
    let (now_ms, first_day) = (unix_ms(), asked.first_day());
    let mut used = Used::on(first_day..=now_ms.div_euclid(DAY_MS));
    let accounts = shared.store.accounts();
    let sums = accounts
        .usage_sums(&caller.identity, &asked.filter(None))
        .await?;
    used.add_past(sums);
    for job in ask(&shared, Event::Overview).await?.jobs {
        if asked.shows(&job, &caller) {
            used.add_running(job, now_ms);
        }
    }
    let waits = shared
        .store
        .past()
        .waits(&caller.identity, asked.course(), first_day * DAY_MS)
        .await?;
    for (account, waited_ms) in waits {
        used.add_wait(account, waited_ms);
    }
    let page = Page {
        here: "people",
        title: "People".to_owned(),
        live: None,
        main: main(&asked, used),
    };
    Ok(page.show(&caller))
}

impl Used {
    fn on(days: RangeInclusive<i64>) -> Self {
        Self {
            by_day: days.map(|day| (day, 0)).collect(),
            sums: BTreeMap::new(),
            waits_ms: Vec::new(),
        }
    }

    fn add_past(&mut self, past: UsageSums) {
        self.by_day.extend(past.by_day);
        for (account, run_ms, runs) in past.by_account {
            let sum = self.sum_of(account);
            sum.run_ms += run_ms;
            sum.runs += runs;
        }
    }

    fn add_running(&mut self, job: JobView, now_ms: i64) {
        let Some(started_ms) = job.started_ms else {
            return;
        };
        let run_ms = (now_ms - started_ms).max(0).unsigned_abs();
        let today = now_ms.div_euclid(DAY_MS);
        *self.by_day.entry(today).or_default() += run_ms;
        let sum = self.sum_of(job.account);
        sum.run_ms += run_ms;
        sum.runs += 1;
        sum.now += 1;
    }

    fn add_wait(&mut self, account: Account, waited_ms: u64) {
        self.waits_ms.push(waited_ms);
        self.sum_of(account).waits_ms.push(waited_ms);
    }

    fn sum_of(&mut self, account: Account) -> &mut Sum {
        self.sums
            .entry((account.owner, account.course))
            .or_default()
    }
}

fn main(asked: &Asked, mut used: Used) -> Markup {
    used.waits_ms.sort_unstable();
    let days = used.by_day.iter();
    let days: Vec<(String, u64)> = days.map(|(day, ms)| (day_of(*day), *ms)).collect();
    html! {
        div.head { h1 { "People" } p.quiet { "GPU time and waits of the last " (words::count(days.len(), "day", "days")) } }
        (choice(asked))
        div.pair {
            (by_day(&days))
            (total(&used))
        }
        (by_person(used.sums))
    }
}

fn choice(asked: &Asked) -> Markup {
    html! {
        form.card method="get" action="people" { div.inline {
            label { "Days" select name="days" {
                @for choice in [1, 7, 14, 30] { option value=(choice) selected[choice == asked.days()] { (choice) } }
            } }
            label { "Course" input name="course" value=(asked.course().unwrap_or_default()) autocomplete="off"; }
            button { "Show" }
            a.button href=(asked.csv()) { "Download CSV" }
        } }
    }
}

fn by_day(days: &[(String, u64)]) -> Markup {
    let columns = days
        .iter()
        .map(|(day, ms)| (day.get(5..).unwrap_or(day), *ms, words::span(*ms)));
    let columns: Vec<_> = columns.collect();
    html! {
        section.card {
            h2 { "GPU time by day" }
            @if days.len() <= 14 { (baton_charts::columns(&columns, "GPU time by day; the table has the same data")) }
            details { summary { "As a table" } div.scroll { table {
                caption { "GPU time by day" }
                thead { tr { th scope="col" { "Day (UTC)" } th.number scope="col" { "GPU time" } } }
                tbody { @for (day, ms) in days { tr { th scope="row" { (day) } td.number { (words::span(*ms)) } } } }
            } } }
        }
    }
}

fn total(used: &Used) -> Markup {
    let run_ms = used.by_day.values().sum();
    let cells = used.sums.values().map(|sum| sum.runs).sum::<u64>();
    let run_now = used.sums.values().map(|sum| sum.now).sum::<u64>();
    html! {
        section.card {
            h2 { "Total" }
            dl.facts {
                dt { "GPU time" } dd.big { (words::span(run_ms)) }
                dt { "Cells" } dd.big { (cells) }
                dt { "Median wait" } dd.big { (words::percentile(&used.waits_ms, 50)) }
                dt { "99th percentile of waits" } dd.big { (words::percentile(&used.waits_ms, 99)) }
            }
            @if run_now > 0 {
                p."quiet small" { "With " (words::count(usize::try_from(run_now).unwrap_or(usize::MAX), "running cell", "running cells")) ", up to now. The CSV contains only finished cells." }
            }
        }
    }
}

fn by_person(sums: BTreeMap<(String, String), Sum>) -> Markup {
    let all_ms = sums.values().map(|sum| sum.run_ms).sum::<u64>();
    let mut sums: Vec<((String, String), Sum)> = sums.into_iter().collect();
    sums.sort_by_key(|(_, sum)| std::cmp::Reverse(sum.run_ms));
    sums.iter_mut()
        .for_each(|(_, sum)| sum.waits_ms.sort_unstable());
    html! {
        section.card { div.scroll tabindex="0" role="region" aria-label="Use by person" { table {
            caption { "By person, largest first" }
            thead { tr {
                th scope="col" { "Person" }
                th scope="col" { "Course" }
                th.number scope="col" { "GPU time" }
                th.number scope="col" { "Share" }
                th.number scope="col" { "Cells" }
                th.number scope="col" { "Wait p50" }
                th.number scope="col" { "Wait p99" }
            } }
            tbody {
                @for ((person, course), sum) in &sums {
                    tr {
                        th scope="row" { (person) }
                        td { (words::course(course)) }
                        td.number { (words::span(sum.run_ms)) }
                        td.number { (sum.run_ms * 100 / all_ms.max(1)) " %" }
                        td.number { (sum.runs) }
                        td.number { (words::percentile(&sum.waits_ms, 50)) }
                        td.number { (words::percentile(&sum.waits_ms, 99)) }
                    }
                }
                @if sums.is_empty() { tr { td.empty colspan="7" { "No one used a GPU in this time." } } }
            }
        } } }
    }
}

/// One row for each person, course and day.
pub(super) async fn csv(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Query(asked): Query<Asked>,
) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/csv; charset=utf-8"),
        (
            header::CONTENT_DISPOSITION,
            "attachment; filename=\"gpu-use.csv\"",
        ),
    ];
    let head = "day,person,course,gpu_seconds,cells\r\n".to_owned();
    let parts = stream::once(ready(Ok(head))).chain(csv_parts(shared, caller, asked));
    (headers, Body::from_stream(parts)).into_response()
}

/// If the database fails, the download fails too, so that an incomplete file does not look complete.
fn csv_parts(
    shared: Shared,
    caller: Caller,
    asked: Asked,
) -> impl Stream<Item = Result<String, StoreError>> {
    stream::try_unfold(None, move |after| {
        let (shared, caller) = (shared.clone(), caller.clone());
        let filter = asked.filter(after);
        async move {
            let accounts = shared.store.accounts();
            let rows = accounts.usage(&caller.identity, &filter, CSV_ROWS).await?;
            let text = rows.iter().map(csv_line).collect::<String>();
            let last = rows.into_iter().next_back();
            Ok(last.map(|last| (text, Some((last.day, last.account)))))
        }
    })
}

fn csv_line(row: &UsageRow) -> String {
    let seconds = row.run_ms as f64 / 1000.0;
    let day = day_of(row.day);
    let (person, course) = (quoted(&row.account.owner), quoted(&row.account.course));
    format!("{day},{person},{course},{seconds:.3},{}\r\n", row.runs)
}

/// Quotes a field. An apostrophe prevents a spreadsheet from reading it as a formula.
fn quoted(text: &str) -> String {
    let formula = text.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let text = text.replace('"', "\"\"");
    format!("\"{}{text}\"", if formula { "'" } else { "" })
}

impl Asked {
    fn days(&self) -> u32 {
        self.days.unwrap_or(7).clamp(1, 366)
    }

    /// The first of the days, in days since 1970.
    fn first_day(&self) -> i64 {
        unix_ms().div_euclid(DAY_MS) - i64::from(self.days()) + 1
    }

    fn shows(&self, job: &JobView, caller: &Caller) -> bool {
        let course = |course| job.account.course == course;
        caller.identity.may_see(&job.account) && self.course().is_none_or(course)
    }

    fn course(&self) -> Option<&str> {
        self.course.as_deref().filter(|course| !course.is_empty())
    }

    fn csv(&self) -> String {
        let course = self.course().unwrap_or_default();
        let query = [
            ("days", self.days().to_string()),
            ("course", course.to_owned()),
        ];
        format!("people.csv?{}", words::query(&query))
    }

    /// Only rows after this one.
    fn filter(&self, after: Option<(i64, Account)>) -> UsageFilter {
        UsageFilter {
            from: Some(self.first_day()),
            course: self.course().map(str::to_owned),
            after,
            ..UsageFilter::default()
        }
    }
}
