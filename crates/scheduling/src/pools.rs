//! How many workers each pool should have.
//!
//! In: the waiting jobs that would not start in time on the present workers, the load of each pool, and how far
//! it may scale. Out: how many workers to start now ([`to_start`]). Nothing here ends a worker: a pool's worker leaves
//! by itself once it has been idle for as long as [`idle_ms`] says. That is never less than a start takes, so a
//! worker is kept if it would have to be requested again at once.
//!
//! **Invariant:** pure; no clock, no I/O, cannot fail.

use std::time::Duration;

/// The limit for each pool. A batch system may take long to report that something is wrong with a start.
pub const MOST_PENDING: u32 = 2;
/// After this many consecutive failures a pool starts nothing until a person resumes it.
pub const MOST_FAILURES: u32 = 3;

/// How often the broker computes what each pool should have.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The longest duration of each of a worker's last two steps.
const LONGEST_STEP: Duration = Duration::from_secs(60);
/// In a short life, each of these steps takes at most this fraction of it.
const STEPS_IN_A_LIFE: u32 = 8;

/// How far a pool may scale, as its administrator has set it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scaling {
    pub min: u32,
    pub max: u32,
    /// All waiting work should begin within this time.
    pub target_wait_ms: u64,
}

impl Scaling {
    /// For a pool that starts no workers: only those that are up may count.
    #[must_use]
    pub fn while_paused(self, up: u32) -> Self {
        Self {
            min: self.min.min(up),
            max: up,
            ..self
        }
    }
}

/// A waiting job that the present workers do not start in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// How long the job is likely to run.
    pub work_ms: u64,
    /// The numbers of the pools that can run it.
    pub pools: Vec<usize>,
}

/// The present state of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Present {
    /// Jobs that its workers run.
    pub running: u32,
    /// Workers that take jobs.
    pub up: u32,
    /// Workers that were requested and have not connected yet.
    pub pending: u32,
    /// The number of jobs that one worker runs at once; at least 1.
    pub slots: u32,
    /// The number of consecutive starts that failed.
    pub failures: u32,
}

/// The part of the waiting work that a pool should do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Demand {
    pub jobs: u32,
    pub work_ms: u64,
}

impl Present {
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.failures >= MOST_FAILURES
    }
}

/// Workers should be ready this long before a lesson begins.
const AHEAD_MS: i64 = 60_000;

/// People who work at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lesson {
    /// The number of jobs that must run at once.
    pub slots: u32,
    /// In milliseconds from any fixed moment.
    pub start_ms: i64,
    pub end_ms: i64,
    /// Slots of workers outside the pools that can run its jobs.
    pub other_slots: u32,
    /// The numbers of the pools that can run its jobs.
    pub pools: Vec<usize>,
}

/// Properties of a pool's workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// The number of jobs that one of them runs at once; at least 1.
    pub slots: u32,
    /// The time within which nearly every one of them is ready.
    pub start_ms: i64,
}

/// What the present and coming lessons require of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Floor {
    pub workers: u32,
    /// Until then, this many workers stay even if they are idle.
    pub until_ms: i64,
}

/// Computes the workers that each pool should have for lessons, in view of how long they take to
/// start. Slots of workers outside the pools (`other_slots` in all) are used first, then the pools
/// in their order. `lessons` must not include any that have ended.
#[must_use]
pub fn floors(
    lessons: &[Lesson],
    pools: &[(Scaling, Kind)],
    other_slots: u32,
    now_ms: i64,
) -> Vec<Floor> {
    let mut floors = vec![Floor::default(); pools.len()];
    let mut free = other_slots;
    let mut in_order: Vec<&Lesson> = lessons.iter().collect();
    in_order.sort_by_key(|lesson| lesson.start_ms);
    for lesson in in_order {
        let of_others = lesson.slots.min(lesson.other_slots).min(free);
        let mut missing = lesson.slots - of_others;
        let mut is_due = missing == 0;
        for number in &lesson.pools {
            let Some((scaling, kind)) = pools.get(*number) else {
                continue;
            };
            let (slots, floor) = (kind.slots.max(1), &mut floors[*number]);
            let room = scaling.max.saturating_sub(floor.workers);
            let workers = missing.div_ceil(slots).min(room);
            missing = missing.saturating_sub(workers.saturating_mul(slots));
            let ahead_ms = ahead_ms(workers, kind);
            if workers > 0 && lesson.start_ms.saturating_sub(now_ms) <= ahead_ms {
                is_due = true;
                floor.workers += workers;
                floor.until_ms = floor.until_ms.max(lesson.end_ms);
            }
        }
        if is_due {
            free -= of_others;
        }
    }
    floors
}

/// How long before a lesson this many workers are requested.
#[must_use]
pub fn ahead_ms(workers: u32, kind: &Kind) -> i64 {
    let rounds = i64::from(workers.div_ceil(MOST_PENDING));
    rounds
        .saturating_mul(kind.start_ms)
        .saturating_add(AHEAD_MS)
}

/// The slots that are ready for a lesson when it begins: those of workers outside the pools, and those
/// of the workers that its pools have then. Other lessons at the same time may use them, too.
#[must_use]
pub fn ready_slots(
    lesson: &Lesson,
    lessons: &[Lesson],
    pools: &[(Scaling, Kind)],
    other_slots: u32,
) -> u32 {
    let is_present =
        |other: &&Lesson| other.start_ms <= lesson.start_ms && other.end_ms > lesson.start_ms;
    let present: Vec<Lesson> = lessons.iter().filter(is_present).cloned().collect();
    let floors = floors(&present, pools, other_slots, lesson.start_ms);
    let of_pool = |number: &usize| {
        let (scaling, kind) = pools.get(*number)?;
        let workers = floors[*number].workers.max(scaling.min);
        Some(workers.saturating_mul(kind.slots))
    };
    let of_pools = lesson.pools.iter().filter_map(of_pool);
    of_pools.fold(lesson.other_slots, u32::saturating_add)
}

/// Gives each job to the first pool that can run it and may have more workers. A paused pool may not.
#[must_use]
pub fn demands(waiting: &[Waiting], pools: &[(Scaling, Present)]) -> Vec<Demand> {
    let mut demands = vec![Demand::default(); pools.len()];
    for job in waiting {
        let has_room = |pool: &&usize| {
            let Some((scaling, present)) = pools.get(**pool) else {
                return false;
            };
            let mut demand = demands[**pool];
            demand.add(job);
            !present.is_paused() && unbounded(scaling, &demand, present) <= scaling.max
        };
        if let Some(pool) = job.pools.iter().find(has_room) {
            demands[*pool].add(job);
        }
    }
    demands
}

impl Demand {
    fn add(&mut self, job: &Waiting) {
        self.jobs += 1;
        self.work_ms = self.work_ms.saturating_add(job.work_ms);
    }
}

/// How many workers the pool should have: enough for running jobs, and for the waiting work within
/// the target wait.
#[must_use]
pub fn wanted(scaling: &Scaling, demand: &Demand, present: &Present) -> u32 {
    unbounded(scaling, demand, present).clamp(scaling.min.min(scaling.max), scaling.max)
}

fn unbounded(scaling: &Scaling, demand: &Demand, present: &Present) -> u32 {
    let in_time = demand.work_ms.div_ceil(scaling.target_wait_ms.max(1));
    // A job needs only one slot, however long it is.
    let slots = u32::try_from(in_time).map_or(demand.jobs, |slots| slots.min(demand.jobs));
    let slots = present.running.saturating_add(slots);
    slots.div_ceil(present.slots.max(1))
}

/// How many workers to request now.
#[must_use]
pub fn to_start(scaling: &Scaling, demand: &Demand, present: &Present) -> u32 {
    if present.is_paused() {
        return 0;
    }
    let has = present.up.saturating_add(present.pending);
    let missing = wanted(scaling, demand, present).saturating_sub(has);
    missing.min(MOST_PENDING.saturating_sub(present.pending))
}

/// A worker with a limited lifetime takes no cells in the last two steps of it: in the first step
/// running cells may end, in the second results are sent to their notebooks.
#[must_use]
pub fn last_step(life: Duration) -> Duration {
    LONGEST_STEP.min(life / STEPS_IN_A_LIFE)
}

/// How long cells may continue on a worker that is ended this long after it is asked to stop. The worker needs the
/// rest to end its cells and to send their results.
#[must_use]
pub fn stop_grace(kill_after: Duration) -> Duration {
    kill_after - LONGEST_STEP.min(kill_after / 2)
}

/// How long a worker stays without a cell.
#[must_use]
pub fn idle_ms(idle_ms: u64, usual_start_ms: Option<u64>) -> u64 {
    idle_ms.max(usual_start_ms.unwrap_or(0))
}
