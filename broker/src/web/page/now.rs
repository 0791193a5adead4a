//! The first page: what runs where, who waits and why, and the last day.

use super::{
    Facts,
    layout::{Fragment, element, short},
    time::Zone,
};
use crate::{clock::HOUR_MS, web::Caller, words};
use baton_broker_queue::{JobView, Phase, WorkerView};
use baton_broker_store::{JobRow, Span};
use baton_charts::{Mark, Series, Timeline};
use baton_protocol::{
    JobId, Outcome,
    api::WorkerState,
    worker::{GpuLoad, SessionLoad},
};
use maud::{Markup, html};

/// How many free slots are drawn one by one.
const MOST_FREE: usize = 32;
/// The time between two values of the last day.
const STEP_MS: i64 = 10 * 60_000;

pub(super) fn main(facts: &Facts, caller: &Caller) -> Markup {
    let fragments = fragments(facts, caller);
    html! {
        h1.skip { "Now" }
        // Screen readers announce the sentence when it changes, but not the rest.
        div aria-live="polite" { (element(&fragments, "now")) }
        (element(&fragments, "machines"))
        section.card { (element(&fragments, "queue")) }
        section.card {
            h2 { "Last 24 hours" }
            (element(&fragments, "day"))
            details { summary { "As a table" } (element(&fragments, "day-table")) }
        }
        section.card { (element(&fragments, "finished")) }
    }
}

pub(super) fn fragments(facts: &Facts, caller: &Caller) -> Vec<Fragment> {
    vec![
        ("now", sentence(facts).into_string()),
        ("machines", machines(facts, caller).into_string()),
        ("queue", queue(facts).into_string()),
        ("day", day(facts).into_string()),
        ("day-table", day_table(facts).into_string()),
        ("finished", finished(facts, caller).into_string()),
    ]
}

/// The sentence that summarises the present.
fn sentence(facts: &Facts) -> Markup {
    let present = &facts.present;
    let longest = present.longest_wait_ms.map(|since| facts.now_ms - since);
    let connected = present.workers.iter().filter(|worker| worker.connected);
    let open = present.open_slots();
    let in_state = |state| {
        let workers = present.workers.iter();
        workers.filter(|worker| worker.state() == state).count()
    };
    let (drained, disconnected) = (
        in_state(WorkerState::Drained),
        in_state(WorkerState::Disconnected),
    );
    let run = present.running - present.starting;
    let wait = present.waiting - present.held_back;
    html! {
        p.now {
            (words::capital(&words::count(run, "cell runs", "cells run"))) ", "
            @if present.starting > 0 { (words::count(present.starting, "cell starts", "cells start")) ", " }
            (words::count(wait, "cell waits", "cells wait"))
            @if let Some(longest) = longest { ", the longest for " (words::rough(longest)) }
            @if present.held_back > 0 { ", and " (present.held_back) @if present.held_back == 1 { " is" } @else { " are" } " held back" }
            "."
        }
        p.quiet {
            (words::capital(&words::count(connected.count(), "worker is connected", "workers are connected")))
            @if open > 0 { ", " (present.free_slots()) " of " (words::count(usize::try_from(open).unwrap_or(usize::MAX), "slot", "slots")) " free" }
            @if drained > 0 { ", " (drained) " drained" }
            @if disconnected > 0 { ", " strong { (disconnected) " disconnected" } }
            "."
        }
    }
}

fn machines(facts: &Facts, caller: &Caller) -> Markup {
    let workers = &facts.present.workers;
    html! {
        section aria-label="Workers" {
            ul.cards {
                @for worker in workers { li.card.worker { (machine(worker, facts, caller)) } }
                @if workers.is_empty() {
                    li."card empty" { "No worker is connected. Start one with " code { "baton worker" } ", or all on one machine with " code { "baton up" } "." }
                }
            }
        }
    }
}

fn machine(worker: &WorkerView, facts: &Facts, caller: &Caller) -> Markup {
    let jobs: Vec<&JobView> = facts
        .running
        .iter()
        .filter(|job| job.worker_id == Some(worker.id))
        .collect();
    let free = (worker.slots as usize).saturating_sub(jobs.len());
    let empty = if worker.is_open() { "free" } else { "closed" };
    html! {
        header { h2 { (worker.name) } (worker_state(worker)) }
        p."quiet small" {
            (devices(worker)) ", " (jobs.len()) " of " (worker.slots) " slots busy"
            @if let Some(why) = worker.reason() { br; (why) }
        }
        ul.slots {
            @for job in &jobs { (slot(job, facts, caller)) }
            @for _ in 0..free.min(MOST_FREE) { li."slot free" { (empty) } }
            @if free > MOST_FREE { li."slot free" { (free - MOST_FREE) " more " (empty) } }
        }
        @for gpu in &worker.gpus { (gpu_load(gpu, worker.gpus.len(), &jobs, caller)) }
        @if let Some((used, whole)) = worker.memory { div.memory { (memory(&jobs, used, whole, caller)) } }
    }
}

fn slot(job: &JobView, facts: &Facts, caller: &Caller) -> Markup {
    let moving = job.phase == Phase::Assigned;
    let time = match job.started_ms {
        Some(started) => {
            html! { span title=(facts.zone.text(started)) data-title=[facts.zone.for_browsers(started)] {
                (words::duration(facts.now_ms - started))
                @if let Some(most) = job.timeout_ms { span.quiet { " of " (words::span(most)) } }
            } }
        }
        None => html! { span.quiet { "sending its state" } },
    };
    let seen = caller.identity.may_see(&job.account);
    html! {
        li.slot.moving[moving] id=[seen.then(|| format!("runs-{}", job.job))] {
            @if seen {
                b { (job.account.owner) }
                (time)
                span.cell {
                    (job_link(&job.job, &words::title(job.kind, &job.notebook_name, job.execution_count)))
                    @if job.cancel_wanted { " (being cancelled)" }
                }
            } @else {
                span.quiet { (another_person(job, caller)) }
                (time)
            }
        }
    }
}

/// How busy a GPU is, and whose memory it holds.
fn gpu_load(gpu: &GpuLoad, of: usize, jobs: &[&JobView], caller: &Caller) -> Markup {
    let name = match of {
        1 => "GPU".to_owned(),
        _ => format!("GPU {}", gpu.index),
    };
    let who = |session: &SessionLoad| {
        let job = jobs.iter().find(|job| job.notebook == session.notebook);
        job.map_or("a warm session", |job| person(job, caller))
    };
    let sessions = gpu.sessions.iter();
    let memory = sessions.clone().map(|one| (who(one), one.memory_bytes));
    let (parts, label) = by_session(memory, gpu.memory_used_bytes, baton_humanize::bytes);
    html! {
        @if let Some(busy) = gpu.utilisation_percent {
            @let computing = sessions.filter_map(|one| Some((who(one), one.utilisation_percent.filter(|part| *part > 0)?.into())));
            @let (parts, label) = by_session(computing, busy.into(), |part| format!("{part} %"));
            div.memory {
                (baton_charts::parts(&parts, 100, &format!("{name} busy by session: {label}")))
                p."quiet small" { (name) " " (busy) " % busy" }
            }
        }
        div.memory {
            (baton_charts::parts(&parts, gpu.memory_total_bytes, &format!("{name} memory by session: {label}")))
            p."quiet small" { (name) " memory " (baton_humanize::bytes(gpu.memory_used_bytes)) " of " (baton_humanize::bytes(gpu.memory_total_bytes)) }
        }
    }
}

fn memory(jobs: &[&JobView], used: u64, whole: u64, caller: &Caller) -> Markup {
    let in_cells = jobs.iter().filter_map(|job| {
        let (_, bytes) = job.memory.0.last()?;
        Some((person(job, caller), *bytes))
    });
    let known: u64 = in_cells.clone().map(|(_, bytes)| bytes).sum();
    let (parts, label) = by_session(in_cells, used, baton_humanize::bytes);
    html! {
        (baton_charts::parts(&parts, whole, &format!("Memory by session: {label}")))
        p."quiet small" { "Memory " (baton_humanize::bytes(used)) " of " (baton_humanize::bytes(whole)) @if known > 0 { ", " (baton_humanize::bytes(known)) " in cells" } }
    }
}

fn person<'a>(job: &'a JobView, caller: &Caller) -> &'a str {
    match caller.identity.may_see(&job.account) {
        true => &job.account.owner,
        false => "another person",
    }
}

/// The text for a person whose name the caller may not see.
fn another_person(job: &JobView, caller: &Caller) -> String {
    let course = &job.account.course;
    let mut own = caller.identity.courses();
    match own.any(|own| own == course) {
        true => format!("another person in {course}"),
        false => "a person in another course".to_owned(),
    }
}

/// The parts of a bar, and all of them as a text.
fn by_session<'a>(
    sessions: impl Iterator<Item = (&'a str, u64)>,
    used: u64,
    in_words: impl Fn(u64) -> String,
) -> (Vec<(&'static str, u64, String)>, String) {
    let words = |who, amount| format!("{who}: {}", in_words(amount));
    let part = |(who, amount)| ("run edge", amount, words(who, amount));
    let mut parts: Vec<_> = sessions.map(part).collect();
    let known: u64 = parts.iter().map(|(_, amount, _)| amount).sum();
    let other = used.saturating_sub(known);
    parts.push(("other", other, words("everything else", other)));
    let label: Vec<&str> = parts.iter().map(|(_, _, words)| words.as_str()).collect();
    let label = label.join(", ");
    (parts, label)
}

pub(super) fn worker_state(worker: &WorkerView) -> Markup {
    let (class, mark, state) = match worker.state() {
        WorkerState::Disconnected => ("bad", "▲", "disconnected"),
        WorkerState::Leaving => ("busy", "◐", "leaving"),
        WorkerState::Drained => ("busy", "◇", "drained"),
        WorkerState::Failing => ("bad", "▲", "failing"),
        WorkerState::Connected => ("good", "●", "connected"),
    };
    html! { span.state.(class) { span aria-hidden="true" { (mark) } " " (state) } }
}

pub(super) fn devices(worker: &WorkerView) -> String {
    let devices: Vec<String> = worker
        .devices
        .iter()
        .map(|device| {
            format!(
                "{} ({})",
                device.model,
                baton_humanize::bytes(device.memory_bytes)
            )
        })
        .collect();
    devices.join(", ")
}

fn queue(facts: &Facts) -> Markup {
    let others = facts.present.waiting.saturating_sub(facts.waiting.len());
    html! {
        div."scroll tall" tabindex="0" role="region" aria-label="Waiting cells" { table {
            caption { "Waiting" }
            thead { tr {
                th.number scope="col" { "Place" }
                th scope="col" { "Person" }
                th scope="col" { "Cell" }
                th scope="col" { "Course" }
                th.number scope="col" { "Waited" }
                th scope="col" { "Starts in" }
                th scope="col" { "Why it waits" }
            } }
            tbody {
                @for job in &facts.waiting { (queue_row(job, facts)) }
                @if facts.present.waiting == 0 {
                    tr { td.empty colspan="7" { "No one is waiting. A cell with " code { "%%gpu" } " on its first line will appear here." } }
                }
                @if others > 0 {
                    tr { td."quiet" colspan="7" {
                        @if !facts.waiting.is_empty() { "and " }
                        (words::count(others, "cell of another person", "cells of other people"))
                    } }
                }
            }
        } }
    }
}

fn queue_row(job: &JobView, facts: &Facts) -> Markup {
    let now_ms = facts.now_ms;
    let place = job.waiting.as_ref().map_or_else(String::new, |waiting| {
        match waiting.last_position > waiting.position {
            true => format!("{}–{}", waiting.position, waiting.last_position),
            false => waiting.position.to_string(),
        }
    });
    // With an id, a row keeps its identity and its focus while it moves.
    html! {
        tr id={ "waits-" (job.job) } {
            td."number place" { (place) }
            th scope="row" { (job.account.owner) }
            td { (job_link(&job.job, &words::title(job.kind, &job.notebook_name, job.execution_count))) }
            td { (words::course(&job.account.course)) }
            td.number title=(facts.zone.text(job.submitted_ms)) data-title=[facts.zone.for_browsers(job.submitted_ms)] { (words::duration(now_ms - job.submitted_ms)) }
            td { (words::starts(job.waiting.as_ref(), now_ms)) }
            td.words {
                @if job.held { span."state busy" { span aria-hidden="true" { "◇ " } "held" } " " }
                @if job.front { span."state good" { span aria-hidden="true" { "▲ " } "first" } " " }
                @if let Some(waiting) = &job.waiting { (words::why(waiting)) }
            }
        }
    }
}

fn job_link(job: &JobId, title: &str) -> Markup {
    html! { a href={ "job?id=" (job) } { (title) } }
}

/// Running and waiting cells of the last day.
fn day(facts: &Facts) -> Markup {
    let series = |class, filled, value: fn(&Span) -> f64| Series {
        class,
        filled,
        points: (facts
            .past
            .day
            .iter()
            .map(|span| (span.start_ms, value(span))))
        .collect(),
    };
    let mark = |hours| {
        let at_ms = facts.now_ms - hours * HOUR_MS;
        Mark {
            at_ms,
            text: facts.zone.clock_text(at_ms),
            clock: facts.zone.for_browsers(at_ms),
        }
    };
    let chart = Timeline {
        label: "Waiting and running cells of the last 24 hours; the table below has the same data",
        now_ms: facts.now_ms,
        span_ms: 24 * HOUR_MS,
        gap_ms: 2 * STEP_MS,
        marks: [24, 18, 12, 6].map(mark).into(),
        series: vec![
            series("line wait", false, |span| span.waiting as f64),
            series("line", true, |span| span.running),
            series("limit", false, |span| span.slots as f64),
        ],
    };
    html! {
        (chart.svg())
        ul.key {
            li { svg viewBox="0 0 12 12" aria-hidden="true" { rect.run width="12" height="12" rx="3" {} } "running" }
            li { svg viewBox="0 0 12 12" aria-hidden="true" { rect.wait width="12" height="12" rx="3" {} } "waiting" }
            li { svg viewBox="0 0 12 12" aria-hidden="true" { path.limit d="M0 6H12" {} } "slots" }
        }
    }
}

fn day_table(facts: &Facts) -> Markup {
    html! {
        div.scroll { table {
            caption { "Cells in the last 24 hours, newest first" }
            thead { tr {
                th scope="col" { "From" }
                th.number scope="col" { "Running" }
                th.number scope="col" { "Peak waiting" }
                th.number scope="col" { "Slots" }
            } }
            tbody { @for span in facts.past.day.iter().rev() {
                tr {
                    th scope="row" { (facts.zone.clock(span.start_ms)) }
                    td.number { (format!("{:.1}", span.running)) }
                    td.number { (span.waiting) }
                    td.number { (span.slots) }
                }
            } }
        } }
    }
}

fn finished(facts: &Facts, caller: &Caller) -> Markup {
    let empty = match caller.identity.sees_only() {
        None => "Nothing has run yet. The last twenty cells will appear here.",
        Some(_) => "No cell that you can see has ended yet. The last twenty will appear here.",
    };
    html! {
        div.scroll tabindex="0" role="region" aria-label="Last cells" { table {
            caption { "Last cells" }
            thead { tr {
                th scope="col" { "End" }
                th scope="col" { "Person" }
                th scope="col" { "Cell" }
                th scope="col" { "Course" }
                th scope="col" { "Worker" }
                th.number scope="col" { "Waited" }
                th.number scope="col" { "Ran for" }
                th scope="col" { "Ended" }
                th scope="col" { "Job" }
            } }
            tbody {
                @for job in &facts.past.finished { (finished_row(job, &facts.zone)) }
                @if facts.past.finished.is_empty() {
                    tr { td.empty colspan="9" { (empty) } }
                }
            }
        } }
    }
}

fn finished_row(job: &JobRow, zone: &Zone) -> Markup {
    let finished_ms = job.finished_ms.unwrap_or(job.submitted_ms);
    let waited_until = job.started_ms.unwrap_or(finished_ms);
    let id = job.job.to_string();
    html! {
        tr id={ "ended-" (id) } {
            td { (outcome(job.outcome)) }
            th scope="row" { (job.account.owner) }
            td { (job_link(&job.job, &words::title(job.kind, &job.notebook_name, job.execution_count))) }
            td { (words::course(&job.account.course)) }
            td { (job.worker_name.as_deref().unwrap_or("–")) }
            td.number { (words::duration(waited_until - job.submitted_ms)) }
            td.number {
                @match job.ran_ms(finished_ms) {
                    Some(ran_ms) => (words::duration(ran_ms)),
                    None => "–",
                }
            }
            td { (zone.clock(finished_ms)) }
            td { code title=(id) { (short(&id)) } }
        }
    }
}

pub(super) fn outcome(outcome: Option<Outcome>) -> Markup {
    let (mark, state) = words::outcome(outcome);
    let class = match outcome {
        Some(Outcome::Ok) => "good",
        Some(Outcome::Cancelled) | None => "busy",
        Some(_) => "bad",
    };
    html! { span.state.(class) { span aria-hidden="true" { (mark) } " " (state) } }
}
