//! The order keeps its guarantees whatever the jobs and workers are.

use baton_protocol::{JobId, NotebookId, Requirement, WorkerId, api::AheadBecause};
use baton_scheduling::queue::{
    Job, Offer, Plan, Precedence, QueuePosition, Reason, SESSION_PATIENCE_MS, Worker, ahead_of,
    plan,
};
use proptest::prelude::*;
use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    sync::Arc,
};
use uuid::Uuid;

pub(crate) fn job_id(number: u128) -> JobId {
    JobId(Uuid::from_u128(number))
}

pub(crate) fn worker_id(number: u8) -> WorkerId {
    WorkerId(Uuid::from_u128(number.into()))
}

fn notebook_id(number: u8) -> NotebookId {
    NotebookId(Uuid::from_u128(number.into()))
}

fn precedence() -> impl Strategy<Value = Precedence> {
    let weight = prop::sample::select(vec![0.5, 1.0, 4.0]);
    let boost = prop::sample::select(vec![1.0, 1.0, 3.0]);
    (
        0..200_000_u32,
        weight,
        boost,
        prop::bool::weighted(0.2),
        0..1_000_000_u64,
        prop::option::of(0..1_000_000_u64),
    )
        .prop_map(
            |(used_ms, weight, boost, low_priority, waited_ms, since_run_ms)| Precedence {
                used_ms: used_ms.into(),
                weight,
                boost,
                low_priority,
                waited_ms,
                since_run_ms,
            },
        )
}

/// Jobs of at most 8 notebooks of at most 4 people. Some have a worker, at most one per notebook;
/// that worker may be disconnected.
fn jobs() -> impl Strategy<Value = Vec<Job>> {
    let worker = prop::option::weighted(0.3, 0..6_u8);
    let row = (
        0..8_u8,
        worker,
        precedence(),
        (prop::bool::weighted(0.1), prop::bool::weighted(0.1)),
        (
            prop::option::weighted(0.1, 0..9_i64),
            needs(),
            prop::option::of(0..4_u64),
        ),
    );
    prop::collection::vec(row, 0..30).prop_map(|rows| {
        let mut running = HashSet::new();
        (0..)
            .zip(rows)
            .map(
                |(
                    number,
                    (notebook, worker, precedence, (held, paused), (front, needs, takes_ms)),
                )| Job {
                    job: job_id(number),
                    notebook: notebook_id(notebook),
                    owner: format!("person {}", notebook / 2).into(),
                    worker: worker.filter(|_| running.insert(notebook)).map(worker_id),
                    precedence,
                    held,
                    paused,
                    front,
                    needs,
                    takes_ms,
                },
            )
            .collect()
    })
}

/// Most jobs have no requirements.
fn needs() -> impl Strategy<Value = Arc<[Requirement]>> {
    let label = |label: &str| Requirement::Label {
        label: label.to_owned(),
    };
    let all = vec![label("a"), label("b"), Requirement::Time { ms: 1 }];
    prop_oneof![
        2 => Just(Arc::default()),
        1 => prop::sample::subsequence(all, 1..=3).prop_map(Arc::from),
    ]
}

fn labelled(labels: &[&str]) -> Offer {
    let mut offer = Offer::default();
    offer.machine.labels = labels.iter().map(|label| (*label).to_owned()).collect();
    offer
}

fn workers() -> impl Strategy<Value = Vec<Worker>> {
    let warm = prop::collection::hash_map(0..8_u8, prop::bool::weighted(0.3), 0..4);
    let labels = prop::sample::subsequence(vec!["a", "b"], 0..=2);
    let time = prop::option::weighted(0.3, 0..3_u64);
    let row = (0..4_u32, warm, prop::bool::weighted(0.9), labels, time);
    let rows = prop::collection::vec(row, 0..5);
    rows.prop_map(|rows| {
        (0..)
            .zip(rows)
            .map(
                |(number, (slots, warm, open, labels, leaves_in_ms))| Worker {
                    worker: worker_id(number),
                    slots,
                    warm: warm.keys().copied().map(notebook_id).collect(),
                    keeping: warm
                        .into_iter()
                        .filter(|(_, keeps)| *keeps && slots > 0)
                        .map(|(notebook, _)| notebook_id(notebook))
                        .collect(),
                    open,
                    offer: Arc::new(labelled(&labels)),
                    leaves_in_ms,
                },
            )
            .collect()
    })
}

pub(crate) fn class() -> impl Strategy<Value = (Vec<Job>, Vec<Worker>, u32)> {
    (jobs(), workers(), 1..3_u32)
}

/// The jobs after the plan is carried out.
pub(crate) fn carried_out(jobs: &[Job], plan: &Plan) -> Vec<Job> {
    let assigned: HashMap<JobId, WorkerId> = plan.assignments.iter().copied().collect();
    let with_worker = |job: &Job| Job {
        worker: job.worker.or_else(|| assigned.get(&job.job).copied()),
        ..job.clone()
    };
    jobs.iter().map(with_worker).collect()
}

pub(crate) fn of(jobs: &[Job], id: JobId) -> &Job {
    jobs.iter().find(|job| job.job == id).unwrap()
}

fn in_queue_order(position: &QueuePosition) -> bool {
    matches!(
        position.reason,
        Reason::JobsAhead | Reason::BehindDeadline(_) | Reason::BehindMoved
    )
}

proptest! {
    #[test]
    fn every_waiting_job_is_assigned_or_placed_and_never_both((jobs, workers, each) in class()) {
        let plan = plan(&jobs, &workers, each);
        let mut told: Vec<JobId> = plan.assignments.iter().map(|(job, _)| *job).collect();
        told.extend(plan.positions.iter().map(|(job, _)| *job));
        told.sort_unstable();
        let mut waiting: Vec<JobId> = jobs.iter().filter(|job| job.worker.is_none()).map(|job| job.job).collect();
        waiting.sort_unstable();
        prop_assert_eq!(told, waiting);
    }

    #[test]
    fn who_is_ahead_is_ahead_for_a_reason((jobs, workers, each) in class()) {
        let plan = plan(&jobs, &workers, each);
        let jobs = carried_out(&jobs, &plan);
        let positions: Vec<JobId> = plan.positions.iter().map(|(job, _)| *job).collect();
        for (position, behind) in positions.iter().enumerate() {
            let ahead = ahead_of(&jobs, *behind);
            let named: Vec<JobId> = ahead.iter().map(|(job, _)| *job).collect();
            prop_assert_eq!(named, &positions[..position]);
            let behind = of(&jobs, *behind);
            for (job, because) in ahead {
                let ahead = of(&jobs, job);
                let (precedence, other) = (ahead.precedence, behind.precedence);
                let is_so = match because {
                    AheadBecause::Held => behind.held && !ahead.held,
                    AheadBecause::MovedToFront => ahead.front > behind.front,
                    AheadBecause::CoursePaused => behind.paused && !ahead.paused,
                    AheadBecause::Deadline => precedence.boost > 1.0,
                    AheadBecause::LowPriority => other.low_priority && !precedence.low_priority,
                    AheadBecause::UsedLess => other.used_ms > 0.0,
                    AheadBecause::WaitedLonger => {
                        other.low_priority || precedence.waited_for_turn_ms() >= other.waited_for_turn_ms()
                    }
                };
                prop_assert!(is_so, "{:?}: {:?} {:?}", because, ahead, behind);
            }
        }
    }

    #[test]
    fn no_worker_gets_more_than_its_slots_and_a_paused_one_nothing((jobs, workers, each) in class()) {
        let plan = plan(&jobs, &workers, each);
        for worker in &workers {
            let before = jobs.iter().filter(|job| job.worker == Some(worker.worker)).count();
            let new = plan.assignments.iter().filter(|(_, to)| *to == worker.worker).count();
            prop_assert!(new == 0 || (worker.open && before + new <= worker.slots as usize));
        }
        for (_, to) in &plan.assignments {
            prop_assert!(workers.iter().any(|worker| worker.worker == *to));
        }
    }

    #[test]
    fn a_notebook_runs_one_job_and_a_person_no_more_than_the_rule((jobs, workers, each) in class()) {
        let plan = plan(&jobs, &workers, each);
        for (id, _) in &plan.assignments {
            let job = of(&jobs, *id);
            let after = carried_out(&jobs, &plan);
            let running = || after.iter().filter(|other| other.worker.is_some());
            prop_assert_eq!(running().filter(|other| other.notebook == job.notebook).count(), 1);
            prop_assert!(running().filter(|other| other.owner == job.owner).count() <= each as usize);
            prop_assert!(!job.paused && !job.held);
        }
    }

    #[test]
    fn nothing_idles_while_somebody_could_run((jobs, workers, each) in class()) {
        let first = plan(&jobs, &workers, each);
        let again = plan(&carried_out(&jobs, &first), &workers, each);
        prop_assert!(again.assignments.is_empty());
        // What was shown stays true. A job that waits for a session may also wait for another cell
        // of the notebook.
        for (told, later) in first.positions.iter().zip(&again.positions) {
            let waits_for_both = matches!(told.1.reason, Reason::OwnSession(_))
                && matches!(later.1.reason, Reason::OwnJobRuns(_));
            // So may a job that waits for one worker while another cell of the notebook starts on another.
            let has_needs = !of(&jobs, told.0).needs.is_empty();
            let own_runs = has_needs && matches!(later.1.reason, Reason::OwnJobRuns(_));
            prop_assert!(told == later || waits_for_both || own_runs, "{:?} {:?}", told, later);
        }
        prop_assert_eq!(again.positions.len(), first.positions.len());
    }

    #[test]
    fn places_are_numbered_by_rank_and_then_by_arrival((jobs, workers, each) in class()) {
        let plan = plan(&jobs, &workers, each);
        for (expected, (_, position)) in (1..).zip(&plan.positions) {
            prop_assert_eq!(position.position, expected);
        }
        let key = |job: JobId| {
            let Job { held, paused, front, precedence, .. } = of(&jobs, job);
            (*held, *paused, Reverse(*front), precedence.rank(), job)
        };
        prop_assert!(plan.positions.is_sorted_by(|(one, _), (other, _)| key(*one) < key(*other)));
    }

    #[test]
    fn nobody_in_line_is_passed_by_a_higher_rank((jobs, workers, each) in class()) {
        let plan = plan(&jobs, &workers, each);
        let rank = |job: JobId| (Reverse(of(&jobs, job).front), of(&jobs, job).precedence.rank());
        for (waits, _) in plan.positions.iter().filter(|(_, position)| in_queue_order(position)) {
            for (assigned, to) in &plan.assignments {
                let worker = workers.iter().find(|worker| worker.worker == *to).unwrap();
                let could_run_there = worker.lacks(&of(&jobs, *waits).needs).is_none();
                prop_assert!(!could_run_there || rank(*assigned) <= rank(*waits));
            }
        }
    }

    #[test]
    fn every_job_runs_where_its_needs_are_met((jobs, workers, each) in class()) {
        for (job, to) in plan(&jobs, &workers, each).assignments {
            let worker = workers.iter().find(|worker| worker.worker == to).unwrap();
            prop_assert_eq!(worker.lacks(&of(&jobs, job).needs), None);
        }
    }

    #[test]
    fn a_reason_is_true((jobs, workers, each) in class()) {
        let plan = plan(&jobs, &workers, each);
        let after = carried_out(&jobs, &plan);
        for (id, position) in &plan.positions {
            let job = of(&jobs, *id);
            let lacking = |worker: &&Worker| worker.lacks(&job.needs).is_some();
            let is_free = |worker: &&Worker| {
                let busy = after.iter().filter(|other| other.worker == Some(worker.worker)).count();
                worker.open && busy < worker.slots as usize
            };
            match position.reason.clone() {
                Reason::Held => prop_assert!(job.held),
                Reason::BehindMoved => {
                    let moved = plan.positions.iter().map(|(other, _)| of(&jobs, *other));
                    prop_assert!(job.front.is_none() && moved.into_iter().any(|other| other.front.is_some()));
                }
                Reason::CoursePaused => prop_assert!(job.paused),
                Reason::OwnJobRuns(other) => {
                    let other = of(&after, other);
                    prop_assert!(other.worker.is_some());
                    prop_assert!(other.owner == job.owner);
                }
                Reason::NoWorker => prop_assert!(workers.is_empty()),
                Reason::WorkersClosed => {
                    let mut fitting = workers.iter().filter(|worker| !lacking(worker));
                    prop_assert!(fitting.all(|worker| !worker.open));
                }
                Reason::NoWorkerFits(requirement) => {
                    prop_assert!(job.needs.contains(&requirement));
                    prop_assert!(workers.iter().all(|worker| lacking(&worker)));
                }
                Reason::FittingWorkersBusy(requirement) => {
                    let mut free = workers.iter().filter(is_free);
                    prop_assert!(free.any(|worker| worker.lacks(&job.needs) == Some(&requirement)));
                    prop_assert!(workers.iter().any(|worker| worker.open && !lacking(&worker)));
                }
                Reason::BehindDeadline(other) => {
                    let ahead = of(&jobs, other);
                    prop_assert!(other > *id && ahead.precedence.boost > 1.0);
                    prop_assert!(ahead.worker.is_some() || ahead.precedence.rank() <= job.precedence.rank());
                    // It is ahead only where this job could run.
                    if let Some(on) = of(&after, other).worker {
                        prop_assert!(workers.iter().any(|worker| worker.worker == on && !lacking(&worker)));
                    }
                }
                Reason::OwnSession(own) => {
                    let own = workers.iter().find(|worker| worker.worker == own).unwrap();
                    let busy = after.iter().filter(|other| other.worker == Some(own.worker)).count();
                    prop_assert!(own.open && own.keeping.contains(&job.notebook) && busy >= own.slots as usize);
                    prop_assert!(job.precedence.waited_ms < SESSION_PATIENCE_MS);
                }
                Reason::JobsAhead => {
                    prop_assert!(!workers.iter().any(|worker| is_free(&worker)));
                }
            }
        }
    }

    #[test]
    fn the_end_of_a_job_never_lowers_anyone((jobs, workers, each) in class(), ended in any::<prop::sample::Index>()) {
        prop_assume!(!jobs.is_empty());
        let before = plan(&jobs, &workers, each);
        let mut jobs = carried_out(&jobs, &before);
        jobs.remove(ended.index(jobs.len()));
        let after: HashMap<JobId, u32> =
            plan(&jobs, &workers, each).positions.iter().map(|(job, position)| (*job, position.position)).collect();
        for (job, position) in &before.positions {
            if let Some(later) = after.get(job) {
                prop_assert!(*later <= position.position);
            }
        }
    }

    /// A preference: if none stays long enough, the job still runs. A session that cannot move matters more.
    #[test]
    fn a_job_runs_where_it_is_likely_to_end((jobs, workers, each) in class()) {
        let plan = plan(&jobs, &workers, each);
        let after = carried_out(&jobs, &plan);
        for (job, to) in &plan.assignments {
            let job = of(&after, *job);
            let chosen = workers.iter().find(|worker| worker.worker == *to).unwrap();
            if !chosen.leaves_early(job) || chosen.keeping.contains(&job.notebook) {
                continue;
            }
            let stays = |worker: &&Worker| worker.open && !worker.leaves_early(job);
            for better in workers.iter().filter(stays).filter(|worker| worker.lacks(&job.needs).is_none()) {
                let busy = after.iter().filter(|other| other.worker == Some(better.worker)).count();
                prop_assert!(busy >= better.slots as usize);
            }
        }
    }

    #[test]
    fn a_free_warm_worker_is_taken((jobs, workers, each) in class()) {
        let plan = plan(&jobs, &workers, each);
        let after = carried_out(&jobs, &plan);
        for (job, to) in &plan.assignments {
            let job = of(&after, *job);
            let Job { notebook, needs, .. } = job;
            let chosen = workers.iter().find(|worker| worker.worker == *to).unwrap();
            if chosen.warm.contains(notebook) {
                continue;
            }
            let is_warm = |worker: &&Worker| worker.open && worker.warm.contains(notebook);
            let fits = |worker: &&Worker| worker.lacks(needs).is_none();
            let is_as_good = |worker: &&Worker| chosen.leaves_early(job) || !worker.leaves_early(job);
            for warm in workers.iter().filter(is_warm).filter(fits).filter(is_as_good) {
                let busy = after.iter().filter(|other| other.worker == Some(warm.worker)).count();
                prop_assert!(busy >= warm.slots as usize);
            }
        }
    }
}

pub(crate) fn precedence_of(used_ms: f64, waited_ms: u64) -> Precedence {
    Precedence {
        used_ms,
        weight: 1.0,
        boost: 1.0,
        low_priority: false,
        waited_ms,
        since_run_ms: None,
    }
}

pub(crate) fn job(number: u8, worker: Option<u8>) -> Job {
    Job {
        job: job_id(number.into()),
        notebook: notebook_id(number),
        owner: number.to_string().into(),
        worker: worker.map(worker_id),
        precedence: precedence_of(0.0, 0),
        held: false,
        paused: false,
        front: None,
        needs: Arc::default(),
        takes_ms: None,
    }
}

pub(crate) fn worker(number: u8, slots: u32) -> Worker {
    Worker {
        worker: worker_id(number),
        slots,
        warm: HashSet::new(),
        keeping: HashSet::new(),
        open: true,
        offer: Arc::default(),
        leaves_in_ms: None,
    }
}

#[test]
fn without_a_worker_that_is_the_reason() {
    let plan = plan(&[job(1, None)], &[], 1);
    assert_eq!(plan.positions[0].1.reason, Reason::NoWorker);
}

#[test]
fn the_least_loaded_worker_is_taken() {
    // One of two slots is more load than one of four.
    let jobs = [job(1, Some(1)), job(2, Some(2)), job(3, None)];
    let plan = plan(&jobs, &[worker(1, 2), worker(2, 4)], 1);
    assert_eq!(plan.assignments, [(job_id(3), worker_id(2))]);
}

#[test]
fn a_deadline_is_no_reason_on_a_worker_that_the_job_cannot_use() {
    let urgent = Job {
        precedence: Precedence {
            boost: 3.0,
            ..precedence_of(0.0, 0)
        },
        ..job(3, Some(1))
    };
    let waits = Job {
        needs: Arc::from([Requirement::Label { label: "a".into() }]),
        ..job(2, None)
    };
    let mut fitting = worker(2, 1);
    fitting.offer = Arc::new(labelled(&["a"]));
    let plan = plan(
        &[job(1, Some(2)), waits, urgent],
        &[worker(1, 1), fitting],
        1,
    );
    assert_eq!(plan.positions[0].1.reason, Reason::JobsAhead);
}

#[test]
fn a_cell_waits_a_while_for_the_session_that_holds_what_no_other_can_have() {
    let decide = |waited_ms, keeps: bool, open: bool| {
        let waits = Job {
            precedence: precedence_of(0.0, waited_ms),
            ..job(2, None)
        };
        let mut own = worker(1, 1);
        own.warm.insert(notebook_id(2));
        own.keeping.extend(keeps.then(|| notebook_id(2)));
        own.open = open;
        let plan = plan(
            &[job(1, Some(1)), waits, job(3, None)],
            &[own, worker(2, 2)],
            1,
        );
        let reasons: Vec<Reason> = plan
            .positions
            .iter()
            .map(|(_, position)| position.reason.clone())
            .collect();
        (plan.assignments.len(), reasons)
    };
    let last_moment = SESSION_PATIENCE_MS - 1;
    assert_eq!(
        decide(last_moment, true, true),
        (1, vec![Reason::OwnSession(worker_id(1))])
    );
    assert_eq!(decide(SESSION_PATIENCE_MS, true, true), (2, vec![]));
    assert_eq!(decide(0, false, true), (2, vec![]));
    assert_eq!(decide(0, true, false), (2, vec![]));
}

#[test]
fn who_used_less_for_the_weight_is_first() {
    let with = |number, precedence| Job {
        precedence,
        ..job(number, None)
    };
    let base = precedence_of(100_000.0, 0);
    let order = |precedences: &[Precedence]| -> Vec<u128> {
        let jobs: Vec<Job> = (1..)
            .zip(precedences)
            .map(|(number, precedence)| with(number, *precedence))
            .collect();
        let plan = plan(&jobs, &[worker(1, 0)], 1);
        plan.positions
            .iter()
            .map(|(job, _)| job.0.as_u128())
            .collect()
    };
    let heavier = Precedence {
        weight: 2.0,
        ..base
    };
    let boosted = Precedence { boost: 3.0, ..base };
    let low = Precedence {
        low_priority: true,
        ..base
    };
    let patient = precedence_of(100_000.0, 900_000);
    let new = precedence_of(0.0, 0);
    assert_eq!(
        order(&[base, heavier, boosted, low, patient, new]),
        [6, 5, 3, 2, 1, 4]
    );
    assert_eq!(order(&[base, base]), [1, 2]);
}
