//! What determines how many machines the pools request, by the broker's rules.

use super::{Fleet, MachineKind, Machines, Pool, count, machines::Machine};
use baton_scheduling::pools::{self, Floor, Lesson, Present, Waiting};

/// How many machines each pool must have because of lessons.
pub(super) fn floors(fleet: &Fleet, lessons: &[Lesson], now_ms: i64) -> Vec<Floor> {
    let present = lessons.iter().filter(|lesson| lesson.end_ms > now_ms);
    let present: Vec<_> = present.cloned().collect();
    let pools = fleet.pools.iter();
    let pools: Vec<_> = pools.map(|pool| (pool.scaling, pool.as_pool())).collect();
    let others = fleet.machines.iter().map(Machines::slots).sum();
    pools::floors(&present, &pools, others, now_ms)
}

/// What the pool has. `machines` are its machines.
pub(super) fn present<'all>(
    pool: &Pool,
    machines: impl Iterator<Item = &'all Machine> + Clone,
) -> Present {
    let open = machines.filter(|machine| !machine.draining);
    Present {
        running: open.clone().map(|machine| machine.running).sum(),
        up: count(open.clone().filter(|machine| machine.came).count()),
        pending: count(open.filter(|machine| !machine.came).count()),
        slots: pool.kind.slots,
        failures: 0,
    }
}

/// The waiting cells that the present machines do not start in time.
///
/// `fits`: for each group and each of the kinds, whether the group's cells can run there.
/// `open`: the kinds of the machines that take cells.
/// `waiting`: the groups of the waiting cells, in queue order.
pub(super) fn late(
    fleet: &Fleet,
    fits: &[Vec<bool>],
    open: &[usize],
    waiting: impl Iterator<Item = usize>,
) -> Vec<Waiting> {
    let kinds: Vec<&MachineKind> = fleet.kinds().collect();
    // The seconds of work that machines for the group do in one second.
    let speed = |fits: &Vec<bool>| -> f64 {
        let able = open.iter().filter(|kind| fits[**kind]);
        able.map(|kind| f64::from(kinds[*kind].slots) * kinds[*kind].speed)
            .sum()
    };
    let speeds: Vec<f64> = fits.iter().map(speed).collect();
    let groups = fleet.groups.iter();
    let runs: Vec<f64> = groups.map(|group| group.course.mean_run()).collect();
    let compete = |one: usize, other: usize| {
        let mut kinds = open.iter();
        kinds.any(|kind| fits[one][*kind] && fits[other][*kind])
    };
    // Seconds of work until the next cell of each group may start.
    let mut before = vec![0.0; runs.len()];
    let mut late = Vec::new();
    for group in waiting {
        for (other, before) in before.iter_mut().enumerate() {
            if compete(group, other) {
                *before += runs[group];
            }
        }
        let starts_ms = before[group] / speeds[group] * 1e3;
        let is_late =
            |pool: &Pool| speeds[group] == 0.0 || starts_ms > pool.scaling.target_wait_ms as f64;
        let pools = fleet.pools.iter().zip(&fits[group][fleet.machines.len()..]);
        let pools = pools
            .enumerate()
            .filter(|(_, (pool, fits))| **fits && is_late(pool));
        let pools: Vec<usize> = pools.map(|(number, _)| number).collect();
        if !pools.is_empty() {
            late.push(Waiting {
                work_ms: (runs[group] * 1e3) as u64,
                pools,
            });
        }
    }
    late
}
