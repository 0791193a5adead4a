//! Commands of people about jobs, workers and courses, from pages or the API.
//!
//! In: an identity and a [`Command`]. Out: the change and its audit record in the same transaction, or the
//! reason why it was refused. The queue is then ordered again, which informs waiting students.

use super::{
    Action, Dispatch, Job, Now, Phase,
    allowances::{account_of, called},
};
use crate::{
    Identity,
    courses::{Wrong, check, check_text},
    record::{AuditEntry, Write},
};
use baton_humanize::SAFE;
use baton_protocol::{
    Finished, JobEvent, JobId, Outcome, RemoteError,
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

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    #[error("There is no cell {0} that you can see")]
    UnknownJob(JobId),
    #[error("There is no worker {0}")]
    UnknownWorker(String),
    #[error("There is no pool {0}")]
    UnknownPool(String),
    #[error("Workers cannot join pool {0}: the broker starts them")]
    NotExternal(String),
    #[error("Pool {pool} is full: its maximum is {max}")]
    PoolFull { pool: String, max: u32 },
    #[error("There is no course {0} that you can see")]
    UnknownCourse(String),
    #[error("No additional GPU time is granted to {0}")]
    NoAllowance(String),
    #[error("Only staff of its course may do this")]
    StaffOnly,
    #[error("Only admins may do this: workers serve all courses")]
    AdminsOnly,
    #[error("The cell has ended")]
    Over,
    #[error("The cell is no longer waiting")]
    NotWaiting,
    #[error("{0} is shutting down: it was stopped on its own machine")]
    Leaving(String),
    #[error(transparent)]
    Wrong(#[from] Wrong),
}

impl Dispatch {
    pub fn act(
        &mut self,
        who: &Identity,
        command: Command,
        now: Now,
        actions: &mut Vec<Action>,
    ) -> Result<(), NotDone> {
        let mut record = |action, course: &str, subject: String, detail: Option<String>| {
            actions.push(Action::Write(Write::Audit(AuditEntry {
                at_ms: now.unix_ms,
                person: who.person().map(str::to_owned),
                action,
                course: course.to_owned(),
                subject,
                detail,
            })));
        };
        match command {
            Command::Cancel { job, reason } => {
                check_reason(reason.as_deref())?;
                let found = self.job_of(who, job)?;
                if found.phase() == Phase::Finished {
                    return Err(NotDone::Over);
                }
                if who.person() != Some(&found.account.owner) {
                    found.stopped = Some(stopped_by(who, reason.as_deref()));
                }
                let course = found.account.course.clone();
                record(api::Action::Cancel, &course, job.to_string(), reason);
                self.cancel(job, now, actions);
            }
            Command::Hold { job, reason } => {
                check_reason(Some(&reason))?;
                let found = self.waiting_job(who, job)?;
                found.held = Some(reason.clone());
                let course = found.account.course.clone();
                record(api::Action::Hold, &course, job.to_string(), Some(reason));
                self.steer(job, actions);
            }
            Command::Release { job } => {
                let found = self.waiting_job(who, job)?;
                found.held = None;
                let course = found.account.course.clone();
                record(api::Action::Release, &course, job.to_string(), None);
                self.steer(job, actions);
            }
            Command::MoveToFront { job, reason } => {
                check_reason(Some(&reason))?;
                let found = self.waiting_job(who, job)?;
                found.front_ms = Some(now.unix_ms);
                let course = found.account.course.clone();
                record(
                    api::Action::MoveToFront,
                    &course,
                    job.to_string(),
                    Some(reason),
                );
                self.steer(job, actions);
            }
            Command::Drain { worker, reason } => {
                check_reason(Some(&reason))?;
                self.may_steer_worker(who, &worker)?;
                record(api::Action::Drain, "", worker.clone(), Some(reason.clone()));
                self.accounts.change_worker(worker, Some(reason), actions);
                self.disordered = true;
            }
            Command::Resume { worker } => {
                self.may_steer_worker(who, &worker)?;
                record(api::Action::Resume, "", worker.clone(), None);
                self.accounts.change_worker(worker, None, actions);
                self.disordered = true;
            }
            Command::ChangeCourse { course, change } => {
                check(&change)?;
                self.may_steer_course(who, &course, now)?;
                if !who.is_admin() {
                    self.accounts.courses().of(&course).allows(&change)?;
                }
                let detail = serde_json::to_string(&change).ok();
                record(api::Action::ChangeCourse, &course, course.clone(), detail);
                self.accounts.change_course(course, change, actions);
                self.disordered = true;
            }
            Command::Grant {
                course,
                person,
                gpu_time_ms,
                until_ms,
            } => {
                self.may_steer_course(who, &course, now)?;
                let account = account_of(&course, person)?;
                let allowance =
                    self.checked_allowance(who, &account, gpu_time_ms, until_ms, now)?;
                let until = self.accounts.courses().moment(allowance.until_ms);
                let extra = baton_humanize::duration(Duration::from_millis(gpu_time_ms));
                let detail = Some(format!("{extra} until {until}"));
                record(api::Action::Grant, &course, called(&account), detail);
                self.accounts
                    .set_allowance(account, Some(allowance), now, actions);
            }
            Command::Revoke { course, person } => {
                self.may_steer_course(who, &course, now)?;
                let account = account_of(&course, person)?;
                let called = called(&account);
                if !self.accounts.allowances().has(&account, now.unix_ms) {
                    return Err(NotDone::NoAllowance(called));
                }
                record(api::Action::Revoke, &course, called, None);
                self.accounts.set_allowance(account, None, now, actions);
                self.disordered = true;
            }
        }
        Ok(())
    }

    fn may_steer_course(&self, who: &Identity, course: &str, now: Now) -> Result<(), NotDone> {
        self.sees_course(who, course, now)?;
        match who.may_steer(course) {
            true => Ok(()),
            false => Err(NotDone::StaffOnly),
        }
    }

    fn job_of(&mut self, who: &Identity, id: JobId) -> Result<&mut Job, NotDone> {
        let job = self.jobs.get_mut(id);
        job.filter(|job| who.may_stop(&job.account))
            .ok_or(NotDone::UnknownJob(id))
    }

    fn waiting_job(&mut self, who: &Identity, id: JobId) -> Result<&mut Job, NotDone> {
        let job = self.job_of(who, id)?;
        if !who.may_steer(&job.account.course) {
            return Err(NotDone::StaffOnly);
        }
        match job.phase() {
            Phase::Queued => Ok(job),
            Phase::Finished => Err(NotDone::Over),
            Phase::Assigned | Phase::Started => Err(NotDone::NotWaiting),
        }
    }

    fn steer(&mut self, id: JobId, actions: &mut Vec<Action>) {
        if let Some(job) = self.jobs.get(id) {
            actions.push(Action::Write(Write::Steer {
                job: id,
                held: job.held.clone(),
                front_ms: job.front_ms,
            }));
        }
        self.disordered = true;
    }

    fn may_steer_worker(&self, who: &Identity, name: &str) -> Result<(), NotDone> {
        if !who.may_steer_workers() {
            return Err(NotDone::AdminsOnly);
        }
        let mut known = self
            .peers
            .workers
            .values()
            .filter(|worker| worker.name == name);
        match known.next() {
            Some(worker) if worker.draining => Err(NotDone::Leaving(name.to_owned())),
            Some(_) => Ok(()),
            None if self.accounts.courses().worker_paused(name).is_some() => Ok(()),
            None => Err(NotDone::UnknownWorker(name.to_owned())),
        }
    }

    /// Ends a cancelled job that has not started.
    pub(super) fn finish_cancelled(&mut self, id: JobId, now: Now, actions: &mut Vec<Action>) {
        let stopped = self.jobs.get(id).and_then(|job| job.stopped.clone());
        match stopped {
            Some(words) => {
                let error = stopped_before_it_ran(&words);
                self.finish(id, Outcome::Refused, Some(error), now, actions);
            }
            None => self.finish(id, Outcome::Cancelled, None, now, actions),
        }
    }
}

fn check_reason(reason: Option<&str>) -> Result<(), NotDone> {
    match reason {
        Some(reason) => Ok(check_text("reason", reason)?),
        None => Ok(()),
    }
}

fn stopped_by(who: &Identity, reason: Option<&str>) -> String {
    let who = who.person().unwrap_or("Your course staff");
    match reason {
        Some(reason) => format!("{who} stopped this cell ({reason})"),
        None => format!("{who} stopped this cell"),
    }
}

fn stopped_before_it_ran(words: &str) -> RemoteError {
    RemoteError {
        name: "CellStopped".to_owned(),
        value: format!("{words} before it ran. {SAFE}"),
        traceback: Vec::new(),
        hint: Some("ask them before you run it again".to_owned()),
    }
}

/// Adds to a cell's end that staff stopped it. The session knows only that it was interrupted.
pub(super) fn set_stopped_message(event: &mut JobEvent, words: &str, ran: bool) {
    let JobEvent::Finished(Finished { outcome, error, .. }) = event else {
        return;
    };
    if *outcome != Outcome::Cancelled {
        return;
    }
    if !ran {
        *outcome = Outcome::Refused;
        *error = Some(stopped_before_it_ran(words));
    } else if let Some(error) = error {
        let line = format!("{words}. Its changes so far are in your notebook");
        error.traceback.push(line);
    }
}
