//! The cells that people run: those of identical people, or those of a real course's past.

use super::{Spread, Times};
use crate::PastCell;
use rand::rngs::Xoshiro256PlusPlus;
use std::collections::BTreeMap;

/// Times are in seconds.
#[derive(Debug, Clone)]
pub enum Course {
    /// This many identical people.
    Drawn {
        people: usize,
        edit: Times,
        run: Times,
    },
    /// The cells of each notebook of the past, in order.
    Replayed(Vec<Vec<OwnCell>>),
}

/// A cell of the past.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OwnCell {
    /// Time since the previous cell ended, or since the beginning.
    pub edit: f64,
    /// How long the cell held a slot.
    pub run: f64,
}

/// How long cells waited for a slot.
#[derive(Debug, Clone, Copy)]
pub struct PastWaits {
    pub mean: f64,
    /// The waits within which 50, 90 and 99 of 100 cells got one.
    pub waits: [f64; 3],
}

impl PastWaits {
    #[must_use]
    pub fn of(cells: &[PastCell]) -> Self {
        let mut waits = Spread::new();
        for cell in cells {
            if let (Some(assigned), Some(_)) = (cell.assigned, cell.finished) {
                waits.add(assigned - cell.submitted);
            }
        }
        Self {
            mean: waits.mean(),
            waits: [0.5, 0.9, 0.99].map(|part| waits.percentile(part)),
        }
    }
}

impl Course {
    /// Leaves out cells that never had a slot, or still have it. Overlapping cells of one person
    /// are assigned to separate notebooks.
    #[must_use]
    pub fn replayed(cells: &[PastCell]) -> Self {
        let begin = cells
            .iter()
            .map(|cell| cell.submitted)
            .fold(f64::INFINITY, f64::min);
        let mut ended: Vec<(u64, f64, f64, f64)> = cells
            .iter()
            .filter_map(|cell| Some((cell.person, cell.submitted, cell.assigned?, cell.finished?)))
            .collect();
        ended.sort_by(|one, other| one.1.total_cmp(&other.1));
        // Each notebook's cells, and when its last cell ended.
        let mut of_person: BTreeMap<u64, Vec<(f64, Vec<OwnCell>)>> = BTreeMap::new();
        for (person, submitted, assigned, finished) in ended {
            let notebooks = of_person.entry(person).or_default();
            let free = notebooks.iter().position(|(end, _)| *end <= submitted);
            let number = free.unwrap_or_else(|| {
                notebooks.push((begin, Vec::new()));
                notebooks.len() - 1
            });
            let (end, own) = &mut notebooks[number];
            own.push(OwnCell {
                edit: submitted - *end,
                run: finished - assigned,
            });
            *end = finished;
        }
        let notebooks = of_person.into_values().flatten();
        Self::Replayed(notebooks.map(|(_, own)| own).collect())
    }

    pub(super) fn notebooks(&self) -> usize {
        match self {
            Self::Drawn { people, .. } => *people,
            Self::Replayed(notebooks) => notebooks.len(),
        }
    }

    /// The time until a notebook submits its cell of this number; `None` if there is no such cell.
    pub(super) fn edit(
        &self,
        notebook: usize,
        cell: usize,
        random: &mut Xoshiro256PlusPlus,
    ) -> Option<f64> {
        match self {
            Self::Drawn { edit, .. } => Some(edit.draw(random)),
            Self::Replayed(notebooks) => notebooks[notebook].get(cell).map(|cell| cell.edit),
        }
    }

    pub(super) fn run(&self, notebook: usize, cell: usize, random: &mut Xoshiro256PlusPlus) -> f64 {
        match self {
            Self::Drawn { run, .. } => run.draw(random),
            Self::Replayed(notebooks) => notebooks[notebook][cell].run,
        }
    }

    pub(super) fn mean_run(&self) -> f64 {
        match self {
            Self::Drawn { run, .. } => run.mean(),
            Self::Replayed(notebooks) => {
                let cells = notebooks.iter().flatten();
                let count = cells.clone().count().max(1);
                cells.map(|cell| cell.run).sum::<f64>() / count as f64
            }
        }
    }
}
