//! When each waiting job starts, if nobody else comes: the line played forward with the rules that assign.
//!
//! Three times, as if every run were short, as usual, or long; so the range of a place far behind is rather too wide.

use super::{
    Job, Spread,
    line::{Line, Taken},
};
use baton_protocol::{JobId, WorkerId};
use std::{cmp::Reverse, collections::BinaryHeap};

/// For each waiting job, the next one first, the milliseconds until it starts.
/// Behind a run of which nothing is known, nothing is said.
pub(super) fn starts<Why>(
    jobs: &[Job],
    assigned: &[(&Job, WorkerId)],
    waiting: &[(&Job, Why)],
    line: Line<'_>,
) -> Vec<Option<Spread>> {
    let nothing = vec![None; waiting.len()];
    if waiting.is_empty() {
        return nothing;
    }
    let running = jobs.iter().filter_map(|job| Some((job, job.worker?)));
    let running: Vec<(&Job, WorkerId)> = running.chain(assigned.iter().copied()).collect();
    if running.iter().any(|(job, _)| job.takes.is_none()) {
        return nothing;
    }
    let play = |takes: fn(Spread) -> u64| {
        let mut play = Play::new(line.clone(), &running, takes);
        play.run(waiting)
    };
    let lower = play(|takes| takes.lower);
    let middle = play(|takes| takes.middle);
    let upper = play(|takes| takes.upper);
    let ranges = lower.into_iter().zip(middle).zip(upper);
    ranges
        .map(|((lower, middle), upper)| {
            let (lower, middle, upper) = (lower?, middle?, upper?);
            // Other runs' lengths may change who goes first.
            Some(Spread {
                lower: lower.min(middle).min(upper),
                middle,
                upper: upper.max(middle).max(lower),
            })
        })
        .collect()
}

struct Play<'jobs> {
    line: Line<'jobs>,
    takes: fn(Spread) -> u64,
    running: Vec<(&'jobs Job, WorkerId)>,
    /// Ends of the running jobs, the first one on top; of two at one time, that of the job that was made first.
    ends: BinaryHeap<Reverse<(u64, JobId, usize)>>,
}

impl<'jobs> Play<'jobs> {
    fn new(
        line: Line<'jobs>,
        running: &[(&'jobs Job, WorkerId)],
        takes: fn(Spread) -> u64,
    ) -> Self {
        let mut play = Self {
            line,
            takes,
            running: Vec::new(),
            ends: BinaryHeap::new(),
        };
        for (job, worker) in running {
            play.starts(job, *worker, 0);
        }
        play
    }

    /// `false` when it is not known when the job ends.
    fn starts(&mut self, job: &'jobs Job, worker: WorkerId, now: u64) -> bool {
        let Some(takes) = job.takes else { return false };
        let end = now.saturating_add((self.takes)(takes));
        self.ends.push(Reverse((end, job.job, self.running.len())));
        self.running.push((job, worker));
        true
    }

    fn run<Why>(&mut self, waiting: &[(&'jobs Job, Why)]) -> Vec<Option<u64>> {
        let mut starts = vec![None; waiting.len()];
        let mut left: Vec<usize> = (0..waiting.len()).collect();
        while let Some(Reverse((now, _, ended))) = self.ends.pop() {
            let (job, worker) = self.running[ended];
            self.line.free(job, worker);
            let mut index = 0;
            while index < left.len() && self.line.has_room() {
                let place = left[index];
                let job = waiting[place].0;
                let Taken::By(worker) = self.line.take(job) else {
                    index += 1;
                    continue;
                };
                starts[place] = Some(now);
                left.remove(index);
                if !self.starts(job, worker, now) {
                    return starts;
                }
            }
        }
        starts
    }
}
