//! Commands of people about jobs, workers and courses, from pages or the API.
//!
//! In: an identity and a [`Command`]. Out: the change and its audit record in the same transaction, or the
//! reason why it was refused. The queue is then ordered again, which informs waiting students.

use super::{
    Batch, Dispatch, Job, NotDone, Now, Phase,
    allowances::{self, account_of, called},
    explain,
    transitions::{self, cancel},
};
use crate::{
    Account, Identity, StopReason,
    courses::{check, check_is_coming, check_text, summary},
    record::{AuditEntry, Write},
};
use baton_humanize::duration;
use baton_protocol::{
    JobId,
    api::{self, CourseChange},
};
use std::time::Duration;

#[derive(Debug, Clone)]
pub enum Command {
    Cancel {
        job: JobId,
        reason: Option<String>,
    },
    Hold {
        job: JobId,
        reason: String,
    },
    Release {
        job: JobId,
    },
    MoveToFront {
        job: JobId,
        reason: String,
    },
    Drain {
        worker: String,
        reason: String,
    },
    Resume {
        worker: String,
    },
    ChangeCourse {
        course: String,
        change: CourseChange,
    },
    /// Grants GPU time beyond the budget to a person, or to everyone in the course.
    Grant {
        course: String,
        person: Option<String>,
        gpu_time_ms: u64,
        until_ms: Option<i64>,
    },
    Revoke {
        course: String,
        person: Option<String>,
    },
}

pub(super) fn carry_out(
    dispatch: &mut Dispatch,
    who: &Identity,
    command: Command,
    batch: &mut Batch,
) -> Result<(), NotDone> {
    let done = match command {
        Command::Cancel { job, reason } => match stop(dispatch, who, job, reason, batch)? {
            Some(done) => done,
            None => return Ok(()),
        },
        Command::Hold { job, reason } => hold(dispatch, who, job, reason, batch)?,
        Command::Release { job } => release(dispatch, who, job, batch)?,
        Command::MoveToFront { job, reason } => move_to_front(dispatch, who, job, reason, batch)?,
        Command::Drain { worker, reason } => drain(dispatch, who, worker, reason, batch)?,
        Command::Resume { worker } => resume(dispatch, who, worker, batch)?,
        Command::ChangeCourse { course, change } => {
            change_course(dispatch, who, course, change, batch)?
        }
        Command::Grant {
            course,
            person,
            gpu_time_ms,
            until_ms,
        } => {
            let account = account_of(&course, person)?;
            grant(dispatch, who, account, gpu_time_ms, until_ms, batch)?
        }
        Command::Revoke { course, person } => {
            let account = account_of(&course, person)?;
            revoke(dispatch, who, account, batch)?
        }
    };
    batch.write(Write::Audit(AuditEntry {
        at_ms: batch.now.unix_ms,
        person: who.person().map(str::to_owned),
        action: done.action,
        course: done.course,
        subject: done.subject,
        detail: done.detail,
    }));
    Ok(())
}

/// What the audit log says of a command that was carried out.
struct Done {
    action: api::Action,
    /// Empty if it concerns all courses.
    course: String,
    subject: String,
    detail: Option<String>,
}

// ---- jobs

/// Returns nothing if the job was already being stopped for the same reason: a person may ask any number of times.
fn stop(
    dispatch: &mut Dispatch,
    who: &Identity,
    id: JobId,
    reason: Option<String>,
    batch: &mut Batch,
) -> Result<Option<Done>, NotDone> {
    check_reason(reason.as_deref())?;
    let job = job_of(dispatch, who, id)?;
    if job.phase() == Phase::Finished {
        return Err(NotDone::Over);
    }
    let is_own = who.person() == Some(&job.account.owner);
    let course = job.account.course.clone();
    let by_staff = || StopReason::Staff {
        person: who.person().map(str::to_owned),
        reason: reason.clone(),
    };
    let is_new = match is_own {
        true => cancel(dispatch, id, batch),
        false => transitions::stop(dispatch, id, by_staff(), batch),
    };
    Ok(is_new.then(|| Done {
        action: api::Action::Cancel,
        course,
        subject: id.to_string(),
        detail: reason,
    }))
}

fn hold(
    dispatch: &mut Dispatch,
    who: &Identity,
    id: JobId,
    reason: String,
    batch: &mut Batch,
) -> Result<Done, NotDone> {
    check_reason(Some(&reason))?;
    let held = reason.clone();
    Ok(Done {
        action: api::Action::Hold,
        course: steer(dispatch, who, id, |job| job.hold(held), batch)?,
        subject: id.to_string(),
        detail: Some(reason),
    })
}

fn release(
    dispatch: &mut Dispatch,
    who: &Identity,
    id: JobId,
    batch: &mut Batch,
) -> Result<Done, NotDone> {
    Ok(Done {
        action: api::Action::Release,
        course: steer(dispatch, who, id, Job::release, batch)?,
        subject: id.to_string(),
        detail: None,
    })
}

fn move_to_front(
    dispatch: &mut Dispatch,
    who: &Identity,
    id: JobId,
    reason: String,
    batch: &mut Batch,
) -> Result<Done, NotDone> {
    check_reason(Some(&reason))?;
    let now = batch.now;
    Ok(Done {
        action: api::Action::MoveToFront,
        course: steer(dispatch, who, id, |job| job.move_to_front(now), batch)?,
        subject: id.to_string(),
        detail: Some(reason),
    })
}

/// Changes a waiting job, and stores that. Returns its course.
fn steer(
    dispatch: &mut Dispatch,
    who: &Identity,
    id: JobId,
    change: impl FnOnce(&mut Job) -> Write,
    batch: &mut Batch,
) -> Result<String, NotDone> {
    let job = waiting_job(dispatch, who, id)?;
    batch.write(change(job));
    let course = job.account.course.clone();
    dispatch.plan_is_stale = true;
    Ok(course)
}

fn job_of<'jobs>(
    dispatch: &'jobs mut Dispatch,
    who: &Identity,
    id: JobId,
) -> Result<&'jobs mut Job, NotDone> {
    let job = dispatch.jobs.get_mut(id);
    job.filter(|job| who.may_stop(&job.account))
        .ok_or(NotDone::UnknownJob(id))
}

fn waiting_job<'jobs>(
    dispatch: &'jobs mut Dispatch,
    who: &Identity,
    id: JobId,
) -> Result<&'jobs mut Job, NotDone> {
    let job = job_of(dispatch, who, id)?;
    if !who.may_steer(&job.account.course) {
        return Err(NotDone::StaffOnly);
    }
    match job.phase() {
        Phase::Queued => Ok(job),
        Phase::Finished => Err(NotDone::Over),
        Phase::Assigned | Phase::Started => Err(NotDone::NotWaiting),
    }
}

// ---- workers

fn drain(
    dispatch: &mut Dispatch,
    who: &Identity,
    worker: String,
    reason: String,
    batch: &mut Batch,
) -> Result<Done, NotDone> {
    check_reason(Some(&reason))?;
    may_steer_worker(dispatch, who, &worker)?;
    let paused = Some(reason.clone());
    dispatch
        .accounts
        .change_worker(worker.clone(), paused, batch);
    dispatch.plan_is_stale = true;
    Ok(Done {
        action: api::Action::Drain,
        course: String::new(),
        subject: worker,
        detail: Some(reason),
    })
}

fn resume(
    dispatch: &mut Dispatch,
    who: &Identity,
    worker: String,
    batch: &mut Batch,
) -> Result<Done, NotDone> {
    may_steer_worker(dispatch, who, &worker)?;
    dispatch.accounts.change_worker(worker.clone(), None, batch);
    dispatch.plan_is_stale = true;
    Ok(Done {
        action: api::Action::Resume,
        course: String::new(),
        subject: worker,
        detail: None,
    })
}

fn may_steer_worker(dispatch: &Dispatch, who: &Identity, name: &str) -> Result<(), NotDone> {
    if !who.may_steer_workers() {
        return Err(NotDone::AdminsOnly);
    }
    let mut known = dispatch
        .peers
        .workers
        .values()
        .filter(|worker| worker.name == name);
    match known.next() {
        Some(worker) if worker.draining => Err(NotDone::Leaving(name.to_owned())),
        Some(_) => Ok(()),
        None if dispatch.accounts.courses().worker_paused(name).is_some() => Ok(()),
        None => Err(NotDone::UnknownWorker(name.to_owned())),
    }
}

// ---- courses

fn change_course(
    dispatch: &mut Dispatch,
    who: &Identity,
    course: String,
    change: CourseChange,
    batch: &mut Batch,
) -> Result<Done, NotDone> {
    check(&change)?;
    may_steer_course(dispatch, who, &course, batch.now)?;
    let courses = dispatch.accounts.courses();
    let (present, zone) = (courses.of(&course), courses.zone());
    check_is_coming(present, &change, &zone, batch.now.unix_ms)?;
    if !who.is_admin() {
        present.allows(&change)?;
    }
    let detail = Some(summary(&change, courses));
    dispatch
        .accounts
        .change_course(course.clone(), change, batch);
    dispatch.plan_is_stale = true;
    Ok(Done {
        action: api::Action::ChangeCourse,
        subject: course.clone(),
        course,
        detail,
    })
}

fn grant(
    dispatch: &mut Dispatch,
    who: &Identity,
    account: Account,
    gpu_time_ms: u64,
    until_ms: Option<i64>,
    batch: &mut Batch,
) -> Result<Done, NotDone> {
    may_steer_course(dispatch, who, &account.course, batch.now)?;
    let allowance = allowances::checked(dispatch, who, &account, gpu_time_ms, until_ms, batch.now)?;
    let until = dispatch.accounts.courses().moment(allowance.until_ms);
    let extra = duration(Duration::from_millis(gpu_time_ms));
    let done = Done {
        action: api::Action::Grant,
        course: account.course.clone(),
        subject: called(&account),
        detail: Some(format!("{extra} until {until}")),
    };
    dispatch
        .accounts
        .set_allowance(account, Some(allowance), batch);
    Ok(done)
}

fn revoke(
    dispatch: &mut Dispatch,
    who: &Identity,
    account: Account,
    batch: &mut Batch,
) -> Result<Done, NotDone> {
    may_steer_course(dispatch, who, &account.course, batch.now)?;
    let allowances = dispatch.accounts.allowances();
    if !allowances.has(&account, batch.now.unix_ms) {
        return Err(NotDone::NoAllowance(called(&account)));
    }
    let done = Done {
        action: api::Action::Revoke,
        course: account.course.clone(),
        subject: called(&account),
        detail: None,
    };
    dispatch.accounts.set_allowance(account, None, batch);
    dispatch.plan_is_stale = true;
    Ok(done)
}

fn may_steer_course(
    dispatch: &Dispatch,
    who: &Identity,
    course: &str,
    now: Now,
) -> Result<(), NotDone> {
    explain::sees_course(dispatch, who, course, now)?;
    match who.may_steer(course) {
        true => Ok(()),
        false => Err(NotDone::StaffOnly),
    }
}

// ---- messages

fn check_reason(reason: Option<&str>) -> Result<(), NotDone> {
    match reason {
        Some(reason) => Ok(check_text("reason", reason)?),
        None => Ok(()),
    }
}
