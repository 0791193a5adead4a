//! Estimates a course's rates from its past.
//!
//! In: the cells of the past ([`PastCell`]), including those that wait, run, or were interrupted. Out: the
//! [`Rates`] under which that past is likeliest, the observed distributions, and how much the two differ.
//!
//! A person who submits nothing for [`AWAY`] after a cell has left. Durations without an observed end (a
//! waiting cell, a stopped one, a person who edits) count for as long as they were observed, and not as an end.

use crate::{
    PastCell, Seen, Survival,
    rates::Rates,
    simulation::{Life, Times},
};
use std::collections::{BTreeMap, BTreeSet};

/// After this many seconds without a cell, a person is away.
pub const AWAY: f64 = 1800.0;

/// Fewer cells with an observed end are too few.
const FEWEST: usize = 20;

/// The shortest hand-over, in seconds.
const SHORTEST_HAND_OVER: f64 = 1e-3;

/// The number of times that represent a distribution in a simulation.
const SAMPLE: usize = 1000;

#[derive(Debug, Clone)]
pub struct Fit {
    pub people: usize,
    pub rates: Rates,
    pub runs: Survival,
    pub edits: Survival,
    pub waits: Survival,
    /// Seconds from the first submission until now.
    pub span: f64,
    /// Total run time of cells, in seconds.
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

/// `places` is the number of cells that can run at once; `now` is the end of the history.
///
/// # Errors
/// If the history is too short.
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
    // Until a first person has returned, those who left are expected at any moment.
    let (arrival, departure) = match aways.ended() {
        0 => (1.0 / AWAY, 0.0),
        // A visit without a cell is not observed, so several times away look like one.
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
    /// The largest difference between exponential run times and the observed ones, as a share of all cells.
    #[must_use]
    pub fn distance(&self) -> f64 {
        let rate = self.rates.execution;
        self.runs.distance(|seconds| (-rate * seconds).exp())
    }

    /// The mean number of people who are not away, if none of them waits.
    #[must_use]
    pub fn people_at_once(&self) -> f64 {
        let rates = &self.rates;
        if rates.departure == 0.0 {
            return self.people as f64;
        }
        let stay = (1.0 + rates.submission / rates.execution) / rates.departure;
        self.people as f64 * stay / (stay + 1.0 / rates.arrival)
    }

    /// The observed times, for a simulation.
    #[must_use]
    pub fn life(&self) -> Life {
        Life {
            edit: Times::Measured(self.edits.sample(SAMPLE)),
            run: Times::Measured(self.runs.sample(SAMPLE)),
            ..self.rates.life()
        }
    }
}

/// The number of people who ran a cell recently and are not away.
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
    /// How often people went away.
    left: usize,
}

/// Each person's time between the end of a cell and the next one.
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
            // The cells are from two notebooks at once, so there was no edit between them.
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

/// The median wait, in seconds, of cells that found a free slot: the delay that remains when no
/// other cell is in the way.
fn hand_over(cells: &[PastCell], places: usize) -> f64 {
    // At the same moment, ends come before submissions.
    let mut moments: Vec<(f64, u8, usize)> = Vec::new();
    for (number, cell) in cells.iter().enumerate() {
        moments.push((cell.submitted, 2, number));
        // A waiting cell takes a slot as soon as there is one.
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
