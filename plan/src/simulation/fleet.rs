//! Machines that differ, and machines that start and stop, for people whose cells may require some of them.
//!
//! Cells are assigned by [`baton_scheduling::queue::plan`], and workers are requested by
//! [`baton_scheduling::pools`], as in the broker and equally often. In place of the broker's
//! estimate of which cells start in time, this uses the mean run times of the cells ahead of a cell.

mod machines;
mod requests;
mod world;

use super::{Course, Estimate, Length, Runs, Times, each_seed, statistics::Spread};
use baton_protocol::Requirement;
use baton_scheduling::{
    pools::{self, Scaling},
    queue::Offer,
};
use std::sync::Arc;
use world::World;

/// People, and the machines that they use. Times are in seconds.
#[derive(Debug, Clone)]
pub struct Fleet {
    pub groups: Vec<Group>,
    /// Machines that are always there.
    pub machines: Vec<Machines>,
    pub pools: Vec<Pool>,
}

/// People whose cells have the same requirements.
#[derive(Debug, Clone)]
pub struct Group {
    pub course: Course,
    pub needs: Arc<[Requirement]>,
}

/// Properties of a machine.
#[derive(Debug, Clone)]
pub struct MachineKind {
    pub offer: Arc<Offer>,
    /// The number of cells that it runs at once.
    pub slots: u32,
    /// Twice the speed halves the time of each cell.
    pub speed: f64,
}

/// Machines of one kind that are always there.
#[derive(Debug, Clone)]
pub struct Machines {
    pub kind: MachineKind,
    pub count: u32,
}

/// Machines of one kind that start when they are needed.
#[derive(Debug, Clone)]
pub struct Pool {
    pub kind: MachineKind,
    pub scaling: Scaling,
    /// From the request to the machine's first cell.
    pub start: Times,
    /// A machine leaves after this long without a cell; `None` if it stays.
    pub idle: Option<f64>,
    /// Every machine must have left after this long; `None` if it may stay.
    pub walltime: Option<f64>,
}

/// What people and machines experience.
#[derive(Debug)]
pub struct FleetAnswer {
    pub all: Waited,
    /// For each of the groups.
    pub groups: Vec<Waited>,
    /// For each of the [`Machines`], then for each of the pools.
    pub kinds: Vec<Used>,
    /// The machines of all pools together.
    pub pools: Used,
    /// All machines together.
    pub machines: Used,
}

/// How long cells wait.
#[derive(Debug)]
pub struct Waited {
    pub cells: u64,
    pub wait: Estimate,
    /// The share of cells that do not wait.
    pub at_once: Estimate,
    /// The waits within which 50, 90 and 99 of 100 cells start.
    pub waits: [Estimate; 3],
}

/// How much machines are used, and what they cost.
#[derive(Debug)]
pub struct Used {
    /// The share of all cells that begin on them.
    pub cells: Estimate,
    /// The mean number of machines. A machine counts from its request on.
    pub machines: Estimate,
    /// The total hours of all machines.
    pub machine_hours: Estimate,
    /// The share of their slots in which a cell runs.
    pub utilisation: Estimate,
    /// Machines started per hour.
    pub starts: Estimate,
}

/// What one run counted.
#[derive(Debug)]
struct Counted {
    seconds: f64,
    waits: Spread,
    groups: Vec<Spread>,
    kinds: Vec<CountedKind>,
}

#[derive(Debug, Clone, Default)]
struct CountedKind {
    cells: u64,
    machine_seconds: f64,
    slot_seconds: f64,
    busy_seconds: f64,
    starts: u64,
}

/// Simulates people who are always there, or the past of a course.
#[must_use]
pub fn fleet(fleet: &Fleet, length: Length, runs: Runs) -> FleetAnswer {
    let run = |seed| World::new(fleet, length.warm_up, seed).run(length.warm_up + length.measured);
    fleet.answer(&each_seed(runs, run))
}

/// Simulates a lesson: everyone comes at its start and submits cells until its end. Pools know it
/// beforehand, as they know the lessons of a timetable.
///
/// `slots`: for each group, how many of its cells must run at once.
#[must_use]
pub fn lesson(fleet: &Fleet, seconds: f64, slots: &[u32], runs: Runs) -> FleetAnswer {
    let start = fleet.longest_start();
    let lessons = fleet.lessons(slots, start, start + seconds);
    let run = |seed| {
        World::new(fleet, 0.0, seed)
            .with_lesson(lessons.clone(), start, start + seconds)
            .run(f64::INFINITY)
    };
    fleet.answer(&each_seed(runs, run))
}

impl MachineKind {
    #[must_use]
    pub fn meets(&self, needs: &[Requirement]) -> bool {
        needs.iter().all(|need| self.offer.meets(need))
    }
}

impl Fleet {
    /// Whether there is a machine that can run the group's cells.
    #[must_use]
    pub fn meets(&self, group: &Group) -> bool {
        self.kinds().any(|kind| kind.meets(&group.needs))
    }

    /// Those of the machines that are always there, then those of the pools.
    fn kinds(&self) -> impl Iterator<Item = &MachineKind> {
        let machines = self.machines.iter().map(|machines| &machines.kind);
        machines.chain(self.pools.iter().map(|pool| &pool.kind))
    }

    /// How many seconds before a lesson the pools may have to request machines for it.
    fn longest_start(&self) -> f64 {
        let ahead = |pool: &Pool| pools::ahead_ms(pool.scaling.max, &pool.as_pool());
        let most_ms = self.pools.iter().map(ahead).max().unwrap_or(0);
        most_ms as f64 / 1e3
    }

    /// The pools that can run the group's cells.
    pub(crate) fn pools_of(&self, group: &Group) -> impl Iterator<Item = (usize, &Pool)> {
        let pools = self.pools.iter().enumerate();
        pools.filter(|(_, pool)| pool.kind.meets(&group.needs))
    }

    /// The lesson of each group, as pools know it.
    fn lessons(&self, slots: &[u32], start: f64, end: f64) -> Vec<pools::Lesson> {
        let lesson = |(group, slots): (&Group, &u32)| {
            let others = self.machines.iter();
            let others = others.filter(|machines| machines.kind.meets(&group.needs));
            pools::Lesson {
                slots: *slots,
                start_ms: ms(start),
                end_ms: ms(end),
                other_slots: others.map(Machines::slots).sum(),
                pools: self.pools_of(group).map(|(number, _)| number).collect(),
            }
        };
        self.groups.iter().zip(slots).map(lesson).collect()
    }

    fn answer(&self, runs: &[Counted]) -> FleetAnswer {
        let groups = 0..self.groups.len();
        let always = self.machines.len();
        let all = always + self.pools.len();
        FleetAnswer {
            all: Waited::of(runs, |run| &run.waits),
            groups: groups
                .map(|group| Waited::of(runs, |run| &run.groups[group]))
                .collect(),
            kinds: (0..all).map(|kind| Used::of(runs, kind..=kind)).collect(),
            pools: Used::of(runs, always..all),
            machines: Used::of(runs, 0..all),
        }
    }
}

impl Machines {
    fn slots(&self) -> u32 {
        self.count * self.kind.slots
    }
}

impl Pool {
    fn as_pool(&self) -> pools::Kind {
        pools::Kind {
            slots: self.kind.slots,
            start_ms: ms(self.start.mean()),
        }
    }
}

impl Waited {
    fn of(runs: &[Counted], waits: impl Fn(&Counted) -> &Spread) -> Self {
        let estimate =
            |what: &dyn Fn(&Spread) -> f64| Estimate::of(runs.iter().map(|run| what(waits(run))));
        Self {
            cells: runs.iter().map(|run| waits(run).count()).sum(),
            wait: estimate(&Spread::mean),
            at_once: estimate(&Spread::zero),
            waits: [0.5, 0.9, 0.99].map(|part| estimate(&|waits| waits.percentile(part))),
        }
    }
}

impl Used {
    fn of(
        runs: &[Counted],
        kinds: impl std::slice::SliceIndex<[CountedKind], Output = [CountedKind]> + Clone,
    ) -> Self {
        let estimate = |what: &dyn Fn(&Counted, &CountedKind) -> f64| {
            let of_run = |run: &Counted| what(run, &run.kinds[kinds.clone()].iter().sum());
            Estimate::of(runs.iter().map(of_run))
        };
        Self {
            cells: estimate(&|run, used| used.cells as f64 / (run.waits.count() as f64).max(1.0)),
            machines: estimate(&|run, used| used.machine_seconds / run.seconds),
            machine_hours: estimate(&|_, used| used.machine_seconds / 3600.0),
            utilisation: estimate(&|_, used| used.busy_seconds / used.slot_seconds.max(1e-9)),
            starts: estimate(&|run, used| used.starts as f64 / run.seconds * 3600.0),
        }
    }
}

impl<'kinds> std::iter::Sum<&'kinds CountedKind> for CountedKind {
    fn sum<Kinds: Iterator<Item = &'kinds Self>>(kinds: Kinds) -> Self {
        kinds.fold(Self::default(), |sum, kind| Self {
            cells: sum.cells + kind.cells,
            machine_seconds: sum.machine_seconds + kind.machine_seconds,
            slot_seconds: sum.slot_seconds + kind.slot_seconds,
            busy_seconds: sum.busy_seconds + kind.busy_seconds,
            starts: sum.starts + kind.starts,
        })
    }
}

fn ms(seconds: f64) -> i64 {
    (seconds * 1e3) as i64
}

fn count(of: usize) -> u32 {
    u32::try_from(of).unwrap_or(u32::MAX)
}
