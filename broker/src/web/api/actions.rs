//! Actions of programs on jobs, workers and courses. Each is recorded for the audit.

use super::{ApiError, Refusal, ask, courses, jobs, workers};
use crate::{
    engine::Event,
    web::{Caller, Shared},
};
use axum::{
    Extension, Json,
    extract::{FromRequest, Path, Request, State},
};
use baton_broker_queue::{Command, NotDone, courses::Wrong};
use baton_protocol::{
    JobId,
    api::{Course, CourseChange, Job, Why, Worker},
};
use serde::de::DeserializeOwned;

/// Executes a command and records who sent it. Returns after both are stored.
pub(crate) async fn act(
    shared: &Shared,
    caller: &Caller,
    command: Command,
) -> Result<(), ApiError> {
    check_person(shared, caller, &command)?;
    let who = caller.identity.clone();
    let done = ask(shared, |answer| Event::Act(who, command, answer)).await?;
    Ok(done?)
}

/// Only those who may grant hear which names are unknown.
fn check_person(shared: &Shared, caller: &Caller, command: &Command) -> Result<(), NotDone> {
    if let Command::Grant {
        course,
        person: Some(person),
        ..
    } = command
        && caller.identity.may_steer(course)
        && !shared.access.may_be_in_course(person, course)
    {
        let lacks = match shared.access.may_know(person) {
            true => format!("the course {course}"),
            false => "the people file".to_owned(),
        };
        let says = format!("{person} is not in {lacks}: `baton people list` lists everyone");
        return Err(Wrong::new("person", says).into());
    }
    Ok(())
}

/// Stop a job
///
/// People stop their own jobs, and staff also those of their courses. A job that has started is interrupted.
#[utoipa::path(post, path = "/v1/jobs/{job}/cancel", operation_id = "cancel", params(("job" = String, Path)),
    request_body = Why, responses((status = 200, body = Job, description = "The job after the change"), Refusal))]
pub(super) async fn cancel(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    Body(why): Body<Why>,
) -> Result<Json<Job>, ApiError> {
    let reason = why.reason;
    let command = |job| Ok(Command::Cancel { job, reason });
    act_on_job(&shared, &caller, job, command).await
}

/// Hold back a waiting job
///
/// Its owner sees the reason.
#[utoipa::path(post, path = "/v1/jobs/{job}/hold", operation_id = "hold", params(("job" = String, Path)),
    request_body = Why, responses((status = 200, body = Job, description = "The job after the change"), Refusal))]
pub(super) async fn hold(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    Body(why): Body<Why>,
) -> Result<Json<Job>, ApiError> {
    let command = |job| {
        let reason = given(why)?;
        Ok(Command::Hold { job, reason })
    };
    act_on_job(&shared, &caller, job, command).await
}

/// Release a job that is held back
#[utoipa::path(post, path = "/v1/jobs/{job}/release", operation_id = "release", params(("job" = String, Path)),
    responses((status = 200, body = Job, description = "The job after the change"), Refusal))]
pub(super) async fn release(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
) -> Result<Json<Job>, ApiError> {
    act_on_job(&shared, &caller, job, |job| Ok(Command::Release { job })).await
}

/// Move a waiting job to the front
#[utoipa::path(post, path = "/v1/jobs/{job}/front", operation_id = "move_to_front", params(("job" = String, Path)),
    request_body = Why, responses((status = 200, body = Job, description = "The job after the change"), Refusal))]
pub(super) async fn move_to_front(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(job): Path<String>,
    Body(why): Body<Why>,
) -> Result<Json<Job>, ApiError> {
    let command = |job| {
        let reason = given(why)?;
        Ok(Command::MoveToFront { job, reason })
    };
    act_on_job(&shared, &caller, job, command).await
}

/// Drain a worker: it gets no more jobs
///
/// Its running jobs continue. For admins. Waiting people see the reason if no worker accepts cells.
#[utoipa::path(post, path = "/v1/workers/{worker}/drain", operation_id = "drain", params(("worker" = String, Path)),
    request_body = Why, responses((status = 200, body = Worker, description = "The worker after the change"), Refusal))]
pub(super) async fn drain(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(worker): Path<String>,
    Body(why): Body<Why>,
) -> Result<Json<Worker>, ApiError> {
    let reason = given(why)?;
    let command = Command::Drain {
        worker: worker.clone(),
        reason,
    };
    act(&shared, &caller, command).await?;
    the_worker(&shared, worker).await
}

/// Let a drained worker accept jobs again
#[utoipa::path(post, path = "/v1/workers/{worker}/resume", operation_id = "resume", params(("worker" = String, Path)),
    responses((status = 200, body = Worker, description = "The worker after the change"), Refusal))]
pub(super) async fn resume(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(worker): Path<String>,
) -> Result<Json<Worker>, ApiError> {
    let command = Command::Resume {
        worker: worker.clone(),
    };
    act(&shared, &caller, command).await?;
    the_worker(&shared, worker).await
}

/// Change what a course may use
///
/// For its staff. The change overrides the courses file until the next change.
#[utoipa::path(post, path = "/v1/courses/{course}", operation_id = "change_course", params(("course" = String, Path)),
    request_body = CourseChange, responses((status = 200, body = Course, description = "The course after the change"), Refusal))]
pub(super) async fn change_course(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(course): Path<String>,
    Body(change): Body<CourseChange>,
) -> Result<Json<Course>, ApiError> {
    let command = Command::ChangeCourse {
        course: course.clone(),
        change,
    };
    act(&shared, &caller, command).await?;
    let mut known = courses::of(&shared, &caller).await?.into_iter();
    let found = known.find(|known| known.course == course);
    found
        .map(Json)
        .ok_or_else(|| NotDone::UnknownCourse(course).into())
}

async fn act_on_job(
    shared: &Shared,
    caller: &Caller,
    job: String,
    command: impl FnOnce(JobId) -> Result<Command, ApiError>,
) -> Result<Json<Job>, ApiError> {
    // The loop has forgotten finished jobs, so look the job up first: a finished job and an unknown
    // one have different errors.
    let found = jobs::find(shared, caller, job).await?;
    let done = act(shared, caller, command(found.job)?).await;
    if let Err(ApiError::NotDone(NotDone::UnknownJob(_))) = done {
        return Err(NotDone::Over.into());
    }
    done?;
    let job = found.job.to_string();
    jobs::find(shared, caller, job).await.map(Json)
}

async fn the_worker(shared: &Shared, name: String) -> Result<Json<Worker>, ApiError> {
    let present = ask(shared, Event::Overview).await?;
    let mut workers = present.workers.into_iter();
    let found = workers.find(|worker| worker.name == name);
    found
        .map(|worker| Json(workers::worker(worker)))
        .ok_or_else(|| NotDone::UnknownWorker(name).into())
}

fn given(why: Why) -> Result<String, ApiError> {
    why.reason
        .ok_or_else(|| NotDone::from(Wrong::new("reason", "is missing")).into())
}

/// A JSON body. An empty body is the same as `{}`.
pub(super) struct Body<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = axum::body::Bytes::from_request(request, state).await;
        let bytes = bytes
            .map_err(|rejection| ApiError::of_body(rejection.status(), rejection.body_text()))?;
        let bytes: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        serde_json::from_slice(bytes)
            .map(Self)
            .map_err(|error| ApiError::Body(error.to_string()))
    }
}
