//! What the broker tells pools about the demand for workers, and what waiting people see of them.

use super::{Batch, Dispatch, Job, Now, Phase, estimate, needs, overview::UNKNOWN_RUN_MS};
use crate::pools::{ComingLesson, ComingLessons, PoolLook, PoolState, PoolsPresent, SeenWorker};
use baton_protocol::{Requirement, WorkerId, proxy::WaitingReason, worker::ToWorker};
use baton_scheduling::{pools::Waiting, queue::Offer};
use std::sync::Arc;

/// Precision of the shown time. A finer one would change the text, and so send it, more often.
const MINUTE_MS: u64 = 60_000;

pub(super) fn on_look(dispatch: &mut Dispatch, look: PoolLook, batch: &mut Batch) -> PoolsPresent {
    dispatch.plan_is_stale |= dispatch.pools != look.pools;
    dispatch.pools = look.pools;
    dispatch.stays = look.stays;
    let workers: Vec<WorkerId> = dispatch.peers.workers.keys().copied().collect();
    for worker in workers {
        send_stay(dispatch, worker, batch);
    }
    // A worker that left within its grace also counts as seen.
    let seen = dispatch.peers.workers.values().filter_map(|worker| {
        let seen = SeenWorker {
            connected_ms: worker.connected_ms?,
            is_connected: worker.connection.is_some(),
            offer: Arc::clone(&worker.offer),
            slots: worker.slots,
            draining: worker.draining,
            failing: worker.failing.clone(),
        };
        Some((worker.name.clone(), seen))
    });
    let ahead_ms = dispatch.pools.iter().map(|pool| pool.ahead_ms).max();
    PoolsPresent {
        workers: seen.collect(),
        running: dispatch
            .pools
            .iter()
            .map(|pool| running_in(dispatch, pool))
            .collect(),
        waiting: waits_for_pools(dispatch, batch.now),
        lacking: dispatch
            .pools
            .iter()
            .map(|pool| lacks_settings(dispatch, pool, batch.now))
            .collect(),
        coming: coming_lessons(dispatch, ahead_ms.unwrap_or(0), batch.now),
    }
}

/// Sends a worker how long it has to stay, unless it already knows.
pub(super) fn send_stay(dispatch: &mut Dispatch, id: WorkerId, batch: &mut Batch) {
    let Some(worker) = dispatch.peers.workers.get_mut(&id) else {
        return;
    };
    let at_ms = dispatch.stays.get(&worker.name).copied();
    if let Some(connection) = worker.connection
        && worker.stays_until_ms != at_ms
    {
        worker.stays_until_ms = at_ms;
        batch.send_worker(connection, ToWorker::StayUntil { at_ms });
    }
}

pub(super) fn coming_lessons(dispatch: &Dispatch, within_ms: i64, now: Now) -> ComingLessons {
    let courses = dispatch.accounts.courses();
    let coming = courses.lessons().filter_map(|(course, number, lesson)| {
        let span = lesson.next(now.unix_ms)?;
        if span.start_ms.saturating_sub(now.unix_ms) > within_ms {
            return None;
        }
        let needs = courses.of(course).requirements();
        let will_run = |offer: &Offer| needs.iter().all(|need| offer.will_meet(need));
        let able = dispatch.pools.iter().enumerate();
        let able = able.filter(|(_, pool)| needs.iter().all(|need| pool.will_meet(need)));
        Some(ComingLesson {
            course: course.to_owned(),
            number,
            people: lesson.people,
            span,
            other_slots: slots_of_no_pool(dispatch, will_run),
            pools: able.map(|(number, _)| number).collect(),
        })
    });
    ComingLessons {
        lessons: coming.collect(),
        other_slots: slots_of_no_pool(dispatch, |_| true),
    }
}

fn slots_of_no_pool(dispatch: &Dispatch, will_run: impl Fn(&Offer) -> bool) -> u32 {
    let is_of_pool = |name: &String| {
        dispatch
            .pools
            .iter()
            .any(|pool| pool.workers.contains(name))
    };
    let others = dispatch.peers.workers.values().filter(|worker| {
        worker.connection.is_some()
            && !worker.draining
            && !is_of_pool(&worker.name)
            && will_run(&worker.offer)
    });
    others.map(|worker| worker.slots).sum()
}

/// The pool's running jobs. A job on a draining worker will need no slot on another one.
fn running_in(dispatch: &Dispatch, pool: &PoolState) -> u32 {
    let runs = |job: &&Job| {
        let worker = job
            .worker()
            .and_then(|worker| dispatch.peers.workers.get(&worker));
        let stays = worker.filter(|worker| !worker.draining);
        job.is_running() && stays.is_some_and(|worker| pool.workers.contains(&worker.name))
    };
    u32::try_from(dispatch.jobs.iter().filter(runs).count()).unwrap_or(u32::MAX)
}

/// The jobs that would not start in time without more workers, and the pools that could help.
fn waits_for_pools(dispatch: &Dispatch, now: Now) -> Vec<Waiting> {
    let jobs = dispatch.jobs.in_order(would_run);
    let waiting = jobs.into_iter().map(|job| {
        let able = dispatch.pools.iter().enumerate();
        let able = able.filter(|(_, pool)| {
            fits(dispatch, job, pool) && would_be_late(dispatch, job, pool, now)
        });
        Waiting {
            work_ms: estimate::takes(&dispatch.history, job)
                .map_or(UNKNOWN_RUN_MS, |takes| takes.middle()),
            pools: able.map(|(number, _)| number).collect(),
        }
    });
    waiting.filter(|job| !job.pools.is_empty()).collect()
}

/// Whether the present workers are not expected to start the job in the time after which the pool starts one.
fn would_be_late(dispatch: &Dispatch, job: &Job, pool: &PoolState, now: Now) -> bool {
    let now_ms = u64::try_from(now.unix_ms).unwrap_or(0);
    expected_start_ms(dispatch, job)
        .is_none_or(|at| at > now_ms.saturating_add(pool.target_wait_ms))
}

/// When the job is expected to start, in milliseconds since 1970; `None` if nothing is known about that.
fn expected_start_ms(dispatch: &Dispatch, job: &Job) -> Option<u64> {
    let estimate = dispatch.estimates.of(job.id)?;
    Some(estimate.starts.middle)
}

fn fits(dispatch: &Dispatch, job: &Job, pool: &PoolState) -> bool {
    requires_of(dispatch, job, pool).all(|need| pool.will_meet(&need))
        && job.timeout_ms().is_none_or(|ms| ms <= pool.walltime_ms)
}

/// What the job requires of a new worker of the pool. If no present worker has a GPU, it may
/// still run on a processor, but not on a GPU that is too small.
fn requires_of(
    dispatch: &Dispatch,
    job: &Job,
    pool: &PoolState,
) -> impl Iterator<Item = Requirement> {
    let is_memory = |need: &&Requirement| matches!(need, Requirement::GpuMemory { .. });
    let memory = job.needs.iter().filter(is_memory);
    let memory: Vec<_> = memory.filter(|_| pool.may_have_gpu()).cloned().collect();
    memory
        .into_iter()
        .chain(needs::of_job(dispatch, job).to_vec())
}

/// Whether jobs or lessons lack only labels and environments on the pool's last worker.
fn lacks_settings(dispatch: &Dispatch, pool: &PoolState, now: Now) -> bool {
    let Some(offer) = &pool.offer else {
        return false;
    };
    let lacks = |needs: &[Requirement]| {
        !needs.iter().all(|need| offer.will_meet(need))
            && needs.iter().all(|need| pool.may_meet(need))
    };
    let courses = dispatch.accounts.courses();
    let mut lessons = courses.lessons().filter(|(_, _, lesson)| {
        let next = lesson.next(now.unix_ms);
        next.is_some_and(|span| span.start_ms - now.unix_ms <= pool.ahead_ms)
    });
    let waits = |job: &Job| {
        let needs: Vec<_> = requires_of(dispatch, job, pool).collect();
        would_run(job) && lacks(&needs)
    };
    dispatch.jobs.iter().any(waits)
        || lessons.any(|(course, _, _)| lacks(&courses.of(course).requirements()))
}

/// The first requirement that no pool meets, if there are pools and none of them fits.
pub(super) fn unmet_by_pools(dispatch: &Dispatch, job: &Job) -> Option<Requirement> {
    if dispatch.pools.iter().any(|pool| fits(dispatch, job, pool)) {
        return None;
    }
    let mut needs = dispatch
        .pools
        .first()
        .map(|pool| requires_of(dispatch, job, pool))?;
    needs.find(|need| dispatch.pools.iter().all(|pool| !pool.will_meet(need)))
}

/// The reason shown for a job that no free worker can take, if a suitable worker is starting, or a pool without
/// workers is about to start one.
pub(super) fn machine_starts(dispatch: &Dispatch, job: &Job, now: Now) -> Option<WaitingReason> {
    let pool = dispatch
        .pools
        .iter()
        .find(|pool| starts_for(dispatch, job, pool, now))?;
    Some(starting(pool, now))
}

/// The reason shown for a job at this position of the queue if a suitable worker that is starting will have a slot
/// for it, and is expected before one of the present workers.
pub(super) fn machine_starts_sooner(
    dispatch: &Dispatch,
    job: &Job,
    position: u32,
    now: Now,
) -> Option<WaitingReason> {
    let starts_ms = expected_start_ms(dispatch, job);
    let mut pools = dispatch.pools.iter();
    let pool = pools.find(|pool| {
        starts_for(dispatch, job, pool, now)
            && position <= pool.pending.saturating_mul(pool.slots)
            && comes_before(pool, starts_ms, now)
    })?;
    Some(starting(pool, now))
}

fn starts_for(dispatch: &Dispatch, job: &Job, pool: &PoolState, now: Now) -> bool {
    let starts_one =
        pool.can_start && pool.workers.is_empty() && would_be_late(dispatch, job, pool, now);
    (pool.pending > 0 || starts_one) && fits(dispatch, job, pool)
}

/// When the batch system expects to start its next worker.
fn expected_ms(pool: &PoolState, now: Now) -> Option<i64> {
    pool.expected_ms.filter(|at| *at > now.unix_ms)
}

/// Whether its next worker is expected to be ready before this time, in milliseconds since 1970. `None`: nothing is
/// known about when the present workers have a free slot.
fn comes_before(pool: &PoolState, starts_ms: Option<u64>, now: Now) -> bool {
    let Some(starts_ms) = starts_ms else {
        return true;
    };
    let now_ms = now.unix_ms.unsigned_abs();
    let usual_ms = pool
        .usual
        .map(|usual| now_ms.saturating_add(usual.middle_ms));
    let expected_ms = expected_ms(pool, now).map(i64::unsigned_abs);
    expected_ms
        .max(usual_ms)
        .is_some_and(|comes_ms| comes_ms < starts_ms)
}

fn starting(pool: &PoolState, now: Now) -> WaitingReason {
    let expected = expected_ms(pool, now);
    WaitingReason::MachineStarting {
        usual: pool.usual,
        expected_in_ms: expected.map(|at| {
            (at - now.unix_ms)
                .unsigned_abs()
                .next_multiple_of(MINUTE_MS)
        }),
    }
}

/// Whether the job waits for nothing but a worker.
fn would_run(job: &Job) -> bool {
    let waits_for_worker = job.waiting.as_ref().is_some_and(|waiting| {
        !matches!(
            waiting.reason,
            WaitingReason::Held { .. }
                | WaitingReason::CoursePaused { .. }
                | WaitingReason::OwnJobRuns { .. }
                | WaitingReason::OwnSession { .. }
        )
    });
    job.phase() == Phase::Queued && waits_for_worker
}

#[cfg(test)]
mod tests {
    use super::{Now, PoolState};
    use baton_protocol::proxy::Estimate;
    use std::{sync::Arc, time::Instant};

    #[test]
    fn a_worker_that_starts_is_expected_after_its_usual_time_or_when_the_batch_system_says() {
        let now = Now {
            instant: Instant::now(),
            unix_ms: 1_000_000,
        };
        let usual = Estimate {
            lower_ms: 20_000,
            middle_ms: 40_000,
            upper_ms: 120_000,
        };
        let comes_before = |usual, expected_ms, starts_ms| {
            let pool = PoolState {
                name: "slurm".to_owned(),
                workers: Vec::new(),
                offer: None,
                offer_is_current: false,
                declared: Arc::default(),
                walltime_ms: u64::MAX,
                target_wait_ms: 0,
                ahead_ms: 0,
                can_start: true,
                pending: 1,
                slots: 1,
                usual,
                expected_ms,
            };
            super::comes_before(&pool, starts_ms, now)
        };
        assert!(comes_before(None, None, None));
        assert!(!comes_before(None, None, Some(2_000_000)));
        assert!(comes_before(Some(usual), None, Some(1_040_001)));
        assert!(!comes_before(Some(usual), None, Some(1_040_000)));
        assert!(!comes_before(Some(usual), Some(1_700_000), Some(1_700_000)));
        assert!(comes_before(Some(usual), Some(1_700_000), Some(1_700_001)));
        assert!(comes_before(Some(usual), Some(900_000), Some(1_040_001)));
    }
}
