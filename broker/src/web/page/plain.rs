//! The present state as plain text, for `baton status` and for terminals.

use super::Facts;
use crate::{web::Caller, words};
use baton_broker_queue::{JobView, Phase, WorkerView};
use baton_protocol::api::WorkerState;

pub(super) fn status(facts: &Facts, caller: &Caller) -> String {
    let running = facts.running.iter();
    let seen = running.filter(|job| caller.identity.may_see(&job.account));
    let mut jobs: Vec<String> = seen
        .chain(&facts.waiting)
        .map(|job| job_line(job, facts.now_ms))
        .collect();
    let others = (facts.present.running + facts.present.waiting) - jobs.len();
    if others > 0 {
        jobs.push(words::count(
            others,
            "cell of another person",
            "cells of other people",
        ));
    }
    let workers: Vec<String> = facts.present.workers.iter().map(worker_line).collect();
    format!(
        "{}{}",
        section("Workers", &workers, "no worker is connected"),
        section(
            "Cells",
            &jobs,
            "no cell runs or waits; put %%gpu at the top of a cell to run it here"
        ),
    )
}

fn section(title: &str, lines: &[String], empty: &str) -> String {
    match lines {
        [] => format!("{title}: {empty}\n"),
        lines => format!("{title}:\n  {}\n", lines.join("\n  ")),
    }
}

fn worker_line(worker: &WorkerView) -> String {
    let state = match worker.state() {
        WorkerState::Disconnected => "disconnected",
        WorkerState::Leaving => "leaving",
        WorkerState::Drained => "drained",
        WorkerState::Failing => "failing",
        WorkerState::Connected => "connected",
    };
    let devices: Vec<&str> = worker
        .devices
        .iter()
        .map(|device| device.model.as_str())
        .collect();
    format!(
        "{} ({}): {state}, {} of {} slots busy, {}",
        worker.name,
        devices.join(", "),
        worker.jobs,
        worker.slots,
        words::count(worker.sessions, "warm session", "warm sessions"),
    )
}

fn job_line(job: &JobView, now_ms: i64) -> String {
    let since = |ms: i64| words::duration(now_ms - ms);
    let worker = job.worker.as_deref().unwrap_or("a worker");
    let state = match (job.phase, job.started_ms) {
        _ if job.cancel_wanted => "being cancelled".to_owned(),
        (Phase::Assigned, _) => format!("sending its state to {worker}"),
        (Phase::Started, Some(started)) => format!("running on {worker} for {}", since(started)),
        _ => {
            let why = job.waiting.as_ref().map_or_else(String::new, |waiting| {
                format!(": {}", words::waiting(waiting))
            });
            format!("waiting for {}{why}", since(job.submitted_ms))
        }
    };
    let title = words::title(job.kind, &job.notebook_name, job.execution_count);
    format!("{title} of {}: {state}", job.account.owner)
}
