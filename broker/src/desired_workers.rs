//! How many workers are enough for the present jobs.
//!
//! **Invariant:** pure.

use baton_broker_queue::Overview;

/// All jobs that wait now should have started within this time.
const TARGET_MS: u64 = 60_000;

/// Assumes that each worker has the average number of slots of the connected ones.
pub(crate) fn desired_workers(present: &Overview) -> u64 {
    let workers = present.workers.iter().filter(|worker| worker.connected);
    let (count, slots) = workers.fold((0, 0), |(count, slots), worker| {
        (count + 1, slots + u64::from(worker.slots))
    });
    desired(
        present.running as u64,
        present.waiting_work_ms,
        slots,
        count,
    )
}

fn desired(running: u64, waiting_work_ms: u64, slots: u64, workers: u64) -> u64 {
    let wanted = running + waiting_work_ms.div_ceil(TARGET_MS);
    match slots {
        0 => wanted,
        slots => (wanted * workers).div_ceil(slots),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_the_work_needs() {
        assert_eq!(desired(0, 0, 8, 2), 0);
        assert_eq!(desired(1, 0, 8, 2), 1);
        assert_eq!(desired(8, 0, 8, 2), 2);
        assert_eq!(desired(8, 1, 8, 2), 3);
        assert_eq!(desired(8, 600_000, 8, 2), 5);
        assert_eq!(desired(0, 60_001, 0, 0), 2);
    }
}
