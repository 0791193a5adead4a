//! Pools stay within their limits, whatever jobs wait.
#![allow(clippy::unwrap_used)]

use baton_scheduling::pools::{
    Demand, Floor, Kind, Lesson, MOST_FAILURES, MOST_PENDING, Present, Scaling, Waiting, demands,
    floors, idle_ms, ready_slots, to_start, wanted,
};
use proptest::prelude::*;

fn scaling() -> impl Strategy<Value = Scaling> {
    (0..4_u32, 0..8_u32, 1..120_000_u64).prop_map(|(min, more, target_wait_ms)| Scaling {
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

fn lessons(pools: usize) -> impl Strategy<Value = Vec<Lesson>> {
    let numbers = prop::sample::subsequence((0..pools).collect::<Vec<_>>(), 0..=pools);
    let lesson = (0..60_u32, 0..4_000_000_i64, 1..6_000_000_i64, numbers);
    let lesson = lesson.prop_map(|(slots, start_ms, length_ms, pools)| Lesson {
        slots,
        start_ms,
        end_ms: start_ms + length_ms,
        other_slots: u32::MAX,
        pools,
    });
    prop::collection::vec(lesson, 0..6)
}

fn kinds() -> impl Strategy<Value = Vec<(Scaling, Kind)>> {
    let kind = (1..5_u32, 0..600_000_i64);
    let kind = kind.prop_map(|(slots, start_ms)| Kind { slots, start_ms });
    prop::collection::vec((scaling(), kind), 3..=3)
}

proptest! {
    #[test]
    fn lessons_never_ask_for_more_than_the_limits_or_than_they_need(
        lessons in lessons(3), kinds in kinds(), others in 0..20_u32, now in 0..4_000_000_i64,
    ) {
        let floors = floors(&lessons, &kinds, others, now);
        let mut slots = 0;
        for (floor, (scaling, kind)) in floors.iter().zip(&kinds) {
            prop_assert!(floor.workers <= scaling.max);
            prop_assert_eq!(floor.workers == 0, floor.until_ms == 0);
            slots += floor.workers.saturating_sub(1) * kind.slots;
        }
        prop_assert!(slots <= lessons.iter().map(|lesson| lesson.slots).sum());
    }

    #[test]
    fn a_lesson_that_takes_place_has_all_that_there_can_be(
        mut lesson in lessons(3).prop_filter_map("a lesson", |mut lessons| lessons.pop()), kinds in kinds(), others in 0..20_u32,
    ) {
        lesson.pools = vec![0, 1, 2];
        let floors = floors(std::slice::from_ref(&lesson), &kinds, others, lesson.start_ms);
        let has: u32 = floors.iter().zip(&kinds).map(|(floor, (_, kind))| floor.workers * kind.slots).sum();
        let most: u32 = kinds.iter().map(|(scaling, kind)| scaling.max * kind.slots).sum();
        prop_assert!(has >= lesson.slots.saturating_sub(others).min(most));
    }

    /// Alone, a lesson has what it needs or all that there is when it begins.
    #[test]
    fn what_is_ready_for_a_lesson_is_what_its_floors_give(
        mut lesson in lessons(3).prop_filter_map("a lesson", |mut lessons| lessons.pop()), kinds in kinds(), others in 0..20_u32,
    ) {
        (lesson.pools, lesson.other_slots) = (vec![0, 1, 2], others);
        let ready = ready_slots(&lesson, std::slice::from_ref(&lesson), &kinds, others);
        let most = kinds.iter().map(|(scaling, kind)| scaling.max * kind.slots).sum::<u32>() + others;
        prop_assert!((lesson.slots.min(most)..=most).contains(&ready));
        let floors = floors(std::slice::from_ref(&lesson), &kinds, others, lesson.start_ms);
        let of_pools = kinds.iter().zip(floors).map(|((scaling, kind), floor)| floor.workers.max(scaling.min) * kind.slots);
        prop_assert_eq!(ready, others + of_pools.sum::<u32>());
    }

    #[test]
    fn a_pool_stays_within_its_limits(scaling in scaling(), demand in demand(), present in present()) {
        let wanted = wanted(&scaling, &demand, &present);
        prop_assert!((scaling.min..=scaling.max).contains(&wanted));
        let start = to_start(&scaling, &demand, &present);
        prop_assert!(start == 0 || present.up + present.pending + start <= wanted);
        prop_assert!(start == 0 || present.pending + start <= MOST_PENDING);
        prop_assert!(start == 0 || !present.is_paused());
    }

    #[test]
    fn more_work_never_wants_fewer_workers(scaling in scaling(), demand in demand(), present in present(), more in demand()) {
        let sum = Demand { jobs: demand.jobs + more.jobs, work_ms: demand.work_ms + more.work_ms };
        prop_assert!(wanted(&scaling, &sum, &present) >= wanted(&scaling, &demand, &present));
    }

    #[test]
    fn no_more_workers_are_wanted_than_jobs_need(scaling in scaling(), demand in demand(), present in present()) {
        let jobs = present.running + demand.jobs;
        prop_assert!(wanted(&scaling, &demand, &present) <= scaling.min.max(jobs.div_ceil(present.slots)));
    }

    #[test]
    fn a_job_goes_to_one_pool_that_can_run_it(
        waiting in waiting(3),
        pools in prop::collection::vec((scaling(), present()), 3),
    ) {
        let demands = demands(&waiting, &pools);
        for (pool, demand) in demands.iter().enumerate() {
            let able = waiting.iter().filter(|job| job.pools.contains(&pool)).count();
            prop_assert!(demand.jobs as usize <= able);
            prop_assert!(demand.jobs == 0 || !pools[pool].1.is_paused());
        }
        let given: u32 = demands.iter().map(|demand| demand.jobs).sum();
        prop_assert!(given as usize <= waiting.len());
        // No job is left out while the only pool that can run it has room.
        for job in waiting.iter().filter(|job| job.pools.len() == 1) {
            let pool = job.pools[0];
            let (scaling, present) = &pools[pool];
            let full = wanted(scaling, &demands[pool], present) == scaling.max;
            prop_assert!(demands[pool].jobs > 0 || present.is_paused() || full);
        }
    }

    /// Under constant load nothing is ended and started again: starting what is wanted leaves nothing to start.
    #[test]
    fn a_steady_load_settles(scaling in scaling(), demand in demand(), present in present()) {
        let mut present = Present { failures: 0, pending: 0, ..present };
        for _ in 0..20 {
            present.pending = to_start(&scaling, &demand, &present);
            present.up += present.pending;
            present.pending = 0;
        }
        prop_assert_eq!(to_start(&scaling, &demand, &present), 0);
        prop_assert!(present.up >= wanted(&scaling, &demand, &present));
    }

    #[test]
    fn a_worker_is_kept_for_as_long_as_another_takes_to_start(idle in 0..600_000_u64, start in prop::option::of(0..600_000_u64)) {
        let idle_for = idle_ms(idle, start);
        prop_assert!(idle_for >= idle && idle_for >= start.unwrap_or(0));
    }
}

#[test]
fn as_many_as_the_work_needs() {
    let scaling = Scaling {
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
            wanted(&scaling, &Demand { jobs, work_ms }, &present),
            expected
        );
    }
}

#[test]
fn what_one_pool_has_no_room_for_goes_to_the_next() {
    let scaling = |max| Scaling {
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
    let both = [(scaling(2), present), (scaling(6), present)];
    let jobs = |demands: Vec<Demand>| demands.iter().map(|demand| demand.jobs).collect::<Vec<_>>();
    assert_eq!(jobs(demands(&vec![job.clone(); 5], &both)), [2, 3]);
    let paused = Present {
        failures: MOST_FAILURES,
        ..present
    };
    let second = [(scaling(2), paused), (scaling(6), present)];
    assert_eq!(jobs(demands(&vec![job; 5], &second)), [0, 5]);
}

#[test]
fn workers_for_a_lesson_are_asked_for_as_early_as_they_take_to_come() {
    let lesson = Lesson {
        slots: 7,
        start_ms: 1_000_000,
        end_ms: 6_400_000,
        other_slots: u32::MAX,
        pools: vec![0],
    };
    let scaling = Scaling {
        min: 0,
        max: 10,
        target_wait_ms: 60_000,
    };
    let kind = Kind {
        slots: 1,
        start_ms: 40_000,
    };
    let workers = |others, now| {
        let lessons = std::slice::from_ref(&lesson);
        floors(lessons, &[(scaling, kind)], others, now)[0]
    };
    let floor = |workers| Floor {
        workers,
        until_ms: 6_400_000,
    };
    // Five workers start two at a time, in three rounds of 40 s, and are ready a minute before.
    assert_eq!(workers(2, 819_999), Floor::default());
    assert_eq!(workers(2, 820_000), floor(5));
    assert_eq!(workers(2, 5_000_000), floor(5));
    assert_eq!(workers(7, 5_000_000), Floor::default());
    // None of the other workers' slots can run its jobs.
    let strange = Lesson {
        other_slots: 0,
        ..lesson.clone()
    };
    let alone = floors(&[strange], &[(scaling, kind)], 7, 1_000_000);
    assert_eq!(alone, [floor(7)]);
    // A lesson that begins later takes nothing from this one.
    let later = Lesson {
        slots: 50,
        start_ms: 1_000_001,
        ..lesson.clone()
    };
    let both = floors(&[later, lesson], &[(scaling, kind)], 0, 990_000);
    assert_eq!(both, [floor(10)]);
}

#[test]
fn a_lesson_shares_what_is_ready_with_the_lessons_of_its_time() {
    let lesson = |start_ms, slots, pools| Lesson {
        slots,
        start_ms,
        end_ms: start_ms + 100,
        other_slots: 1,
        pools,
    };
    let scaling = |min, max| Scaling {
        min,
        max,
        target_wait_ms: 60_000,
    };
    let kind = Kind {
        slots: 2,
        start_ms: 0,
    };
    let first = lesson(0, 5, vec![0, 1]);
    let beside = lesson(50, 4, vec![1]);
    let later = lesson(120, 50, vec![0, 1]);
    let all = [first.clone(), beside.clone(), later];
    let ready = |of: &Lesson, kinds: [(Scaling, Kind); 2]| ready_slots(of, &all, &kinds, 1);
    let usual = [(scaling(0, 9), kind), (scaling(1, 9), kind)];
    // Two workers of the first pool, and the one that the second always has.
    assert_eq!(ready(&first, usual), 1 + 4 + 2);
    // Two workers of the second pool are for the second lesson, which may not use the first pool.
    assert_eq!(ready(&beside, usual), 1 + 4);
    // The first pool starts no worker, so the second one starts those for both lessons.
    let paused = [(scaling(0, 9).while_paused(0), kind), (scaling(1, 9), kind)];
    assert_eq!(ready(&first, paused), 1 + 4);
    assert_eq!(ready(&beside, paused), 1 + 8);
    let with_one = [(scaling(3, 9).while_paused(1), kind), (scaling(1, 9), kind)];
    assert_eq!(ready(&first, with_one), 1 + 2 + 2);
}
