//! The people ahead of a job, counted by the reason why they are.
//!
//! In: the waiting jobs in queue order. Out: for a job, how many people have jobs ahead of it that came after a
//! given time, for each reason.
//!
//! A person may have thousands of jobs that differ only in how long they have waited. They are kept together,
//! sorted by that: the reason why one of them is ahead depends on nothing else.

use super::{Job, ahead::because};
use baton_protocol::api::AheadBecause;
use std::collections::BTreeMap;

/// The first part of the queue, to which jobs are added in queue order.
#[derive(Debug, Default)]
pub struct JobsAhead<'jobs> {
    people: BTreeMap<&'jobs str, Vec<Alike<'jobs>>>,
    last: Option<&'jobs Job>,
}

/// Jobs of one person that differ only in how long they have waited. Those that have waited for less come later.
#[derive(Debug)]
struct Alike<'jobs>(Vec<Waited<'jobs>>);

/// A job, and the shortest wait of all those that have waited equally long for their turn.
#[derive(Debug)]
struct Waited<'jobs> {
    job: &'jobs Job,
    least_ms: u64,
}

impl<'jobs> JobsAhead<'jobs> {
    /// Adds the next job of the queue.
    pub fn add(&mut self, job: &'jobs Job) {
        self.last = Some(job);
        let of_person = self.people.entry(&job.owner).or_default();
        match of_person.iter_mut().find(|alike| alike.accepts(job)) {
            Some(alike) => alike.add(job),
            None => of_person.push(Alike(vec![Waited::of(job)])),
        }
    }

    /// The job directly ahead of the next one.
    pub(super) fn last(&self) -> Option<&'jobs Job> {
        self.last
    }

    /// How many people have jobs here that have waited for at most this long, by the reason why they are ahead of the
    /// job.
    pub(super) fn people(&self, job: &Job, most_ms: u64) -> BTreeMap<AheadBecause, u32> {
        self.count_people(most_ms, &mut |ahead| because(ahead, job))
    }

    fn count_people(
        &self,
        most_ms: u64,
        because: &mut impl FnMut(&Job) -> AheadBecause,
    ) -> BTreeMap<AheadBecause, u32> {
        let mut people = BTreeMap::new();
        let mut of_person = Vec::new();
        for alike in self.people.values() {
            for jobs in alike {
                jobs.reasons(most_ms, because, &mut of_person);
            }
            of_person.sort_unstable();
            of_person.dedup();
            for reason in of_person.drain(..) {
                *people.entry(reason).or_default() += 1;
            }
        }
        people
    }
}

impl<'jobs> Alike<'jobs> {
    fn accepts(&self, job: &Job) -> bool {
        let steered = |job: &Job| (job.held, job.paused, job.front);
        self.0.first().is_some_and(|own| {
            steered(own.job) == steered(job) && own.job.precedence.is_alike(&job.precedence)
        })
    }

    fn add(&mut self, job: &'jobs Job) {
        let new = Waited::of(job);
        let at = self.0.partition_point(|own| own.turn_ms() > new.turn_ms());
        match self.0.get_mut(at) {
            Some(own) if own.turn_ms() == new.turn_ms() => {
                own.least_ms = own.least_ms.min(new.least_ms);
            }
            _ => self.0.insert(at, new),
        }
    }

    /// Adds the reasons of the jobs that have waited for at most this long. A reason that holds for two jobs
    /// holds for all jobs between them.
    fn reasons(
        &self,
        most_ms: u64,
        because: &mut impl FnMut(&Job) -> AheadBecause,
        reasons: &mut Vec<AheadBecause>,
    ) {
        let first = self.0.partition_point(|own| own.least_ms > most_ms);
        let mut left = &self.0[first..];
        while let (Some(first), Some(last)) = (left.first(), left.last()) {
            let reason = because(last.job);
            reasons.push(reason);
            if because(first.job) == reason {
                return;
            }
            let others = left.partition_point(|own| because(own.job) != reason);
            left = &left[..others];
        }
    }
}

impl<'jobs> Waited<'jobs> {
    fn of(job: &'jobs Job) -> Self {
        Self {
            job,
            least_ms: job.precedence.waited_ms,
        }
    }

    fn turn_ms(&self) -> u64 {
        self.job.precedence.waited_for_turn_ms()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::{Precedence, in_queue_order};
    use baton_protocol::{JobId, NotebookId};
    use proptest::prelude::*;
    use std::{collections::BTreeSet, sync::Arc};

    fn job(owner: u8, front: Option<i64>, paused: bool, precedence: Precedence) -> Job {
        Job {
            job: JobId::random(),
            notebook: NotebookId::random(),
            owner: format!("p{owner}").into(),
            worker: None,
            precedence,
            held: false,
            paused,
            front,
            needs: Arc::default(),
            takes_ms: None,
        }
    }

    fn precedence(low_priority: bool, waited_ms: u64) -> Precedence {
        Precedence {
            used_ms: 0.0,
            weight: 1.0,
            boost: 1.0,
            low_priority,
            waited_ms,
            since_run_ms: None,
        }
    }

    /// The definition.
    fn simply_counted(ahead: &[&Job], job: &Job, most_ms: u64) -> BTreeMap<AheadBecause, u32> {
        let mut people: BTreeMap<AheadBecause, BTreeSet<&str>> = BTreeMap::new();
        let came = |other: &&&Job| other.precedence.waited_ms <= most_ms;
        for other in ahead.iter().filter(came) {
            let owners = people.entry(because(other, job)).or_default();
            owners.insert(&other.owner);
        }
        let count = |owners: BTreeSet<&str>| u32::try_from(owners.len()).unwrap_or(u32::MAX);
        let people = people.into_iter();
        people
            .map(|(reason, owners)| (reason, count(owners)))
            .collect()
    }

    fn any_job() -> impl Strategy<Value = Job> {
        // Each person has two accounts, with different use and weights.
        let account = (0..4_u8, 0..2_u8);
        let waited_ms = prop_oneof![0..30_u64, 0..4_000_000_u64];
        let front = prop::option::weighted(0.1, 0..2_i64);
        (account, any::<bool>(), waited_ms, front, any::<bool>()).prop_map(
            |((owner, course), low, waited_ms, front, is_late)| {
                let precedence = Precedence {
                    used_ms: f64::from(owner) * 2.0 + f64::from(course) * 100_000.0,
                    weight: f64::from(course) + 1.0,
                    boost: if owner == 1 { 2.0 } else { 1.0 },
                    since_run_ms: (owner == 2).then_some(20),
                    ..precedence(low, waited_ms)
                };
                job(owner, front, course == 1 && is_late, precedence)
            },
        )
    }

    proptest! {
        #[test]
        fn the_count_is_that_of_the_definition(
            jobs in prop::collection::vec(any_job(), 0..40),
            most_ms in prop_oneof![0..40_u64, Just(u64::MAX)],
        ) {
            let line = in_queue_order(&jobs);
            let mut ahead = JobsAhead::default();
            for (own, job) in line.iter().enumerate() {
                let expected = simply_counted(&line[..own], job, most_ms);
                prop_assert_eq!(ahead.people(job, most_ms), expected);
                ahead.add(job);
            }
        }
    }

    #[test]
    fn a_person_with_thousands_of_jobs_costs_a_few_steps_for_each() {
        const EACH: u64 = 5000;
        let low = (0..EACH).map(|n| job(0, None, false, precedence(true, 2 * EACH - n)));
        let normal = (0..EACH).map(|n| job(0, None, false, precedence(false, EACH - n)));
        let jobs: Vec<Job> = low.chain(normal).collect();
        let line = in_queue_order(&jobs);
        let (mut ahead, mut steps) = (JobsAhead::default(), 0);
        for job in line {
            let mut reason = |other: &Job| {
                steps += 1;
                because(other, job)
            };
            ahead.count_people(u64::MAX, &mut reason);
            ahead.add(job);
        }
        assert!(steps < 10 * 2 * EACH, "{steps} steps");
    }
}
