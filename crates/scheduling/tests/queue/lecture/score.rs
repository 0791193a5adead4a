//! How good the estimates were, over many lectures.

use super::{Lecture, Telling, Told};

const LECTURE: u64 = 90 * 60_000;

#[derive(Debug, Default)]
pub(crate) struct Score {
    pub(crate) cells: usize,
    pub(crate) first: Held,
    pub(crate) later: Held,
    pub(crate) back: MovesBack,
    /// Where both are known: the width of the range shown, and that of the narrowest range that
    /// holds as many starts.
    pub(crate) widths: Vec<(u64, u64)>,
    pub(crate) best: Held,
}

/// Estimates that put a cell further back than the one before.
#[derive(Debug, Default)]
pub(crate) struct MovesBack {
    pub(crate) cells: usize,
    pub(crate) tellings: usize,
    /// Further than the range that was shown.
    pub(crate) beyond: usize,
    /// Without a reason being shown.
    pub(crate) without_reason: usize,
}

/// Where starts were in relation to the ranges.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) none: usize,
    pub(crate) before: usize,
    pub(crate) within: usize,
    pub(crate) after: usize,
}

impl MovesBack {
    fn add(&mut self, before: &Telling, after: &Telling) -> bool {
        let is_back = after.position.position > before.position.position
            || after.position.last > before.position.last;
        if is_back {
            self.tellings += 1;
            self.beyond += usize::from(after.position.position > before.position.last);
            self.without_reason += usize::from(after.moved_back.is_none());
        }
        is_back
    }
}

impl Held {
    fn add(&mut self, range: Option<(u64, u64)>, started: u64) {
        match range {
            None => self.none += 1,
            Some((lower, _)) if started < lower => self.before += 1,
            Some((_, upper)) if started > upper => self.after += 1,
            Some(_) => self.within += 1,
        }
    }

    pub(crate) fn ranges(&self) -> usize {
        self.before + self.within + self.after
    }

    /// The share of starts inside the ranges.
    pub(crate) fn part(&self) -> f64 {
        self.within as f64 / self.ranges().max(1) as f64
    }
}

impl Score {
    /// The score of the lectures with these seeds.
    pub(crate) fn of(
        seeds: impl Iterator<Item = u64>,
        minutes: Option<u64>,
        best_each: u128,
    ) -> Self {
        let mut score = Self::default();
        for seed in seeds {
            let mut lecture = Lecture::new(seed, best_each);
            lecture.run_until(minutes.map_or(LECTURE, |minutes| minutes * 60_000));
            for told in &lecture.told {
                score.add(told);
            }
        }
        score
    }

    fn add(&mut self, told: &Told) {
        let range = |telling: &Telling| telling.starts.map(|starts| (starts.lower, starts.upper));
        self.cells += 1;
        let mut was_back = false;
        for (number, telling) in told.tellings.iter().enumerate() {
            let held = if number == 0 {
                &mut self.first
            } else {
                &mut self.later
            };
            held.add(range(telling), told.started);
            if let Some(before) = number.checked_sub(1).map(|before| &told.tellings[before]) {
                was_back |= self.back.add(before, telling);
            }
            if let (Some(starts), Some(best)) = (telling.starts, telling.best) {
                self.best.add(Some((best.lower, best.upper)), told.started);
                self.widths
                    .push((starts.upper - starts.lower, best.upper - best.lower));
            }
        }
        self.back.cells += usize::from(was_back);
    }

    /// The median widths: as shown, and at best.
    pub(crate) fn width(&self) -> (u64, u64) {
        let median = |mut widths: Vec<u64>| {
            widths.sort_unstable();
            widths.get(widths.len() / 2).copied().unwrap_or(0)
        };
        let told = median(self.widths.iter().map(|width| width.0).collect());
        (
            told,
            median(self.widths.iter().map(|width| width.1).collect()),
        )
    }
}
