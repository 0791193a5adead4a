//! Jobs that do not compete start as if they did, and cost nothing until then.

use super::*;
use crate::queue::{Offer, Survival};
use baton_protocol::{Machine, NotebookId, Requirement};
use proptest::prelude::*;
use std::{collections::HashSet, sync::Arc};
use uuid::Uuid;

fn worker(number: u8, slots: u32, keeping: HashSet<NotebookId>) -> Worker {
    let labels = (0..number).map(|label| label.to_string()).collect();
    let machine = Machine {
        labels,
        ..Machine::default()
    };
    Worker {
        worker: WorkerId(Uuid::from_u128(number.into())),
        slots,
        warm: keeping.clone(),
        keeping,
        open: true,
        offer: Arc::new(Offer {
            machine,
            ..Offer::default()
        }),
        leaves_in_ms: None,
    }
}

fn notebook(owner: u8, number: u8) -> NotebookId {
    NotebookId(Uuid::from_u128(u128::from(owner) * 10 + u128::from(number)))
}

/// A job of one of a person's notebooks, and the number of its course.
fn job(number: u128, owner: u8, course: usize, in_notebook: u8) -> Job {
    Job {
        job: JobId(Uuid::from_u128(number)),
        notebook: notebook(owner, in_notebook),
        owner: owner.to_string().into(),
        worker: None,
        precedence: Precedence {
            used_ms: f64::from(owner) * 100.5 + course as f64 * 1000.0,
            weight: 1.0 + course as f64,
            boost: 1.0,
            low_priority: false,
            waited_ms: 0,
            since_run_ms: (owner == 1).then_some(2000),
        },
        held: false,
        paused: false,
        front: None,
        needs: Arc::default(),
        takes_ms: None,
    }
}

fn outlook(jobs: impl Iterator<Item = (usize, u64)>) -> Outlook {
    let expected = |(course, takes_ms)| Expected {
        course,
        of_its_own: 0.0,
        starting: None,
        takes: Some(Times::exactly(takes_ms)),
    };
    let of_course = |course| CourseOutlook {
        takes: Some(Times::exactly(70)),
        pauses: Survival::default(),
        unlike_runs: 0.0,
        unlike_pauses: 0.0,
        newcomers: 0.01,
        newcomers_for_ms: 2000,
        newcomer: job(0, 9, course, 0).precedence,
    };
    Outlook {
        jobs: jobs.map(expected).collect(),
        courses: (0..2).map(of_course).collect(),
        returning: Vec::new(),
        cold: None,
        warm: None,
    }
}

/// Jobs with the number of their course and how long they take.
fn jobs() -> impl Strategy<Value = Vec<(Job, usize, u64)>> {
    let of_whom = (0..4_u8, 0..2_usize, 0..3_u8);
    let steered = (
        prop::bool::weighted(0.3),
        prop::option::weighted(0.1, 0..2_i64),
    );
    let any = (
        of_whom,
        steered,
        0..700_000_u64,
        1..2000_u64,
        prop::bool::weighted(0.2),
    );
    prop::collection::vec(any, 0..50).prop_map(|mut jobs| {
        // In order of arrival.
        jobs.sort_by_key(|(.., waited_ms, _, _)| Reverse(*waited_ms));
        let mut made = Vec::new();
        for (number, ((owner, course, notebook), (low, front), waited_ms, takes_ms, picky)) in
            (1..).zip(jobs)
        {
            let mut job = job(number, owner, course, notebook);
            job.precedence.low_priority = low;
            job.precedence.waited_ms = waited_ms;
            job.front = front;
            let label = "0".to_owned();
            let label = picky.then_some(Requirement::Label { label });
            job.needs = label.into_iter().collect();
            made.push((job, course, takes_ms));
        }
        made
    })
}

/// All jobs compete.
fn simply(world: &World) -> World {
    World {
        first: (0..world.line.len()).collect(),
        next: vec![None; world.line.len()],
        ..world.clone()
    }
}

proptest! {
    #[test]
    fn all_jobs_start_as_if_all_competed(
        jobs in jobs(),
        slots in prop::collection::vec(1..3_u32, 1..4),
        each in 1..4_u32,
    ) {
        let keeping = |number| HashSet::from([notebook(number, 0)]);
        let workers = (0..).zip(slots).map(|(number, slots)| worker(number, slots, keeping(number)));
        let workers: Vec<Worker> = workers.collect();
        let outlook = outlook(jobs.iter().map(|(_, course, takes_ms)| (*course, *takes_ms)));
        let jobs: Vec<Job> = jobs.into_iter().map(|(job, ..)| job).collect();
        let world = World::new(&jobs, &workers, each, outlook);
        let simple = simply(&world);
        for number in 0..3 {
            prop_assert_eq!(world.play(number), simple.play(number));
        }
    }
}

#[test]
fn one_job_of_thousands_in_a_notebook_competes() {
    let jobs: Vec<Job> = (1..=5000).map(|number| job(number, 0, 0, 0)).collect();
    let outlook = outlook(jobs.iter().map(|_| (0, 10)));
    let world = World::new(&jobs, &[worker(0, 1, HashSet::new())], 1, outlook);
    assert_eq!(world.first, [0]);
    assert!(world.play(0).iter().all(Option::is_some));
}
