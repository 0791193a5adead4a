//! The stationary distribution of a large, sparse Markov chain in continuous time.
//!
//! In: the rates out of each state, and one or more ways to group the states. Out: the probability
//! of each state.
//!
//! Each round solves every group exactly, given the flow from the others (block Gauss-Seidel), which settles
//! differences between neighbouring states. Differences between distant parts of the chain change too slowly
//! that way. Therefore each round first solves the chain of groups exactly, weighted with the present guess,
//! and corrects the guess by the result (iterative aggregation; Koury, McAllister and Stewart 1984). Most
//! states of a large chain are practically impossible; they are only rescaled with their groups. Between rounds
//! the guess is extrapolated ([`anderson`]). The answer is the result of a round, which subtracts nothing, so
//! all probabilities are non-negative.

mod anderson;
mod band;
mod groups;

pub(crate) use groups::Groups;

use anderson::Anderson;
use band::Band;
use groups::Blocks;

/// Transitions between states `0..len`, ordered by their target.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Where the transitions into each state begin in `incoming`, with one more entry for the end.
    begins: Vec<usize>,
    incoming: Vec<(u32, f64)>,
    /// The sum of the rates out of each state.
    exit: Vec<f64>,
    /// Whether each state recurs for ever, like state 0.
    recurs: Vec<bool>,
}

/// Groups with transitions that lead further cost too much to solve, so they are swept instead.
const MAX_REACH: usize = 24;
const SWEEPS: usize = 8;
const TOLERANCE: f64 = 1e-13;
/// Give up after this many rounds without a better one.
const PATIENCE: usize = 100;
/// The total probability of all states below this does not affect twelve digits.
const RARE: f64 = 1e-25;
/// The flow between groups below this probability does not affect twelve digits.
const NEGLIGIBLE: f64 = 1e-30;
/// The smallest probability, so that the rates out of practically impossible states stay defined.
const FLOOR: f64 = 1e-280;

impl Chain {
    /// `each(state, go)` calls `go(target, rate)` for every transition out of `state`.
    pub(crate) fn new(len: usize, each: impl Fn(usize, &mut dyn FnMut(usize, f64))) -> Self {
        let mut begins = vec![0; len + 1];
        let mut exit = vec![0.0; len];
        for (state, exit) in exit.iter_mut().enumerate() {
            each(state, &mut |target, rate| {
                if rate > 0.0 {
                    begins[target + 1] += 1;
                    *exit += rate;
                }
            });
        }
        for state in 0..len {
            begins[state + 1] += begins[state];
        }
        let mut next = begins.clone();
        let mut incoming = vec![(0, 0.0); begins[len]];
        for state in 0..len {
            each(state, &mut |target, rate| {
                if rate > 0.0 {
                    incoming[next[target]] = (state as u32, rate);
                    next[target] += 1;
                }
            });
        }
        Self {
            begins,
            incoming,
            exit,
            recurs: reachable(len, each),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.exit.len()
    }

    fn incoming_of(&self, state: usize) -> &[(u32, f64)] {
        &self.incoming[self.begins[state]..self.begins[state + 1]]
    }

    /// The probability of each state in the long run; `None` if twelve digits were not reached.
    pub(crate) fn stationary(&self, groupings: &[Groups]) -> Option<Vec<f64>> {
        let blocks = |groups| Blocks::of(self, groups);
        let blocks: Vec<_> = groupings.iter().map(blocks).collect();
        let mut guess = vec![1.0 / self.len() as f64; self.len()];
        let mut anderson = Anderson::default();
        let (mut best, mut stuck) = (f64::INFINITY, 0);
        while stuck < PATIENCE {
            let mut probabilities = guess.clone();
            for blocks in &blocks {
                blocks.correct(&mut probabilities);
                if blocks.reach_inside <= MAX_REACH {
                    self.solve_blocks(&mut probabilities, blocks);
                } else {
                    (0..SWEEPS).for_each(|_| self.sweep(&mut probabilities));
                }
            }
            let total: f64 = probabilities.iter().sum();
            probabilities
                .iter_mut()
                .for_each(|p| *p = (*p / total).max(FLOOR));
            let imbalance = self.imbalance(&probabilities);
            if imbalance < TOLERANCE {
                let recurring = probabilities.iter().zip(&self.recurs);
                return Some(
                    recurring
                        .map(|(p, recurs)| if *recurs { *p } else { 0.0 })
                        .collect(),
                );
            }
            stuck = if imbalance < best { 0 } else { stuck + 1 };
            best = best.min(imbalance);
            guess = anderson.next(&guess, probabilities, RARE);
        }
        None
    }

    /// Solves the likely states of each group in turn, forwards and then backwards, given the
    /// present guess for all others.
    fn solve_blocks(&self, probabilities: &mut [f64], blocks: &Blocks<'_>) {
        let count = blocks.groups.count;
        for group in (0..count).chain((0..count).rev()) {
            let states = blocks.states_of(group);
            let weight: f64 = (states.iter().map(|state| probabilities[*state as usize])).sum();
            if weight < NEGLIGIBLE {
                continue;
            }
            let reach = blocks.reach_inside;
            let solved = blocks.likely(group, probabilities);
            let near = solved.start.saturating_sub(reach)..(solved.end + reach).min(states.len());
            let mut band = Band::new(solved.len(), reach);
            for (place, &state) in near.clone().zip(&states[near]) {
                let state = state as usize;
                let is_solved = solved.contains(&place);
                if is_solved {
                    band.out[place - solved.start] += blocks.outward[state];
                }
                for &(from, rate) in self.incoming_of(state) {
                    let from = from as usize;
                    let mate = blocks.place[from] as usize;
                    let comes_from_solved =
                        blocks.group_of(from) == group && solved.contains(&mate);
                    match (comes_from_solved, is_solved) {
                        (true, true) => band.add(mate - solved.start, place - solved.start, rate),
                        (true, false) => band.out[mate - solved.start] += rate,
                        (false, true) => {
                            band.into[place - solved.start] += probabilities[from] * rate;
                        }
                        (false, false) => {}
                    }
                }
            }
            let states = &states[solved];
            for (&state, probability) in states.iter().zip(band.solve(weight)) {
                probabilities[state as usize] = probability.max(FLOOR);
            }
        }
    }

    fn sweep(&self, probabilities: &mut [f64]) {
        for state in 0..self.len() {
            probabilities[state] =
                (self.flow_into(state, probabilities) / self.exit[state]).max(FLOOR);
        }
        for state in (0..self.len()).rev() {
            probabilities[state] =
                (self.flow_into(state, probabilities) / self.exit[state]).max(FLOOR);
        }
    }

    fn flow_into(&self, state: usize, probabilities: &[f64]) -> f64 {
        self.incoming_of(state)
            .iter()
            .map(|&(from, rate)| probabilities[from as usize] * rate)
            .sum()
    }

    /// How much the flow into states differs from the flow out of them, as a share of all flow.
    fn imbalance(&self, probabilities: &[f64]) -> f64 {
        let (mut off, mut all) = (0.0, 0.0);
        for state in 0..self.len() {
            let out = probabilities[state] * self.exit[state];
            off += (self.flow_into(state, probabilities) - out).abs();
            all += out;
        }
        off / all
    }
}

/// The states that can be reached from state 0.
fn reachable(len: usize, each: impl Fn(usize, &mut dyn FnMut(usize, f64))) -> Vec<bool> {
    let mut reached = vec![false; len];
    reached[0] = true;
    let mut open = vec![0];
    while let Some(state) = open.pop() {
        each(state, &mut |target, rate| {
            if rate > 0.0 && !reached[target] {
                reached[target] = true;
                open.push(target);
            }
        });
    }
    reached
}
