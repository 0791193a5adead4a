//! When each waiting job starts: simulates the queue many times, with the rules that assign jobs.
//!
//! Each play draws run times, session starts, and pauses until people return from the past
//! ([`Outlook`]), so it includes people who submit later and overtake. Each play always uses the
//! same random numbers, so an estimate changes only if the queue or the outlook changes.
//!
//! **Invariant:** the same input gives the same estimates.

mod alike;
mod chance;
mod entry;
mod needs;
mod play;
mod sort_key;

use crate::queue::{Job, Outlook, Spread, Worker};
use baton_protocol::JobId;
use play::World;

/// Of 59 plays, four in five lie between the sixth from either end. The same holds for the second
/// of 19, used for a queue so long that each play takes long.
const PLAYS: u64 = 59;
const PLAYS_OF_A_LONG_QUEUE: u64 = 19;
const LONG_QUEUE: usize = 80;
/// One step simulates about this many jobs, which takes a few milliseconds.
const JOBS_AT_ONCE: usize = 2000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StartEstimate {
    /// In milliseconds from now; four of five jobs start within this range.
    pub starts: Spread,
    /// The largest number of people who are likely to overtake it.
    pub overtakers: u32,
}

/// An estimate that is computed in steps, because for a long queue it takes longer than a decision may.
#[derive(Debug, Clone)]
pub struct Estimation {
    world: World,
    played: u64,
    starts: Vec<Vec<u64>>,
    overtakers: Vec<Vec<u64>>,
}

impl Estimation {
    /// `jobs` are in order of arrival. Jobs that were just assigned have their worker.
    #[must_use]
    pub fn new(jobs: &[Job], workers: &[Worker], jobs_per_person: u32, outlook: Outlook) -> Self {
        let world = World::new(jobs, workers, jobs_per_person, outlook);
        let of_each = vec![Vec::new(); world.waiting().len()];
        Self {
            world,
            played: 0,
            starts: of_each.clone(),
            overtakers: of_each,
        }
    }

    /// Computes the next step, at least one play. Returns true after the last step.
    pub fn play(&mut self) -> bool {
        let waiting = self.world.waiting().len();
        let plays = match waiting > LONG_QUEUE {
            true => PLAYS_OF_A_LONG_QUEUE,
            false => PLAYS,
        };
        let at_once = (JOBS_AT_ONCE / waiting.max(1)).max(1) as u64;
        let until = plays.min(self.played + at_once);
        for play in self.played..until {
            for (number, start) in self.world.play(play).into_iter().enumerate() {
                self.starts[number].push(start.map_or(u64::MAX, |start| start.after_ms));
                self.overtakers[number].push(start.map_or(u64::MAX, |start| start.overtakers));
            }
        }
        self.played = until;
        until == plays
    }

    /// Returns the estimate of each waiting job, in queue order. Call it after the last step. It is
    /// `None` if the job did not start in more than one of ten plays.
    #[must_use]
    pub fn finish(self) -> Vec<(JobId, Option<StartEstimate>)> {
        let said = self.starts.into_iter().zip(self.overtakers);
        let said = said.map(|(starts, overtakers)| estimate_of(starts, overtakers));
        self.world.waiting().iter().copied().zip(said).collect()
    }
}

/// Computes all estimates at once.
#[must_use]
pub fn estimate_starts(
    jobs: &[Job],
    workers: &[Worker],
    jobs_per_person: u32,
    outlook: Outlook,
) -> Vec<(JobId, Option<StartEstimate>)> {
    let mut estimation = Estimation::new(jobs, workers, jobs_per_person, outlook);
    while !estimation.play() {}
    estimation.finish()
}

fn estimate_of(mut starts: Vec<u64>, mut overtakers: Vec<u64>) -> Option<StartEstimate> {
    starts.sort_unstable();
    overtakers.sort_unstable();
    let at = |tenths: usize| starts[(starts.len() + 1) * tenths / 10 - 1];
    let starts = Spread {
        lower: at(1),
        middle: at(5),
        upper: at(9),
    };
    (starts.upper < u64::MAX).then(|| StartEstimate {
        starts,
        overtakers: u32::try_from(overtakers[(overtakers.len() + 1) * 9 / 10 - 1])
            .unwrap_or(u32::MAX),
    })
}
