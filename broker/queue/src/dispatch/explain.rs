//! What a job's place in the order consists of, and what courses may use. For the API.

use super::{Dispatch, Job, NotDone, Now, Phase, queue};
use crate::{Account, Identity, courses::Lesson};
use baton_protocol::{BudgetLeft, JobId, api};
use baton_scheduling::queue as order;
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn queue_details(dispatch: &Dispatch, id: JobId, now: Now) -> Option<api::QueueDetails> {
    let job = dispatch.jobs.get(id)?;
    job.waiting.as_ref()?;
    let mut ahead = BTreeMap::new();
    for (_, because) in order::ahead_of(&queue::unfinished(dispatch, now), id) {
        *ahead.entry(because).or_default() += 1;
    }
    let running = dispatch.jobs.iter().filter(|job| job.is_running());
    let workers = queue::connected_workers(dispatch, now);
    let open = workers.iter().filter(|worker| worker.open);
    Some(api::QueueDetails {
        ahead: ahead
            .into_iter()
            .map(|(because, jobs)| api::Ahead { because, jobs })
            .collect(),
        precedence: precedence(dispatch, job, now),
        running: small(running.count()),
        slots: open.map(|worker| worker.slots).sum(),
        budget: budget_left(dispatch, &job.account, now),
    })
}

pub(super) fn waited_until(dispatch: &Dispatch, id: JobId, at_ms: i64) -> Option<u64> {
    let waited_ms = at_ms - dispatch.jobs.get(id)?.submitted_ms;
    Some(waited_ms.max(0).unsigned_abs())
}

fn precedence(dispatch: &Dispatch, job: &Job, now: Now) -> api::Precedence {
    let precedence = queue::as_ordered(dispatch, job, now).precedence;
    api::Precedence {
        used_ms: precedence.used_ms as u64,
        half_life_ms: dispatch.accounts.courses().half_life_ms.unsigned_abs(),
        weight: precedence.weight,
        boost: precedence.boost,
    }
}

pub(super) fn budget_left(dispatch: &Dispatch, account: &Account, now: Now) -> Option<api::Budget> {
    let BudgetLeft {
        left_ms,
        of_ms,
        granted_ms,
        period,
    } = dispatch.accounts.budget(account, now)?.left;
    Some(api::Budget {
        left_ms,
        of_ms,
        granted_ms,
        period,
    })
}

pub(super) fn courses(dispatch: &Dispatch, seen_by: &Identity, now: Now) -> Vec<api::Course> {
    let names: BTreeSet<&str> = match seen_by.only_courses() {
        Some(courses) => courses.collect(),
        None => {
            let of_jobs = dispatch.jobs.iter().map(|job| &job.account);
            let accounts = dispatch.accounts.used().chain(of_jobs);
            let used = accounts.map(|account| account.course.as_str());
            let used = used.filter(|course| !course.is_empty());
            dispatch.accounts.courses().names().chain(used).collect()
        }
    };
    let courses = names.into_iter();
    courses
        .map(|name| course(dispatch, name, seen_by, now))
        .collect()
}

pub(super) fn sees_course(
    dispatch: &Dispatch,
    who: &Identity,
    name: &str,
    now: Now,
) -> Result<(), NotDone> {
    let known = courses(dispatch, who, now);
    match known.iter().any(|course| course.course == name) {
        true => Ok(()),
        false => Err(NotDone::UnknownCourse(name.to_owned())),
    }
}

fn course(dispatch: &Dispatch, name: &str, seen_by: &Identity, now: Now) -> api::Course {
    let courses = dispatch.accounts.courses();
    let (course, zone) = (courses.of(name), courses.zone());
    let jobs = || {
        let jobs = dispatch.jobs.iter();
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
        budget: budget_left(dispatch, &account, now),
        deadlines: deadlines.collect(),
        time_zone: zone.iana_name().map(str::to_owned),
        staff_see_outputs: course.staff_see_outputs,
        environment: course.environment.clone(),
        environments: course.environments.clone(),
        timetable: course.timetable.iter().map(Lesson::shown).collect(),
        running: small(jobs().filter(|job| job.is_running()).count()),
        waiting: small(jobs().filter(|job| job.phase() == Phase::Queued).count()),
    }
}

fn small(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
