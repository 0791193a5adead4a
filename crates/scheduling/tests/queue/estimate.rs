//! When cells start: what an estimate guarantees for any queue, and how accurate it is in lectures.

use crate::{
    lecture::score::Score,
    order::{carried_out, class, job, job_id, of, worker, worker_id},
};
use baton_protocol::JobId;
use baton_scheduling::queue::{
    CourseOutlook, Expected, Job, Outlook, Returning, Seen, StartEstimate, Survival, Times, Worker,
    estimate_starts, plan,
};
use proptest::prelude::*;
use std::{collections::HashMap, sync::Arc};

/// No new people come, and each job takes exactly this long.
pub(crate) fn certain(takes: &[Option<u64>]) -> Outlook {
    let expected = |ms: &Option<u64>| Expected {
        course: 0,
        of_its_own: 0.0,
        starting: None,
        takes: ms.map(Times::exactly),
    };
    Outlook {
        jobs: takes.iter().map(expected).collect(),
        courses: vec![CourseOutlook {
            takes: None,
            pauses: Survival::default(),
            unlike_runs: 0.0,
            unlike_pauses: 0.0,
            newcomers: 0.0,
            newcomers_for_ms: 0,
            newcomer: job(0, None).precedence,
        }],
        returning: Vec::new(),
        cold: None,
        warm: None,
    }
}

fn said(estimates: Vec<(JobId, Option<StartEstimate>)>) -> HashMap<JobId, Option<StartEstimate>> {
    estimates.into_iter().collect()
}

proptest! {
    #[test]
    fn an_estimate_is_a_range_for_each_that_waits_and_always_the_same(
        (jobs, workers, each) in class(),
        takes in prop::collection::vec(prop::option::weighted(0.8, 1..1000_u64), 30),
    ) {
        let plan = plan(&jobs, &workers, each);
        let after = carried_out(&jobs, &plan);
        let outlook = certain(&takes[..jobs.len()]);
        let estimates = estimate_starts(&after, &workers, each, outlook.clone());
        let positions: Vec<JobId> = plan.positions.iter().map(|(job, _)| *job).collect();
        let told: Vec<JobId> = estimates.iter().map(|(job, _)| *job).collect();
        prop_assert_eq!(told, positions);
        prop_assert_eq!(&estimates, &estimate_starts(&after, &workers, each, outlook.clone()));
        let unknown = after.iter().zip(&outlook.jobs).any(|(job, expected)| job.worker.is_some() && expected.takes.is_none());
        for (id, said) in estimates {
            if let Some(StartEstimate { starts, overtakers }) = said {
                prop_assert!(starts.lower <= starts.middle && starts.middle <= starts.upper);
                prop_assert_eq!(overtakers, 0);
                prop_assert!(!unknown && !of(&jobs, id).paused && !of(&jobs, id).held && !workers.is_empty());
            }
        }
    }

    /// If nothing is uncertain, jobs start in the order in which they are assigned as the running ones end.
    #[test]
    fn jobs_start_in_the_order_in_which_they_are_assigned((mut jobs, mut workers, each) in class()) {
        workers.iter_mut().for_each(|worker| worker.keeping.clear());
        // A job's worker matters to other jobs only if requirements differ. The estimate moves
        // sessions; the plan below does not.
        jobs.iter_mut().for_each(|job| job.needs = Arc::default());
        workers.iter_mut().for_each(|worker| worker.leaves_in_ms = None);
        let first = plan(&jobs, &workers, each);
        let mut after = carried_out(&jobs, &first);
        let same = vec![Some(60_000); after.len()];
        let said = said(estimate_starts(&after, &workers, each, certain(&same)));
        let mut last = 0;
        // All running jobs end at the same time, again and again.
        while after.iter().any(|job| job.worker.is_some()) {
            let (ended, waiting): (Vec<Job>, Vec<Job>) = after.into_iter().partition(|job| job.worker.is_some());
            after = waiting;
            for job in &mut after {
                let runs = ended.iter().filter(|run| run.owner == job.owner).count();
                let precedence = &mut job.precedence;
                precedence.waited_ms += 60_000;
                precedence.used_ms += 60_000.0 * runs as f64;
                precedence.since_run_ms = match runs {
                    0 => precedence.since_run_ms.map(|since| since + 60_000),
                    _ => Some(0),
                };
            }
            let next = plan(&after, &workers, each);
            let starts = next.assignments.iter().filter_map(|(id, _)| said[id]).map(|said| said.starts.middle);
            let starts: Vec<u64> = starts.collect();
            prop_assert_eq!(starts.len(), next.assignments.len());
            prop_assert!(starts.iter().all(|start| *start > last), "{:?} {}", starts, last);
            last = starts.iter().copied().max().unwrap_or(last);
            after = carried_out(&after, &next);
        }
        // No others ever start.
        prop_assert!(after.iter().all(|job| said[&job.job].is_none()));
    }
}

fn line() -> (Vec<Job>, Outlook) {
    let running = job(1, Some(1));
    let mut waiting = job(2, None);
    waiting.precedence.used_ms = 600_000.0;
    (
        vec![running, waiting],
        certain(&[Some(20_000), Some(20_000)]),
    )
}

fn start(jobs: &[Job], outlook: &Outlook) -> StartEstimate {
    let estimates = estimate_starts(jobs, &[worker(1, 1)], 1, outlook.clone());
    assert_eq!(estimates[0].0, job_id(2));
    estimates[0].1.unwrap()
}

#[test]
fn a_session_that_has_to_start_is_counted_in() {
    let (jobs, mut outlook) = line();
    let alone = start(&jobs, &outlook).starts;
    assert_eq!((alone.lower, alone.upper), (20_000, 20_000));
    outlook.cold = Some(Times::exactly(8000));
    assert_eq!(start(&jobs, &outlook).starts, alone.map(|ms| ms + 8000));
    // This includes the start of a job's session.
    outlook.jobs[0].starting = Some(Times::exactly(5000));
    assert_eq!(start(&jobs, &outlook).starts, alone.map(|ms| ms + 13_000));
    // A warm session starts as fast as earlier ones.
    outlook.warm = Some(Times::exactly(300));
    let mut warm = worker(1, 1);
    warm.warm.insert(jobs[1].notebook);
    let told = estimate_starts(&jobs, &[warm], 1, outlook)[0].1.unwrap();
    assert_eq!(told.starts, alone.map(|ms| ms + 5300));
}

#[test]
fn a_wait_for_the_own_session_is_counted_in() {
    let (jobs, outlook) = line();
    let mut own = worker(1, 1);
    own.keeping.insert(jobs[1].notebook);
    let starts = |own: Worker| {
        let said = estimate_starts(&jobs, &[own, worker(2, 1)], 1, outlook.clone());
        self::said(said)[&jobs[1].job].unwrap().starts.middle
    };
    assert_eq!(starts(worker(1, 1)), 0);
    assert_eq!(starts(own), 20_000);
}

#[test]
fn people_who_used_less_and_are_about_to_come_are_counted_in() {
    let (jobs, mut outlook) = line();
    let alone = start(&jobs, &outlook);
    let comes = |seconds: f64| Seen {
        seconds,
        ended: true,
    };
    outlook.courses[0].pauses = Survival::of(vec![comes(5.0), comes(8.0)]);
    outlook.courses[0].takes = Some(Times::exactly(30_000));
    outlook.returning = ["eve", "dan"]
        .map(|owner| Returning {
            owner: owner.into(),
            course: 0,
            precedence: job(9, None).precedence,
            absent_ms: 0,
        })
        .to_vec();
    let overtaken = start(&jobs, &outlook);
    assert!(
        overtaken.starts.lower >= alone.starts.upper,
        "{overtaken:?}"
    );
    assert!(overtaken.overtakers >= 2, "{overtaken:?}");
    // People who have used more do not overtake.
    for returning in &mut outlook.returning {
        returning.precedence.used_ms = 1_200_000.0;
    }
    assert_eq!(start(&jobs, &outlook), alone);
    // New people may come, too.
    outlook.returning.clear();
    outlook.courses[0].newcomers = 0.001;
    outlook.courses[0].newcomers_for_ms = 60_000;
    assert!(start(&jobs, &outlook).overtakers > 0);
}

#[test]
fn behind_a_run_that_nobody_knows_nothing_is_said() {
    let (jobs, mut outlook) = line();
    outlook.jobs[0].takes = None;
    assert_eq!(
        estimate_starts(&jobs, &[worker(1, 1)], 1, outlook),
        [(job_id(2), None)]
    );
    assert_eq!(jobs[0].worker, Some(worker_id(1)));
}

/// The full measurement is `benches/estimates.py`.
#[test]
fn four_of_five_ranges_hold_the_start_and_no_place_moves_back_without_a_reason() {
    let score = Score::of(0..5, Some(60), 30);
    assert!(score.first.ranges() > 1000, "{score:?}");
    for held in [&score.first, &score.later] {
        assert!(
            (0.75..=0.85).contains(&held.part()),
            "{} {score:?}",
            held.part()
        );
    }
    let (told, best) = score.width();
    // Only a few are compared here; over twenty lectures the target is twice the best.
    assert!(2 * told <= 5 * best, "{told} {best}");
    assert!(
        score.back.tellings > 0 && score.back.without_reason == 0,
        "{:?}",
        score.back
    );
}
