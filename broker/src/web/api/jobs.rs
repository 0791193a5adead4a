//! Jobs: a list, a single job, and the explanation of its queue position.

use super::{ApiError, Asked, Refusal, ask, paging};
use crate::{
    clock::unix_ms,
    engine::Event,
    web::{Caller, Shared},
    words,
};
use axum::{
    Extension, Json,
    extract::{Path, State},
};
use baton_broker_queue::{Overview, Phase};
use baton_broker_store::{JobFilter, JobRow};
use baton_protocol::{
    JobId,
    api::{Explanation, Job, JobState, Page, Waiting, WaitingRule},
    proxy::WaitingReason,
};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct JobsQuery {
    #[param(inline)]
    state: Option<AskedState>,
    person: Option<String>,
    course: Option<String>,
    /// The last hexadecimal digits of the job's id, as in error messages and pages.
    ends_with: Option<String>,
    /// The last hexadecimal digits of the id of the job's group, such as an array.
    group: Option<String>,
    /// How many at most; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// The `next` of the previous page.
    after: Option<String>,
}

#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum AskedState {
    Queued,
    Assigned,
    Started,
    Finished,
    Unfinished,
}

/// Jobs, newest first
#[utoipa::path(get, path = "/v1/jobs", operation_id = "jobs", params(JobsQuery),
    responses((status = 200, body = Page<Job>, description = "The answer"), Refusal))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Asked(asked): Asked<JobsQuery>,
) -> Result<Json<Page<Job>>, ApiError> {
    let size = paging::size(asked.limit)?;
    let filter = asked.filter()?;
    let rows = shared
        .store
        .jobs()
        .matching(&caller.identity, &filter, size + 1)
        .await?;
    let present = ask(&shared, Event::Overview).await?;
    let now_ms = unix_ms();
    let cursor = |row: &JobRow| row.sequence.to_string();
    let page = paging::page(rows, size, cursor, |row| job(row, &present, now_ms));
    Ok(Json(page))
}

/// One job
#[utoipa::path(get, path = "/v1/jobs/{job}", operation_id = "job", params(("job" = String, Path)),
    responses((status = 200, body = Job, description = "The answer"), Refusal))]
pub(super) async fn one(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
) -> Result<Json<Job>, ApiError> {
    find(&shared, &caller, job).await.map(Json)
}

/// Why a job has its queue position
#[utoipa::path(get, path = "/v1/jobs/{job}/explanation", operation_id = "explanation", params(("job" = String, Path)),
    responses((status = 200, body = Explanation, description = "The answer"), Refusal))]
pub(super) async fn explanation(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
) -> Result<Json<Explanation>, ApiError> {
    let job = find(&shared, &caller, job).await?;
    let queue = ask(&shared, |answer| Event::Explain(job.job, answer)).await?;
    Ok(Json(Explanation {
        sentence: words::explanation(&job, unix_ms()),
        queue: queue.filter(|_| job.waiting.is_some()),
        job,
    }))
}

/// Another person's job is as unknown as one that does not exist.
pub(super) async fn find(shared: &Shared, caller: &Caller, job: String) -> Result<Job, ApiError> {
    let Ok(id) = job.parse::<JobId>() else {
        return Err(ApiError::UnknownJob { job });
    };
    let filter = JobFilter {
        ends_with: Some(id.to_string()),
        ..JobFilter::default()
    };
    let mut rows = shared
        .store
        .jobs()
        .matching(&caller.identity, &filter, 1)
        .await?;
    let row = rows.pop().ok_or(ApiError::UnknownJob { job })?;
    let present = ask(shared, Event::Overview).await?;
    Ok(self::job(row, &present, unix_ms()))
}

impl JobsQuery {
    fn filter(self) -> Result<JobFilter, ApiError> {
        let phases = match self.state {
            None => vec![],
            Some(AskedState::Queued) => vec![Phase::Queued],
            Some(AskedState::Assigned) => vec![Phase::Assigned],
            Some(AskedState::Started) => vec![Phase::Started],
            Some(AskedState::Finished) => vec![Phase::Finished],
            Some(AskedState::Unfinished) => vec![Phase::Queued, Phase::Assigned, Phase::Started],
        };
        let before = self.after.map(|after| after.parse()).transpose();
        Ok(JobFilter {
            phases,
            person: self.person,
            course: self.course,
            ends_with: self
                .ends_with
                .map(|text| digits("ends_with", &text))
                .transpose()?,
            group: self.group.map(|text| digits("group", &text)).transpose()?,
            before: before.map_err(|_| paging::wrong_cursor())?,
        })
    }
}

fn digits(parameter: &str, text: &str) -> Result<String, ApiError> {
    let digits = text.replace('-', "").to_ascii_lowercase();
    let valid = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if valid {
        Ok(digits)
    } else {
        Err(ApiError::Query(format!(
            "`{parameter}` must be the last hexadecimal digits of a job"
        )))
    }
}

fn job(row: JobRow, present: &Overview, now_ms: i64) -> Job {
    let queued = row.phase == Phase::Queued;
    let live = present.jobs.iter().find(|job| job.job == row.job);
    let waiting = live.and_then(|job| job.waiting.as_ref());
    let stopped = words::stopped(&row);
    Job {
        job: row.job,
        state: match row.phase {
            Phase::Queued => JobState::Queued,
            Phase::Assigned => JobState::Assigned,
            Phase::Started => JobState::Started,
            Phase::Finished => JobState::Finished,
        },
        person: row.account.owner,
        course: super::named(row.account.course),
        notebook: row.notebook_name,
        kind: row.kind,
        group: row.group,
        execution_count: row.execution_count.filter(|_| row.kind.is_of_cell()),
        worker: row.worker_name,
        priority: row.priority,
        timeout_ms: row.timeout_ms,
        submitted_ms: row.submitted_ms,
        started_ms: row.started_ms,
        finished_ms: row.finished_ms,
        outcome: row.outcome,
        stopped,
        run_ms: row.run_ms,
        peak_memory_bytes: row.peak_memory_bytes,
        waiting: waiting
            .filter(|_| queued)
            .map(|waiting| self::waiting(waiting, now_ms)),
    }
}

fn waiting(waiting: &baton_broker_queue::Waiting, now_ms: i64) -> Waiting {
    Waiting {
        position: waiting.position,
        last_position: waiting.last_position,
        moved_back: waiting.moved_back,
        rule: match waiting.reason {
            WaitingReason::JobsAhead => WaitingRule::JobsAhead,
            WaitingReason::BehindDeadline { .. } => WaitingRule::BehindDeadline,
            WaitingReason::OwnJobRuns { .. } => WaitingRule::OwnJobRuns,
            WaitingReason::NoWorker => WaitingRule::NoWorker,
            WaitingReason::WorkersPaused { .. } => WaitingRule::WorkersDrained,
            WaitingReason::WorkersFail { .. } => WaitingRule::WorkersFail,
            WaitingReason::CoursePaused { .. } => WaitingRule::CoursePaused,
            WaitingReason::Held { .. } => WaitingRule::Held,
            WaitingReason::BehindMoved {} => WaitingRule::BehindMoved,
            WaitingReason::OwnSession { .. } => WaitingRule::OwnSession,
            WaitingReason::FittingWorkersBusy { .. } => WaitingRule::FittingWorkersBusy,
            WaitingReason::MachineStarting { .. } => WaitingRule::MachineStarting,
            WaitingReason::NoWorkerFits { .. } => WaitingRule::NoWorkerFits,
        },
        sentence: words::waiting(waiting),
        estimate: waiting.estimate(now_ms),
        message: waiting.message.clone(),
    }
}
