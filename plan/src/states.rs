//! The model with individual people, for a few of them: every state has a name.
//!
//! `erQ2G1`: person 1 edits and person 2 is ready; 2 waits in the queue; 1 holds the GPU. `s` is
//! asleep, `G0` a free GPU.

use crate::{
    rates::Rates,
    solve::{Chain, Groups},
};
use std::{
    collections::{HashMap, HashSet},
    fmt,
};

/// With more people there are too many states to list; [`crate::shared`] counts them.
pub const MAX_PEOPLE: usize = 5;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Doing {
    Asleep,
    Editing,
    Ready,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    pub doing: Vec<Doing>,
    /// The people who wait, in queue order; people are numbered from zero.
    pub line: Vec<usize>,
    pub holder: Option<usize>,
}

impl fmt::Display for State {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for doing in &self.doing {
            out.write_str(match doing {
                Doing::Asleep => "s",
                Doing::Editing => "e",
                Doing::Ready => "r",
            })?;
        }
        out.write_str("Q")?;
        for person in &self.line {
            write!(out, "{}", person + 1)?;
        }
        write!(out, "G{}", self.holder.map_or(0, |person| person + 1))
    }
}

/// Every state of up to [`MAX_PEOPLE`] people who share one GPU, and its probability in the long run.
///
/// `None` for zero or too many people, or if the solver did not reach twelve digits.
#[must_use]
pub fn solve(rates: &Rates, people: usize) -> Option<Vec<(State, f64)>> {
    if !(1..=MAX_PEOPLE).contains(&people) {
        return None;
    }
    let states = reachable(rates, people);
    let number_of: HashMap<_, _> = states
        .iter()
        .enumerate()
        .map(|(number, state)| (state, number))
        .collect();
    let chain = Chain::new(states.len(), |number, go| {
        states[number].transitions(rates, &mut |next, rate| go(number_of[&next], rate));
    });
    let by_line = groups(&states, |state| state.line.len());
    let by_asleep = groups(&states, |state| {
        let asleep = |doing: &&Doing| **doing == Doing::Asleep;
        state.doing.iter().filter(asleep).count()
    });
    let probabilities = chain.stationary(&[by_line, by_asleep])?;
    drop(number_of);
    let mut solved: Vec<_> = states.into_iter().zip(probabilities).collect();
    solved.sort_by_cached_key(|(state, _)| (state.holder, state.to_string()));
    Some(solved)
}

fn groups(states: &[State], number: impl Fn(&State) -> usize) -> Groups {
    let of: Vec<u32> = states.iter().map(|state| number(state) as u32).collect();
    Groups {
        count: of.iter().max().map_or(0, |most| *most as usize + 1),
        of,
    }
}

/// All states that can be reached from a free GPU with everyone asleep. The last state found is the
/// first in the list, so that the first one recurs.
fn reachable(rates: &Rates, people: usize) -> Vec<State> {
    let start = State {
        doing: vec![Doing::Asleep; people],
        line: Vec::new(),
        holder: None,
    };
    let mut seen = HashSet::from([start.clone()]);
    let mut found = vec![start];
    let mut next = 0;
    while next < found.len() {
        let mut fresh = Vec::new();
        found[next].transitions(rates, &mut |state, _| {
            if seen.insert(state.clone()) {
                fresh.push(state);
            }
        });
        found.extend(fresh);
        next += 1;
    }
    found.reverse();
    found
}

impl State {
    /// Whether a cell runs.
    #[must_use]
    pub fn runs(&self) -> bool {
        self.holder
            .is_some_and(|holder| self.doing[holder] == Doing::Ready)
    }

    fn transitions(&self, rates: &Rates, go: &mut dyn FnMut(State, f64)) {
        for person in 0..self.doing.len() {
            match self.doing[person] {
                Doing::Asleep => go(self.with(person, Doing::Editing), rates.arrival),
                Doing::Editing => {
                    if rates.departure > 0.0 {
                        go(self.with(person, Doing::Asleep), rates.departure);
                    }
                    go(self.submitted(person), rates.submission);
                }
                Doing::Ready if self.holder == Some(person) => {
                    go(self.with(person, Doing::Editing), rates.execution);
                }
                Doing::Ready => {}
            }
        }
        if let (false, [first, rest @ ..]) = (self.runs(), self.line.as_slice()) {
            let handed = State {
                doing: self.doing.clone(),
                line: rest.to_vec(),
                holder: Some(*first),
            };
            go(handed, rates.hand_over);
        }
    }

    fn with(&self, person: usize, doing: Doing) -> State {
        let mut next = self.clone();
        next.doing[person] = doing;
        next
    }

    fn submitted(&self, person: usize) -> State {
        let mut next = self.with(person, Doing::Ready);
        if self.holder.is_none_or(|holder| holder == person) {
            next.holder = Some(person);
        } else {
            next.line.push(person);
        }
        next
    }
}
