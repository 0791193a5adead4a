//! What a job's place in the order consists of, and what courses may use. For the API.

use super::{Dispatch, Job, NotDone, Now, Phase};
use crate::{Account, Identity, courses::Lesson};
use baton_protocol::{BudgetLeft, JobId, api};
use baton_scheduling::queue as order;
use std::collections::{BTreeMap, BTreeSet};

impl Dispatch {
    /// Returns `None` if the job does not wait.
    pub fn explain(&self, id: JobId, now: Now) -> Option<api::QueueDetails> {
        let job = self.jobs.get(id)?;
        job.waiting.as_ref()?;
        let mut ahead = BTreeMap::new();
        for (_, because) in order::ahead_of(&self.queue(now), id) {
            *ahead.entry(because).or_default() += 1;
        }
        let running = self.jobs.iter().filter(|job| job.is_running());
        let workers = self.connected_workers(now);
        let open = workers.iter().filter(|worker| worker.open);
        Some(api::QueueDetails {
            ahead: ahead
                .into_iter()
                .map(|(because, jobs)| api::Ahead { because, jobs })
                .collect(),
            precedence: self.precedence(job, now),
            running: small(running.count()),
            slots: open.map(|worker| worker.slots).sum(),
            budget: self.budget_left(&job.account, now),
        })
    }

    /// How long the job had waited at `at_ms`, counted from its submission.
    pub fn waited_until(&self, id: JobId, at_ms: i64) -> Option<u64> {
        let waited_ms = at_ms - self.jobs.get(id)?.submitted_ms;
        Some(waited_ms.max(0).unsigned_abs())
    }

    fn precedence(&self, job: &Job, now: Now) -> api::Precedence {
        let precedence = self.as_ordered(job, now).precedence;
        api::Precedence {
            used_ms: precedence.used_ms as u64,
            half_life_ms: self.accounts.courses().half_life_ms.unsigned_abs(),
            weight: precedence.weight,
            boost: precedence.boost,
        }
    }

    pub(super) fn budget_left(&self, account: &Account, now: Now) -> Option<api::Budget> {
        let BudgetLeft {
            left_ms,
            of_ms,
            granted_ms,
            period,
        } = self.accounts.budget(account, now)?.left;
        Some(api::Budget {
            left_ms,
            of_ms,
            granted_ms,
            period,
        })
    }

    /// The courses that this person may see, by name; for others, all known courses.
    pub fn courses(&self, seen_by: &Identity, now: Now) -> Vec<api::Course> {
        let names: BTreeSet<&str> = match seen_by.only_courses() {
            Some(courses) => courses.collect(),
            None => {
                let of_jobs = self.jobs.iter().map(|job| &job.account);
                let accounts = self.accounts.used().chain(of_jobs);
                let used = accounts.map(|account| account.course.as_str());
                let used = used.filter(|course| !course.is_empty());
                self.accounts.courses().names().chain(used).collect()
            }
        };
        let courses = names.into_iter();
        courses
            .map(|name| self.course(name, seen_by, now))
            .collect()
    }

    pub(super) fn sees_course(&self, who: &Identity, name: &str, now: Now) -> Result<(), NotDone> {
        let known = self.courses(who, now);
        match known.iter().any(|course| course.course == name) {
            true => Ok(()),
            false => Err(NotDone::UnknownCourse(name.to_owned())),
        }
    }

    fn course(&self, name: &str, seen_by: &Identity, now: Now) -> api::Course {
        let course = self.accounts.courses().of(name);
        let jobs = || {
            let jobs = self.jobs.iter();
            jobs.filter(|job| job.account.course == name)
        };
        let deadlines = course.deadlines.iter().map(|deadline| api::Deadline {
            from_ms: deadline.from_ms,
            until_ms: deadline.until_ms,
            weight: deadline.weight,
        });
        let account = Account {
            owner: seen_by.person().unwrap_or_default().to_owned(),
            course: name.to_owned(),
        };
        api::Course {
            course: name.to_owned(),
            weight: course.weight,
            boost: course.boost(now.unix_ms),
            timeout_ms: course.time_limit_ms,
            longest_timeout_ms: course.longest_ms,
            paused: course.paused.clone(),
            message: course.message.clone(),
            budget: self.budget_left(&account, now),
            deadlines: deadlines.collect(),
            staff_see_outputs: course.staff_see_outputs,
            environment: course.environment.clone(),
            environments: course.environments.clone(),
            timetable: course.timetable.iter().map(Lesson::shown).collect(),
            running: small(jobs().filter(|job| job.is_running()).count()),
            waiting: small(jobs().filter(|job| job.phase() == Phase::Queued).count()),
        }
    }
}

fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
