//! The order keeps its promises whatever the jobs and workers are.

use baton_broker::order::{Job, Plan, Worker, plan};
use baton_protocol::{JobId, NotebookId, WorkerId, proxy::WaitingReason};
use proptest::prelude::*;
use std::collections::{HashMap, HashSet};
use uuid::Uuid;

fn job_id(number: u128) -> JobId {
    JobId(Uuid::from_u128(number))
}

fn worker_id(number: u8) -> WorkerId {
    WorkerId(Uuid::from_u128(number.into()))
}

fn notebook_id(number: u8) -> NotebookId {
    NotebookId(Uuid::from_u128(number.into()))
}

/// Jobs of at most 8 notebooks. Some have a worker, at most one of each notebook; that worker may be gone.
fn jobs() -> impl Strategy<Value = Vec<Job>> {
    prop::collection::vec((0..8_u8, prop::option::weighted(0.3, 0..6_u8)), 0..30).prop_map(|rows| {
        let mut running = HashSet::new();
        (0..)
            .zip(rows)
            .map(|(number, (notebook, worker))| Job {
                job: job_id(number),
                notebook: notebook_id(notebook),
                worker: worker.filter(|_| running.insert(notebook)).map(worker_id),
            })
            .collect()
    })
}

fn workers() -> impl Strategy<Value = Vec<Worker>> {
    let rows = prop::collection::vec((0..4_u32, prop::collection::hash_set(0..8_u8, 0..4)), 0..5);
    rows.prop_map(|rows| {
        (0..)
            .zip(rows)
            .map(|(number, (slots, warm))| Worker {
                worker: worker_id(number),
                slots,
                warm: warm.into_iter().map(notebook_id).collect(),
            })
            .collect()
    })
}

/// The jobs as they are once the plan is carried out.
fn carried_out(jobs: &[Job], plan: &Plan) -> Vec<Job> {
    let assigned: HashMap<JobId, WorkerId> = plan.assignments.iter().copied().collect();
    let with_worker = |job: &Job| Job {
        worker: job.worker.or_else(|| assigned.get(&job.job).copied()),
        ..job.clone()
    };
    jobs.iter().map(with_worker).collect()
}

proptest! {
    #[test]
    fn every_waiting_job_is_assigned_or_placed_and_never_both(jobs in jobs(), workers in workers()) {
        let plan = plan(&jobs, &workers);
        let mut told: Vec<JobId> = plan.assignments.iter().map(|(job, _)| *job).collect();
        told.extend(plan.places.iter().map(|(job, _)| *job));
        told.sort_unstable();
        let mut waiting: Vec<JobId> = jobs.iter().filter(|job| job.worker.is_none()).map(|job| job.job).collect();
        waiting.sort_unstable();
        prop_assert_eq!(told, waiting);
    }

    #[test]
    fn no_worker_gets_more_than_its_slots(jobs in jobs(), workers in workers()) {
        let plan = plan(&jobs, &workers);
        for worker in &workers {
            let before = jobs.iter().filter(|job| job.worker == Some(worker.worker)).count();
            let new = plan.assignments.iter().filter(|(_, to)| *to == worker.worker).count();
            prop_assert!(new == 0 || before + new <= worker.slots as usize);
        }
        for (_, to) in &plan.assignments {
            prop_assert!(workers.iter().any(|worker| worker.worker == *to));
        }
    }

    #[test]
    fn a_notebook_runs_one_job_at_a_time(jobs in jobs(), workers in workers()) {
        let after = carried_out(&jobs, &plan(&jobs, &workers));
        let mut running = HashSet::new();
        for job in after.iter().filter(|job| job.worker.is_some()) {
            prop_assert!(running.insert(job.notebook));
        }
    }

    #[test]
    fn nothing_idles_while_somebody_could_run(jobs in jobs(), workers in workers()) {
        let first = plan(&jobs, &workers);
        let again = plan(&carried_out(&jobs, &first), &workers);
        prop_assert!(again.assignments.is_empty());
        // And what was told stays true.
        prop_assert_eq!(again.places, first.places);
    }

    #[test]
    fn places_are_numbered_in_order_of_arrival(jobs in jobs(), workers in workers()) {
        let plan = plan(&jobs, &workers);
        for (expected, (_, place)) in (1..).zip(&plan.places) {
            prop_assert_eq!(place.place, expected);
        }
        prop_assert!(plan.places.is_sorted_by_key(|(job, _)| *job));
    }

    #[test]
    fn nobody_is_overtaken_by_a_later_job(jobs in jobs(), workers in workers()) {
        let plan = plan(&jobs, &workers);
        let in_line = plan.places.iter().filter(|(_, place)| place.waiting == WaitingReason::InLine);
        if let Some((first_in_line, _)) = in_line.min_by_key(|(job, _)| *job) {
            for (assigned, _) in &plan.assignments {
                prop_assert!(assigned < first_in_line);
            }
        }
    }

    #[test]
    fn the_end_of_a_job_never_lowers_anyone(jobs in jobs(), workers in workers(), ended in any::<prop::sample::Index>()) {
        prop_assume!(!jobs.is_empty());
        let before = plan(&jobs, &workers);
        let mut jobs = carried_out(&jobs, &before);
        jobs.remove(ended.index(jobs.len()));
        let after: HashMap<JobId, u32> = plan(&jobs, &workers).places.iter().map(|(job, place)| (*job, place.place)).collect();
        for (job, place) in &before.places {
            if let Some(later) = after.get(job) {
                prop_assert!(*later <= place.place);
            }
        }
    }

    #[test]
    fn a_free_warm_worker_is_taken(jobs in jobs(), workers in workers()) {
        let plan = plan(&jobs, &workers);
        let after = carried_out(&jobs, &plan);
        for (job, to) in &plan.assignments {
            let notebook = after.iter().find(|other| other.job == *job).unwrap().notebook;
            let chosen = workers.iter().find(|worker| worker.worker == *to).unwrap();
            if chosen.warm.contains(&notebook) {
                continue;
            }
            for warm in workers.iter().filter(|worker| worker.warm.contains(&notebook)) {
                let busy = after.iter().filter(|other| other.worker == Some(warm.worker)).count();
                prop_assert!(busy >= warm.slots as usize);
            }
        }
    }
}

#[test]
fn without_a_worker_that_is_the_reason() {
    let jobs = [Job {
        job: job_id(1),
        notebook: notebook_id(1),
        worker: None,
    }];
    let plan = plan(&jobs, &[]);
    assert_eq!(plan.places[0].1.waiting, WaitingReason::NoWorker);
}

#[test]
fn the_least_loaded_worker_is_taken() {
    let worker = |number, slots| Worker {
        worker: worker_id(number),
        slots,
        warm: HashSet::new(),
    };
    let job = |number: u8, worker: Option<u8>| Job {
        job: job_id(number.into()),
        notebook: notebook_id(number),
        worker: worker.map(worker_id),
    };
    // One of two is more than one of four.
    let jobs = [job(1, Some(1)), job(2, Some(2)), job(3, None)];
    let plan = plan(&jobs, &[worker(1, 2), worker(2, 4)]);
    assert_eq!(plan.assignments, [(job_id(3), worker_id(2))]);
}
