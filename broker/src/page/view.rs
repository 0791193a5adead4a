//! The page and its fragments as HTML.

use super::Facts;
use crate::{
    dispatch::{JobView, Phase, WorkerView},
    store::JobRow,
    words,
};
use baton_protocol::Outcome;
use maud::{DOCTYPE, Markup, PreEscaped, html};

pub(super) fn page(fragments: &[(&'static str, String)]) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "Baton" }
                link rel="stylesheet" href="static/page.css";
                script src="static/live.js" defer {}
            }
            body {
                a.skip href="#main" { "Skip to the tables" }
                header {
                    h1 { "Baton" }
                    nav { a href="capacity" { "Capacity" } }
                    button #pause type="button" hidden { "Pause updates" }
                }
                main #main {
                    @for (id, content) in fragments {
                        // The sentence is read out when it changes; the tables are not.
                        @let live = if *id == "now" { "polite" } else { "off" };
                        section id=(id) aria-live=(live) { (PreEscaped(content)) }
                    }
                }
            }
        }
    }
}

/// The one sentence.
pub(super) fn now(facts: &Facts) -> Markup {
    let (running, waiting) = (facts.present.running, facts.present.waiting);
    let workers = &facts.present.workers;
    let connected = workers.iter().filter(|worker| worker.connected).count();
    html! {
        p.now {
            (words::count(running, "cell runs", "cells run")) ", "
            (words::count(waiting, "cell waits", "cells wait")) ", "
            (words::count(connected, "worker is connected", "workers are connected")) "."
        }
    }
}

pub(super) fn jobs(facts: &Facts) -> Markup {
    let jobs = &facts.present.jobs;
    html! {
        div.scroll { table {
            caption { "Cells now" }
            thead { tr {
                th scope="col" { "State" }
                th scope="col" { "Notebook" }
                th scope="col" { "Person" }
                th scope="col" { "Course" }
                th scope="col" { "Worker" }
                th.number scope="col" { "Waited" }
                th.number scope="col" { "Runs for" }
                th scope="col" { "Why it waits" }
                th.number scope="col" { "Starts in" }
                th scope="col" { "Job" }
            } }
            tbody {
                @for job in jobs { (job_row(job, facts.now_ms)) }
                @if jobs.is_empty() {
                    tr { td.empty colspan="10" {
                        "No cell runs and no one is waiting. A cell with " code { "%%gpu" } " on top will appear here."
                    } }
                }
            }
        } }
    }
}

fn job_row(job: &JobView, now_ms: i64) -> Markup {
    let (class, mark, state) = match job.phase {
        _ if job.cancel_wanted => ("stopping", "■", "stopping"),
        Phase::Queued => ("waiting", "○", "waiting"),
        Phase::Assigned => ("sending", "◐", "sending its state"),
        Phase::Started | Phase::Finished => ("running", "●", "running"),
    };
    let waited_until = job.started_ms.unwrap_or(now_ms);
    html! {
        tr {
            td.state.(class) { span aria-hidden="true" { (mark) } " " (state) }
            th scope="row" { (job.notebook_name) }
            td { (job.account.owner) }
            td { (words::course(&job.account.course)) }
            td { (job.worker.as_deref().unwrap_or("–")) }
            td.number title=(words::absolute(job.submitted_ms)) { (words::duration(waited_until - job.submitted_ms)) }
            td.number {
                @match job.started_ms {
                    Some(started) => span title=(words::absolute(started)) { (words::duration(now_ms - started)) },
                    None => "–",
                }
            }
            td {
                @match &job.waiting {
                    Some(waiting) => (words::waiting(waiting)),
                    None => "–",
                }
            }
            td.number { (words::starts(job.waiting.as_ref(), now_ms)) }
            td { (job_id(&job.job.to_string())) }
        }
    }
}

pub(super) fn workers(facts: &Facts) -> Markup {
    let workers = &facts.present.workers;
    html! {
        div.scroll { table {
            caption { "Workers" }
            thead { tr {
                th scope="col" { "State" }
                th scope="col" { "Worker" }
                th scope="col" { "Devices" }
                th.number scope="col" { "Cells" }
                th.number scope="col" { "Warm sessions" }
                th.number scope="col" { "Memory" }
            } }
            tbody {
                @for worker in workers { (worker_row(worker)) }
                @if workers.is_empty() {
                    tr { td.empty colspan="6" {
                        "No worker is connected. Start one with " code { "baton worker" } ", or all on one machine with " code { "baton up" } "."
                    } }
                }
            }
        } }
    }
}

fn worker_row(worker: &WorkerView) -> Markup {
    let (class, mark, state) = match (worker.connected, worker.draining, &worker.paused) {
        (false, ..) => ("stopping", "▲", "away"),
        (true, true, _) => ("waiting", "◐", "leaving"),
        (true, false, Some(_)) => ("waiting", "○", "paused"),
        (true, false, None) => ("running", "●", "connected"),
    };
    html! {
        tr {
            td.state.(class) { span aria-hidden="true" { (mark) } " " (state) @if let Some(why) = &worker.paused { ": " (why) } }
            th scope="row" { (worker.name) }
            td {
                @for (index, device) in worker.devices.iter().enumerate() {
                    @if index > 0 { ", " }
                    (device.model) " (" (words::gibibytes(device.memory_bytes)) ")"
                }
            }
            td.number { (worker.jobs) " of " (worker.slots) }
            td.number { (worker.sessions) }
            td.number {
                @match worker.memory {
                    Some((used, whole)) => { (words::gibibytes(used)) " of " (words::gibibytes(whole)) }
                    None => "–",
                }
            }
        }
    }
}

pub(super) fn finished(facts: &Facts) -> Markup {
    html! {
        div.scroll { table {
            caption { "Last cells" }
            thead { tr {
                th scope="col" { "State" }
                th scope="col" { "Notebook" }
                th scope="col" { "Person" }
                th scope="col" { "Course" }
                th scope="col" { "Worker" }
                th.number scope="col" { "Waited" }
                th.number scope="col" { "Ran for" }
                th scope="col" { "Ended (UTC)" }
                th scope="col" { "Job" }
            } }
            tbody {
                @for job in &facts.finished { (finished_row(job)) }
                @if facts.finished.is_empty() {
                    tr { td.empty colspan="9" { "Nothing has run yet. The last twenty cells will stay here." } }
                }
            }
        } }
    }
}

fn finished_row(job: &JobRow) -> Markup {
    let (mark, state) = words::outcome(job.outcome);
    let class = if job.outcome == Some(Outcome::Ok) {
        "done"
    } else {
        "stopping"
    };
    let finished_ms = job.finished_ms.unwrap_or(job.submitted_ms);
    let waited_until = job.started_ms.unwrap_or(finished_ms);
    let ended = words::absolute(finished_ms);
    html! {
        tr {
            td.state.(class) { span aria-hidden="true" { (mark) } " " (state) }
            th scope="row" { (job.notebook_name) }
            td { (job.account.owner) }
            td { (words::course(&job.account.course)) }
            td { (job.worker_name.as_deref().unwrap_or("–")) }
            td.number { (words::duration(waited_until - job.submitted_ms)) }
            td.number {
                @match job.started_ms {
                    Some(started) => (words::duration(finished_ms - started)),
                    None => "–",
                }
            }
            td { time title=(ended) { (ended.get(11..19).unwrap_or_default()) } }
            td { (job_id(&job.job.to_string())) }
        }
    }
}

/// The end differs where the beginning, a time, may not.
fn job_id(id: &str) -> Markup {
    html! { code title=(id) { (id.get(id.len().saturating_sub(8)..).unwrap_or(id)) } }
}
