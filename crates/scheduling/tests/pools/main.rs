//! Pools keep their terms whatever waits.
#![allow(clippy::unwrap_used)]

use baton_scheduling::pools::{
    Demand, MOST_FAILURES, MOST_PENDING, Present, Terms, Waiting, demands, idle_ms, to_start,
    wanted,
};
use proptest::prelude::*;

fn terms() -> impl Strategy<Value = Terms> {
    (0..4_u32, 0..8_u32, 1..120_000_u64).prop_map(|(min, more, target_wait_ms)| Terms {
        min,
        max: min + more,
        target_wait_ms,
    })
}

fn present() -> impl Strategy<Value = Present> {
    let failures = prop_oneof![4 => 0..MOST_FAILURES, 1 => Just(MOST_FAILURES)];
    (0..20_u32, 0..10_u32, 0..4_u32, 1..5_u32, failures).prop_map(
        |(running, up, pending, slots, failures)| Present {
            running,
            up,
            pending,
            slots,
            failures,
        },
    )
}

fn waiting(pools: usize) -> impl Strategy<Value = Vec<Waiting>> {
    let job = (
        0..600_000_u64,
        prop::sample::subsequence((0..pools).collect::<Vec<_>>(), 0..=pools),
    );
    let job = job.prop_map(|(work_ms, pools)| Waiting { work_ms, pools });
    prop::collection::vec(job, 0..40)
}

fn demand() -> impl Strategy<Value = Demand> {
    (0..50_u32, 0..10_000_000_u64).prop_map(|(jobs, work_ms)| Demand { jobs, work_ms })
}

proptest! {
    #[test]
    fn a_pool_stays_within_its_terms(terms in terms(), demand in demand(), present in present()) {
        let wanted = wanted(&terms, &demand, &present);
        prop_assert!((terms.min..=terms.max).contains(&wanted));
        let start = to_start(&terms, &demand, &present);
        prop_assert!(start == 0 || present.up + present.pending + start <= wanted);
        prop_assert!(start == 0 || present.pending + start <= MOST_PENDING);
        prop_assert!(start == 0 || !present.is_paused());
    }

    #[test]
    fn more_work_never_wants_fewer_workers(terms in terms(), demand in demand(), present in present(), more in demand()) {
        let sum = Demand { jobs: demand.jobs + more.jobs, work_ms: demand.work_ms + more.work_ms };
        prop_assert!(wanted(&terms, &sum, &present) >= wanted(&terms, &demand, &present));
    }

    #[test]
    fn no_more_workers_are_wanted_than_jobs_need(terms in terms(), demand in demand(), present in present()) {
        let jobs = present.running + demand.jobs;
        prop_assert!(wanted(&terms, &demand, &present) <= terms.min.max(jobs.div_ceil(present.slots)));
    }

    #[test]
    fn a_job_goes_to_one_pool_that_can_run_it(
        waiting in waiting(3),
        pools in prop::collection::vec((terms(), present()), 3),
    ) {
        let demands = demands(&waiting, &pools);
        for (pool, demand) in demands.iter().enumerate() {
            let able = waiting.iter().filter(|job| job.pools.contains(&pool)).count();
            prop_assert!(demand.jobs as usize <= able);
            prop_assert!(demand.jobs == 0 || !pools[pool].1.is_paused());
        }
        let given: u32 = demands.iter().map(|demand| demand.jobs).sum();
        prop_assert!(given as usize <= waiting.len());
        // None is left while the only pool that can run it has room.
        for job in waiting.iter().filter(|job| job.pools.len() == 1) {
            let pool = job.pools[0];
            let (terms, present) = &pools[pool];
            let full = wanted(terms, &demands[pool], present) == terms.max;
            prop_assert!(demands[pool].jobs > 0 || present.is_paused() || full);
        }
    }

    /// Nothing is ended and started again for the same load: starting what is wanted leaves nothing to start.
    #[test]
    fn a_steady_load_settles(terms in terms(), demand in demand(), present in present()) {
        let mut present = Present { failures: 0, pending: 0, ..present };
        for _ in 0..20 {
            present.pending = to_start(&terms, &demand, &present);
            present.up += present.pending;
            present.pending = 0;
        }
        prop_assert_eq!(to_start(&terms, &demand, &present), 0);
        prop_assert!(present.up >= wanted(&terms, &demand, &present));
    }

    #[test]
    fn a_worker_is_kept_for_as_long_as_another_takes_to_start(idle in 0..600_000_u64, start in prop::option::of(0..600_000_u64)) {
        let idle_for = idle_ms(idle, start);
        prop_assert!(idle_for >= idle && idle_for >= start.unwrap_or(0));
    }
}

#[test]
fn as_many_as_the_work_needs() {
    let terms = Terms {
        min: 0,
        max: 6,
        target_wait_ms: 60_000,
    };
    let alone = Present {
        slots: 1,
        ..Present::default()
    };
    for (jobs, work_ms, running, expected) in [
        (0, 0, 0, 0),
        // The first cell starts a machine, however short it is.
        (1, 700, 0, 1),
        // One long cell needs one slot.
        (1, 36_000_000, 0, 1),
        (40, 40 * 30_000, 0, 6),
        (4, 4 * 30_000, 0, 2),
        (4, 4 * 30_000, 2, 4),
        (0, 0, 2, 2),
    ] {
        let present = Present { running, ..alone };
        assert_eq!(
            wanted(&terms, &Demand { jobs, work_ms }, &present),
            expected
        );
    }
}

#[test]
fn what_one_pool_has_no_room_for_goes_to_the_next() {
    let terms = |max| Terms {
        min: 0,
        max,
        target_wait_ms: 60_000,
    };
    let present = Present {
        slots: 1,
        ..Present::default()
    };
    let job = Waiting {
        work_ms: 60_000,
        pools: vec![0, 1],
    };
    let both = [(terms(2), present), (terms(6), present)];
    let jobs = |demands: Vec<Demand>| demands.iter().map(|demand| demand.jobs).collect::<Vec<_>>();
    assert_eq!(jobs(demands(&vec![job.clone(); 5], &both)), [2, 3]);
    let paused = Present {
        failures: MOST_FAILURES,
        ..present
    };
    let second = [(terms(2), paused), (terms(6), present)];
    assert_eq!(jobs(demands(&vec![job; 5], &second)), [0, 5]);
}
