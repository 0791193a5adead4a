//! Positions as people see them.

use crate::order::{job, precedence_of};
use baton_protocol::api::{AheadBecause, MovedBack};
use baton_scheduling::queue::{Job, JobsAhead, ShownPosition, in_queue_order};
use proptest::prelude::*;

fn waits(number: u8, used_ms: f64, waited_ms: u64) -> Job {
    Job {
        precedence: precedence_of(used_ms, waited_ms),
        ..job(number, None)
    }
}

fn moved_back(told: ShownPosition, jobs: &[Job], now_ms: u64) -> Option<MovedBack> {
    let line = in_queue_order(jobs);
    let mut ahead = JobsAhead::default();
    let (last, others) = line[..told.position as usize].split_last()?;
    others.iter().for_each(|job| ahead.add(job));
    told.moved_back(last, &ahead, now_ms)
}

#[test]
fn who_came_with_less_recent_use_is_counted_and_not_named() {
    let told = ShownPosition::next(None, 1, Some(3), 10_000);
    assert_eq!((told.position, told.last), (1, 4));
    let jobs = [
        waits(1, 90_000.0, 30_000),
        waits(2, 0.0, 4000),
        waits(3, 10_000.0, 2000),
    ];
    let told = ShownPosition::next(Some(told), 3, Some(1), 15_000);
    let because = AheadBecause::UsedLess;
    assert_eq!(
        moved_back(told, &jobs, 15_000),
        Some(MovedBack { people: 2, because })
    );
    // One of them has started; the reason stays until the position is as good as it was.
    let told = ShownPosition::next(Some(told), 2, Some(1), 16_000);
    assert_eq!(
        moved_back(told, &jobs[..2], 16_000),
        Some(MovedBack { people: 1, because })
    );
    let told = ShownPosition::next(Some(told), 1, Some(1), 17_000);
    assert_eq!(moved_back(told, &jobs[..1], 17_000), None);
}

proptest! {
    #[test]
    fn a_place_never_moves_back_without_a_reason(
        tellings in prop::collection::vec((1..9_u32, prop::option::of(0..5_u32)), 1..30),
    ) {
        let mut before: Option<ShownPosition> = None;
        let jobs: Vec<Job> = (0..9).map(|number| waits(number, 0.0, 1_000_000 - u64::from(number))).collect();
        for (now, (position, overtakers)) in (0..).zip(tellings) {
            let told = ShownPosition::next(before, position, overtakers, now);
            prop_assert!(told.position == position && told.last >= position);
            if let Some(before) = before && (told.position > before.position || told.last > before.last) {
                prop_assert!(moved_back(told, &jobs, now).is_some());
            }
            before = Some(told);
        }
    }
}
