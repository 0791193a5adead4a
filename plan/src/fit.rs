//! What a course's past says about its rates.
//!
//! In: the cells of the past ([`PastCell`]), also those that wait, run, or were broken off. Out: the [`Rates`] under which
//! that past is likeliest, the distributions of what was seen, and how far the one is from the other.
//!
//! Who submits nothing for [`AWAY`] after a cell has gone away. What nobody saw the end of (a cell that waits, one that was
//! stopped, somebody who edits) counts as long as it was seen, and not as an end.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    PastCell, Seen, Survival,
    rates::Rates,
    simulation::{Life, Times},
};

/// Seconds without a cell after which somebody is away.
pub const AWAY: f64 = 1800.0;

/// Fewer cells with an end say nothing.
const FEWEST: usize = 20;

/// A hand-over takes at least so long, in seconds.
const SHORTEST_HAND_OVER: f64 = 1e-3;

/// How many times stand for a distribution in a simulation.
const SAMPLE: usize = 1000;

#[derive(Debug, Clone)]
pub struct Fit {
    pub people: usize,
    pub rates: Rates,
    pub runs: Survival,
    pub edits: Survival,
    pub waits: Survival,
    /// From the first submission until now, in seconds.
    pub span: f64,
    /// Seconds that cells ran.
    pub busy: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TooLittle {
    #[error("The history has no cells yet, so there is nothing to estimate from")]
    Nothing,
    #[error(
        "Only {} of the history ran to {} end, and an estimate needs at least {FEWEST}",
        if *.cells == 1 { "1 cell".to_owned() } else { format!("{cells} cells") },
        if *.cells == 1 { "its" } else { "their" }
    )]
    Few { cells: usize },
    #[error(
        "No one in the history submitted a second cell soon after the first, so the time between cells is unknown"
    )]
    NoEdits,
}

/// `places` cells run at once; `now` is when the history ends.
///
/// # Errors
/// When the history is too short.
pub fn fit(cells: &[PastCell], places: usize, now: f64) -> Result<Fit, TooLittle> {
    if cells.is_empty() {
        return Err(TooLittle::Nothing);
    }
    let runs = Survival::of(cells.iter().filter_map(|cell| run(cell, now)).collect());
    if runs.ended() < FEWEST {
        return Err(TooLittle::Few {
            cells: runs.ended(),
        });
    }
    let waits = Survival::of(cells.iter().map(|cell| wait(cell, now)).collect());
    let Gaps { edits, aways, left } = gaps(cells, now);
    let edits = Survival::of(edits);
    if edits.ended() == 0 {
        return Err(TooLittle::NoEdits);
    }
    let aways = Survival::of(aways);
    let submission = edits.rate();
    let visits_a_cell = 1.0 + left as f64 / edits.ended() as f64;
    // As long as nobody came back, those who left are expected any moment.
    let (arrival, departure) = match aways.ended() {
        0 => (1.0 / AWAY, 0.0),
        // Who comes and leaves without a cell is not seen, so that several times away look like one.
        _ => (
            aways.rate() * visits_a_cell,
            submission * (visits_a_cell - 1.0),
        ),
    };
    let rates = Rates {
        arrival,
        departure,
        submission,
        execution: runs.rate(),
        hand_over: 1.0 / hand_over(cells, places),
    };
    let first = cells.iter().map(|cell| cell.submitted);
    Ok(Fit {
        people: people(cells.iter()),
        rates,
        busy: cells
            .iter()
            .filter_map(|cell| run(cell, now))
            .map(|run| run.seconds)
            .sum(),
        span: now - first.fold(f64::INFINITY, f64::min),
        runs,
        edits,
        waits,
    })
}

impl Fit {
    /// How far exponential times are from the cells', at most, as a part of all cells.
    #[must_use]
    pub fn distance(&self) -> f64 {
        let rate = self.rates.execution;
        self.runs.distance(|seconds| (-rate * seconds).exp())
    }

    /// How many are not away at a time, on average, if nobody waits.
    #[must_use]
    pub fn people_at_once(&self) -> f64 {
        let rates = &self.rates;
        if rates.departure == 0.0 {
            return self.people as f64;
        }
        let stay = (1.0 + rates.submission / rates.execution) / rates.departure;
        self.people as f64 * stay / (stay + 1.0 / rates.arrival)
    }

    /// With the times as they were, for a simulation.
    #[must_use]
    pub fn life(&self) -> Life {
        Life {
            edit: Times::Measured(self.edits.sample(SAMPLE)),
            run: Times::Measured(self.runs.sample(SAMPLE)),
            ..self.rates.life()
        }
    }
}

/// How many had a cell lately, and are not away.
#[must_use]
pub fn people_here(cells: &[PastCell], now: f64) -> usize {
    let last = |cell: &PastCell| cell.finished.unwrap_or(now);
    people(cells.iter().filter(|cell| now - last(cell) <= AWAY))
}

fn people<'cells>(cells: impl Iterator<Item = &'cells PastCell>) -> usize {
    cells.map(|cell| cell.person).collect::<BTreeSet<_>>().len()
}

fn run(cell: &PastCell, now: f64) -> Option<Seen> {
    Some(Seen {
        seconds: cell.finished.unwrap_or(now) - cell.started?,
        ended: cell.finished.is_some() && cell.ended_itself,
    })
}

fn wait(cell: &PastCell, now: f64) -> Seen {
    Seen {
        seconds: cell.started.or(cell.finished).unwrap_or(now) - cell.submitted,
        ended: cell.started.is_some(),
    }
}

#[derive(Default)]
struct Gaps {
    edits: Vec<Seen>,
    aways: Vec<Seen>,
    /// How often somebody went away.
    left: usize,
}

/// What each person did from the end of a cell to the next one.
fn gaps(cells: &[PastCell], now: f64) -> Gaps {
    let mut of_person: BTreeMap<u64, Vec<&PastCell>> = BTreeMap::new();
    for cell in cells {
        of_person.entry(cell.person).or_default().push(cell);
    }
    let mut gaps = Gaps::default();
    for cells in of_person.values_mut() {
        cells.sort_by(|one, other| one.submitted.total_cmp(&other.submitted));
        for (place, cell) in cells.iter().enumerate() {
            let Some(finished) = cell.finished else {
                continue;
            };
            let next = cells.get(place + 1);
            let seconds = next.map_or(now, |next| next.submitted) - finished;
            // Two notebooks at once: nobody edited between these cells.
            if seconds < 0.0 {
                continue;
            }
            let seen = Seen {
                seconds,
                ended: next.is_some(),
            };
            if seconds <= AWAY {
                gaps.edits.push(seen);
            } else {
                gaps.aways.push(seen);
                gaps.left += 1;
            }
        }
    }
    gaps
}

/// The median wait, in seconds, of cells that found a free place, which is what is left when nobody is in the way.
fn hand_over(cells: &[PastCell], places: usize) -> f64 {
    // Starts come before submissions of the same moment, and ends before both.
    let mut moments: Vec<(f64, u8, usize)> = Vec::new();
    for (number, cell) in cells.iter().enumerate() {
        moments.push((cell.submitted, 2, number));
        // What waits takes a place as soon as there is one.
        moments.extend(cell.finished.map(|time| (time, 0, number)));
    }
    moments.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.cmp(&other.1)));
    let mut unfinished = 0_usize;
    let mut waits = Vec::new();
    for (_, kind, number) in moments {
        if kind == 0 {
            unfinished = unfinished.saturating_sub(1);
            continue;
        }
        let cell = &cells[number];
        if let Some(started) = cell.started.filter(|_| unfinished < places) {
            waits.push(started - cell.submitted);
        }
        unfinished += 1;
    }
    waits.sort_by(f64::total_cmp);
    let median = waits.get(waits.len() / 2).copied();
    median.unwrap_or(SHORTEST_HAND_OVER).max(SHORTEST_HAND_OVER)
}
