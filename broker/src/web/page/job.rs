//! One job: its timeline, output, memory and end, and the actions on it.

use super::{
    facts,
    form::{Refused, complaint, is_wrong, value},
    layout::{Fragment, Page, element, form_key, short},
    now::outcome,
    output,
    time::Zone,
};
use crate::{
    clock::unix_ms,
    engine::Event,
    web::{ApiError, Caller, Shared},
    words,
};
use baton_broker_queue::{Account, JobView, Phase};
use baton_broker_store::{JobDetail, JobRow};
use baton_protocol::{JobId, Outcome, RemoteError};
use maud::{Markup, html};

/// The present state of a job. Output, code and error are included only for people who may read them.
pub(super) struct JobFacts {
    now_ms: i64,
    zone: Zone,
    detail: JobDetail,
    live: Option<JobView>,
    output: Option<String>,
    code: Option<String>,
    error: Option<RemoteError>,
    may_steer: bool,
}

/// Returns `None` if there is no such job for this caller.
pub(super) async fn look(
    shared: &Shared,
    caller: &Caller,
    job: JobId,
) -> Result<Option<JobFacts>, ApiError> {
    let Some(mut detail) = shared.store.jobs().detail(&caller.identity, job).await? else {
        return Ok(None);
    };
    let present = crate::web::api::ask(shared, Event::Overview).await?;
    let live = present.jobs.into_iter().find(|live| live.job == job);
    let account = &detail.row.account;
    let own = caller.is_owner(&account.owner);
    let may_read = own || staff_may_read(shared, caller, account).await?;
    let output = match may_read {
        true => Some(output::text(&shared.store, job).await?),
        false => None,
    };
    let code = match own {
        true => shared
            .store
            .jobs()
            .submission(job)
            .await?
            .map(|submission| submission.cell.code),
        false => None,
    };
    let error = detail.error.take().map(|error| match may_read {
        true => error,
        false => without_values(error),
    });
    Ok(Some(JobFacts {
        now_ms: unix_ms(),
        zone: Zone::of(shared),
        may_steer: caller.identity.may_steer(&account.course),
        live,
        output,
        code,
        error,
        detail,
    }))
}

async fn staff_may_read(
    shared: &Shared,
    caller: &Caller,
    account: &Account,
) -> Result<bool, ApiError> {
    let courses = crate::web::api::courses_of(shared, caller).await?;
    let course = courses
        .iter()
        .find(|course| course.course == account.course);
    Ok(course.is_some_and(|course| course.staff_see_outputs))
}

/// Errors of Baton itself contain nothing of the cell. Errors of Python may contain any value.
fn without_values(error: RemoteError) -> RemoteError {
    if error.traceback.is_empty() && error.hint.is_some() {
        return error;
    }
    RemoteError {
        name: error.name,
        value: String::new(),
        traceback: Vec::new(),
        hint: None,
    }
}

pub(super) fn page(job: &JobFacts, caller: &Caller, refused: Option<&Refused>) -> Page {
    let row = &job.detail.row;
    let id = row.job.to_string();
    let title = words::title(row.kind, &row.notebook_name, row.execution_count);
    let fragments = fragments(job);
    Page {
        here: "",
        live: Some(format!("live?of=job&id={id}")),
        main: html! {
            div.head {
                h1 { (title) }
                p.quiet { "of " (row.account.owner) ", " (words::course(&row.account.course)) ", job " code title=(id) { (short(&id)) } }
            }
            section.card { div aria-live="polite" { (element(&fragments, "job")) } }
            @if job.detail.row.phase != Phase::Finished { (acts(job, &fragments, caller, refused)) }
            @else { (complaint(refused, "action")) }
            (element(&fragments, "error"))
            section.card { h2 { "Output" } (element(&fragments, "output")) }
            div.pair {
                section.card { h2 { "Facts" } (element(&fragments, "facts")) }
                section.card { h2 { "Memory" } (element(&fragments, "memory")) }
            }
            @if let Some(code) = &job.code { section.card { h2 { "Code" } pre tabindex="0" { (code.trim()) } } }
        },
        title,
    }
}

pub(super) fn fragments(job: &JobFacts) -> Vec<Fragment> {
    vec![
        ("job", time_line(job).into_string()),
        ("acts", buttons(job).into_string()),
        ("error", error(job).into_string()),
        ("output", output(job).into_string()),
        ("facts", facts_of(job).into_string()),
        ("memory", memory(job).into_string()),
    ]
}

fn time_line(job: &JobFacts) -> Markup {
    let detail = &job.detail;
    let row = &detail.row;
    let end = row.finished_ms.unwrap_or(job.now_ms);
    let assigned = detail.assigned_ms.filter(|_| row.phase != Phase::Queued);
    let moved = row.started_ms.or(assigned.map(|_| end)).unwrap_or(end);
    let queued = assigned.unwrap_or(moved) - row.submitted_ms;
    let moving = assigned.map_or(0, |assigned| moved - assigned);
    let ran = row.ran_ms(job.now_ms).unwrap_or(0);
    let mut steps = vec![("wait", "waited", queued)];
    steps.extend(assigned.map(|_| ("move", "moved its state", moving)));
    steps.extend(row.started_ms.map(|_| ("run", "ran", ran)));
    let parts: Vec<_> = steps
        .iter()
        .map(|(class, what, ms)| {
            let words = format!("{what} for {}", words::duration(*ms));
            (*class, (*ms).max(0).unsigned_abs(), words)
        })
        .collect();
    let whole = parts.iter().map(|(_, ms, _)| ms).sum();
    let said: Vec<&str> = parts.iter().map(|(_, _, words)| words.as_str()).collect();
    html! {
        p.now { (state(job)) }
        div.memory { (baton_charts::parts(&parts, whole, &format!("Time line: {}", said.join(", ")))) }
        ul.key { @for (class, what, ms) in &steps {
            li { svg viewBox="0 0 12 12" aria-hidden="true" { rect.(class) width="12" height="12" rx="3" {} } (what) " for " (words::exact(*ms)) }
        } }
    }
}

fn state(job: &JobFacts) -> Markup {
    let row = &job.detail.row;
    let worker = row.worker_name.as_deref().unwrap_or("a worker");
    match (row.phase, &job.live) {
        (Phase::Finished, _) => html! { (outcome(row.outcome)) (stopped(row)) },
        (_, Some(live)) if live.cancel_wanted => html! { "Being cancelled" (stopped(row)) },
        (Phase::Queued, Some(live)) => html! {
            "Waiting: " (words::reason(live.waiting.as_ref()))
            @if live.waiting.as_ref().is_some_and(|waiting| waiting.estimate(job.now_ms).is_some()) {
                ", starts in " (words::starts(live.waiting.as_ref(), job.now_ms))
            }
        },
        (Phase::Queued, None) => html! { "Waiting" },
        (Phase::Assigned, _) => html! { "Sending its state to " (worker) },
        (Phase::Started, _) => html! {
            "Running on " (worker)
            @if let Some(most) = row.timeout_ms { ", for at most " (words::span(most)) }
        },
    }
}

fn stopped(row: &JobRow) -> Markup {
    html! { @if let Some(stopped) = words::stopped(row) { ". " (stopped) } }
}

fn error(job: &JobFacts) -> Markup {
    let Some(error) = &job.error else {
        return html! {};
    };
    // An error of a successful job is not the cell's.
    if job.detail.row.outcome == Some(Outcome::Ok) {
        return html! {};
    }
    let traceback: Vec<String> = error
        .traceback
        .iter()
        .map(|lines| output::without_escapes(lines))
        .collect();
    html! {
        section."card problem" {
            h2 { (error.name) }
            @if error.value.is_empty() && traceback.is_empty() {
                p.quiet { "Only the owner of the notebook can read the message and traceback." }
            }
            @if traceback.is_empty() { p { (error.value) } } @else { pre tabindex="0" { (traceback.join("\n")) } }
            @if let Some(hint) = error.hint.as_ref().filter(|_| traceback.is_empty()) { p.quiet { "hint: " (hint) } }
        }
    }
}

fn output(job: &JobFacts) -> Markup {
    match &job.output {
        None => {
            html! { p.quiet { "Only the owner of the notebook can read the output. A course can allow its staff to read it." } }
        }
        Some(text) if !text.is_empty() => html! {
            pre tabindex="0" { (text) }
            @if job.detail.row.phase == Phase::Finished {
                p.quiet { "Only the end of the output is kept here, for a day after the cell ends." }
            }
        },
        Some(_) if job.detail.row.phase == Phase::Finished => {
            html! { p.quiet { "No output is kept here. The end of a cell's output is kept for a day after it ends." } }
        }
        Some(_) => html! { p.quiet { "Nothing yet." } },
    }
}

fn facts_of(job: &JobFacts) -> Markup {
    let detail = &job.detail;
    let row = &detail.row;
    let moment =
        |ms: Option<i64>| html! { @match ms { Some(ms) => (job.zone.moment(ms)), None => "–" } };
    let bytes = |bytes: Option<u64>| bytes.map_or_else(|| "–".to_owned(), baton_humanize::bytes);
    html! {
        dl.facts {
            dt { "Submitted" } dd { (job.zone.moment(row.submitted_ms)) }
            dt { "Assigned" } dd { (moment(detail.assigned_ms)) }
            dt { "Started" } dd { (moment(row.started_ms)) }
            dt { "Ended" } dd { (moment(row.finished_ms)) }
            dt { "Worker" } dd { (row.worker_name.as_deref().unwrap_or("–")) }
            dt { "Time limit" } dd { (row.timeout_ms.map_or_else(|| "none".to_owned(), words::span)) }
            dt { "State sent" } dd { (bytes(detail.sent_bytes)) }
            dt { "State returned" } dd { (bytes(detail.returned_bytes)) }
            @if let Some(gpu) = &detail.gpu {
                dt { "Held the GPU for" } dd { (words::exact(gpu.held_ms.cast_signed())) }
                dt { "Waited for the GPU" } dd { (words::exact(gpu.waited_ms.cast_signed())) }
                dt { "Returned to the GPU" } dd { (gpu.swaps) @if gpu.swaps == 1 { " time" } @else { " times" } }
                dt { "Peak GPU memory" } dd { (baton_humanize::bytes(gpu.peak_memory_bytes)) }
            }
            dt { "Job" } dd { code { (row.job) } }
            @if let Some(group) = row.group { dt { "Group" } dd { code { (group) } } }
        }
    }
}

fn memory(job: &JobFacts) -> Markup {
    let live = job.live.as_ref().map(|live| &live.memory.0);
    let points = live
        .filter(|points| !points.is_empty())
        .unwrap_or(&job.detail.memory.0);
    html! {
        @if let [(_, first), .., (_, last)] = points[..] { (memory_chart(points, first, last)) }
        @else {
            p.quiet {
                @match job.detail.row.peak_memory_bytes {
                    Some(peak) if peak > 0 => { "At most " (baton_humanize::bytes(peak)) ". The run was too short for a curve." }
                    _ => "Not measured yet.",
                }
            }
        }
    }
}

/// The memory of a session while a cell ran, as a chart and as a sentence.
fn memory_chart(points: &[(i64, u64)], first: u64, last: u64) -> Markup {
    let peak = points.iter().map(|(_, bytes)| *bytes).max().unwrap_or(0);
    let words = format!(
        "Memory of the session, from {} to {}, {} at most",
        baton_humanize::bytes(first),
        baton_humanize::bytes(last),
        baton_humanize::bytes(peak)
    );
    html! {
        (baton_charts::area(points, &words))
        p."quiet small" { (words) }
    }
}

fn acts(
    job: &JobFacts,
    fragments: &[Fragment],
    caller: &Caller,
    refused: Option<&Refused>,
) -> Markup {
    html! {
        section.card #act {
            h2 { "Act" }
            form.act method="post" action="act" {
                (form_key(caller))
                input type="hidden" name="job" value=(job.detail.row.job);
                label { "Reason" small { "The owner reads it, and it is recorded." } (complaint(refused, "reason")) input name="reason" maxlength="500" autocomplete="off" value=(value(refused, "reason", "")) autofocus[is_wrong(refused, "reason")]; }
                (complaint(refused, "action"))
                (element(fragments, "acts"))
            }
        }
    }
}

/// The actions that the cell permits now. After its end there are none, even on a page that stays open.
fn buttons(job: &JobFacts) -> Markup {
    let phase = job.detail.row.phase;
    let waits = phase == Phase::Queued && job.may_steer;
    let held = job.live.as_ref().is_some_and(|live| live.held);
    let cancelled = job.live.as_ref().is_some_and(|live| live.cancel_wanted);
    html! {
        @if phase == Phase::Finished { p."quiet over" { "The cell has ended." } }
        @else if cancelled { p."quiet over" { "The cell is being cancelled." } }
        @else {
            div.buttons {
                @if waits {
                    button.first name="action" value="move_to_front" { "Move to the front" }
                    @if held { button name="action" value="release" { "Release" } }
                    @else { button name="action" value="hold" { "Hold back" } }
                }
                button.danger name="action" value="cancel" { "Cancel this cell" }
            }
        }
    }
}

/// The changing parts of the page.
pub(super) async fn live(shared: &Shared, caller: &Caller, job: JobId) -> Option<Vec<Fragment>> {
    facts::some(look(shared, caller, job).await).map(|job| fragments(&job))
}
