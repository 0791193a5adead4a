//! How many workers each pool should have.
//!
//! In: the jobs that wait and would not start in time with the workers that are there, what each pool runs, and its
//! terms. Out: how many workers to start now ([`to_start`]). Nothing here ends a worker: a worker of a pool leaves by
//! itself once it has been idle for as long as [`idle_ms`] says, which is never less than a start takes. So a worker that
//! would be asked for again at once is kept.
//!
//! **Invariant:** pure; no clock, no I/O, cannot fail.

use std::time::Duration;

/// Of one pool. A batch system may take long to say that something is wrong with them.
pub const MOST_PENDING: u32 = 2;
/// After so many failures in a row a pool starts nothing until a person resumes it.
pub const MOST_FAILURES: u32 = 3;

/// How often the broker asks what each pool should have.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// At most so long for each of a worker's last two steps.
const LONGEST_STEP: Duration = Duration::from_secs(60);
/// A short life spends at most this part of it on each of them.
const STEPS_IN_A_LIFE: u32 = 8;

/// What its administrator wants of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    pub min: u32,
    pub max: u32,
    /// In this time all waiting work would have begun.
    pub target_wait_ms: u64,
}

/// A job that waits and that the workers which are there do not start in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// How long it is likely to run.
    pub work_ms: u64,
    /// The numbers of the pools that can run it.
    pub pools: Vec<usize>,
}

/// What a pool has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Present {
    /// Jobs that its workers run.
    pub running: u32,
    /// Workers that take jobs.
    pub up: u32,
    /// Workers that are asked for and have not come.
    pub pending: u32,
    /// Jobs that one worker takes at once; at least 1.
    pub slots: u32,
    /// How many starts in a row have failed.
    pub failures: u32,
}

/// What of the waiting work a pool is to do.
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

/// Workers are there so much earlier than a lesson begins.
const AHEAD_MS: i64 = 60_000;

/// People who come at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lesson {
    /// Jobs that have to run at once.
    pub slots: u32,
    /// In milliseconds since any one moment.
    pub start_ms: i64,
    pub end_ms: i64,
    /// What workers of no pool have that can run its jobs.
    pub other_slots: u32,
    /// The numbers of the pools that can run its jobs.
    pub pools: Vec<usize>,
}

/// What a pool's workers are like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Jobs that one of them takes at once; at least 1.
    pub slots: u32,
    /// How long nearly every one of them takes to come.
    pub start_ms: i64,
}

/// What the lessons of a moment ask of a pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Floor {
    pub workers: u32,
    /// Until then so many of them stay, although nobody uses them.
    pub until_ms: i64,
}

/// The workers that each pool should have for lessons, by the time that they take to come. What workers of no pool have
/// (`other_slots` in all) is taken first, then the pools in their order. Lessons that have ended are not to be among them.
#[must_use]
pub fn floors(
    lessons: &[Lesson],
    pools: &[(Terms, Kind)],
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
            let Some((terms, kind)) = pools.get(*number) else {
                continue;
            };
            let (slots, floor) = (kind.slots.max(1), &mut floors[*number]);
            let room = terms.max.saturating_sub(floor.workers);
            let workers = missing.div_ceil(slots).min(room);
            missing = missing.saturating_sub(workers.saturating_mul(slots));
            let rounds = i64::from(workers.div_ceil(MOST_PENDING));
            let ahead_ms = rounds
                .saturating_mul(kind.start_ms)
                .saturating_add(AHEAD_MS);
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

/// Gives each job to the first pool that can run it and has room for more workers; a paused pool has none.
#[must_use]
pub fn demands(waiting: &[Waiting], pools: &[(Terms, Present)]) -> Vec<Demand> {
    let mut demands = vec![Demand::default(); pools.len()];
    for job in waiting {
        let has_room = |pool: &&usize| {
            let Some((terms, present)) = pools.get(**pool) else {
                return false;
            };
            let mut demand = demands[**pool];
            demand.add(job);
            !present.is_paused() && unbounded(terms, &demand, present) <= terms.max
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

/// How many workers the pool should have: room for what runs, and for the waiting work within the target wait.
#[must_use]
pub fn wanted(terms: &Terms, demand: &Demand, present: &Present) -> u32 {
    unbounded(terms, demand, present).clamp(terms.min.min(terms.max), terms.max)
}

fn unbounded(terms: &Terms, demand: &Demand, present: &Present) -> u32 {
    let in_time = demand.work_ms.div_ceil(terms.target_wait_ms.max(1));
    // A job needs one slot, however long it is.
    let slots = u32::try_from(in_time).map_or(demand.jobs, |slots| slots.min(demand.jobs));
    let slots = present.running.saturating_add(slots);
    slots.div_ceil(present.slots.max(1))
}

/// How many workers to ask for now.
#[must_use]
pub fn to_start(terms: &Terms, demand: &Demand, present: &Present) -> u32 {
    if present.is_paused() {
        return 0;
    }
    let has = present.up.saturating_add(present.pending);
    let missing = wanted(terms, demand, present).saturating_sub(has);
    missing.min(MOST_PENDING.saturating_sub(present.pending))
}

/// A worker whose time on its machine is limited takes no cells in the last two steps of it: in the first of them cells
/// may end, in the second results go to their notebooks.
#[must_use]
pub fn last_step(life: Duration) -> Duration {
    LONGEST_STEP.min(life / STEPS_IN_A_LIFE)
}

/// After how long without a cell a worker leaves.
#[must_use]
pub fn idle_ms(idle_ms: u64, usual_start_ms: Option<u64>) -> u64 {
    idle_ms.max(usual_start_ms.unwrap_or(0))
}
