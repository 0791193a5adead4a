//! The stationary distribution of a large, sparse Markov chain in continuous time.
//!
//! In: the rates out of each state, and one or more ways to put states into groups. Out: the probability of each state.
//!
//! Each round solves every group exactly, given what flows in from the others (block Gauss-Seidel), which settles what
//! differs between neighbours. What differs between distant parts of the chain it changes too slowly, so before that the
//! chain of groups, weighted with the present guess, is solved exactly and the guess corrected by it (iterative
//! aggregation; Koury, McAllister and Stewart 1984). All numbers stay non-negative and nothing is subtracted, so small
//! probabilities are as exact as large ones (Grassmann, Taksar and Heyman 1985).

/// Transitions between states `0..len`, by where they go to.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Where in `incoming` the transitions into each state begin; one more at the end.
    begins: Vec<usize>,
    incoming: Vec<(u32, f64)>,
    /// The sum of rates out of each state.
    exit: Vec<f64>,
}

/// Every state's group; groups, and the states in one, are numbered so that transitions lead only to near numbers.
pub(crate) struct Groups {
    pub(crate) of: Vec<u32>,
    pub(crate) count: usize,
}

/// Groups in which transitions lead further are too much work to solve, and swept instead.
const MAX_REACH: usize = 24;
const SWEEPS: usize = 8;
const MAX_ROUNDS: usize = 20_000;
const TOLERANCE: f64 = 1e-13;
/// What flows between groups that are less likely does not show in twelve digits.
const NEGLIGIBLE: f64 = 1e-30;
const HUGE: f64 = 1e200;
/// No probability is less, so that the rates out of states that are all but impossible stay defined.
const FLOOR: f64 = 1e-280;
const IMPOSSIBLE: f64 = 1e-250;

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
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.exit.len()
    }

    fn incoming_of(&self, state: usize) -> &[(u32, f64)] {
        &self.incoming[self.begins[state]..self.begins[state + 1]]
    }

    /// The probability of each state in the long run; `None` if it was not found to twelve digits.
    pub(crate) fn stationary(&self, groupings: &[Groups]) -> Option<Vec<f64>> {
        let mut probabilities = vec![1.0 / self.len() as f64; self.len()];
        let blocks: Vec<_> = groupings.iter().map(|groups| self.blocks(groups)).collect();
        for _ in 0..MAX_ROUNDS {
            for (groups, blocks) in groupings.iter().zip(&blocks) {
                self.correct(&mut probabilities, groups, blocks.reach);
                if blocks.reach_inside <= MAX_REACH {
                    self.solve_blocks(&mut probabilities, groups, blocks);
                } else {
                    (0..SWEEPS).for_each(|_| self.sweep(&mut probabilities));
                }
            }
            let total: f64 = probabilities.iter().sum();
            probabilities
                .iter_mut()
                .for_each(|p| *p = (*p / total).max(FLOOR));
            if self.imbalance(&probabilities) < TOLERANCE {
                probabilities
                    .iter_mut()
                    .filter(|p| **p < IMPOSSIBLE)
                    .for_each(|p| *p = 0.0);
                return Some(probabilities);
            }
        }
        None
    }

    /// Gives the states of each group, one group after the other and back, what follows from the present guess for all others.
    fn solve_blocks(&self, probabilities: &mut [f64], groups: &Groups, blocks: &Blocks) {
        for group in (0..groups.count).chain((0..groups.count).rev()) {
            let states = &blocks.states[blocks.begins[group]..blocks.begins[group + 1]];
            let weight: f64 = (states.iter().map(|state| probabilities[*state as usize])).sum();
            if weight < NEGLIGIBLE {
                continue;
            }
            let mut band = Band::new(states.len(), blocks.reach_inside);
            for (place, &state) in states.iter().enumerate() {
                let state = state as usize;
                band.out[place] = blocks.outward[state];
                for &(from, rate) in self.incoming_of(state) {
                    let from = from as usize;
                    if groups.of[from] as usize == group {
                        band.add(blocks.place[from] as usize, place, rate);
                    } else {
                        band.into[place] += probabilities[from] * rate;
                    }
                }
            }
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

    /// How far what flows into states is from what flows out, as a part of all flow.
    fn imbalance(&self, probabilities: &[f64]) -> f64 {
        let (mut off, mut all) = (0.0, 0.0);
        for state in 0..self.len() {
            let out = probabilities[state] * self.exit[state];
            off += (self.flow_into(state, probabilities) - out).abs();
            all += out;
        }
        off / all
    }

    /// Gives each group the weight that it has in the chain of groups.
    fn correct(&self, probabilities: &mut [f64], groups: &Groups, reach: usize) {
        let mut weights = vec![0.0; groups.count];
        for (state, probability) in probabilities.iter().enumerate() {
            weights[groups.of[state] as usize] += probability;
        }
        let mut band = Band::new(groups.count, reach);
        for state in 0..self.len() {
            let group = groups.of[state] as usize;
            for &(from, rate) in self.incoming_of(state) {
                let source = groups.of[from as usize] as usize;
                if source != group {
                    band.add(
                        source,
                        group,
                        probabilities[from as usize] * rate / weights[source],
                    );
                }
            }
        }
        let exact = band.solve(1.0);
        for (state, probability) in probabilities.iter_mut().enumerate() {
            let group = groups.of[state] as usize;
            *probability = (*probability / weights[group] * exact[group]).max(FLOOR);
        }
    }

    fn blocks(&self, groups: &Groups) -> Blocks {
        let mut begins = vec![0; groups.count + 1];
        for group in &groups.of {
            begins[*group as usize + 1] += 1;
        }
        for group in 0..groups.count {
            begins[group + 1] += begins[group];
        }
        let mut next = begins.clone();
        let mut states = vec![0; self.len()];
        let mut place = Vec::with_capacity(self.len());
        for (state, group) in groups.of.iter().enumerate() {
            let group = *group as usize;
            states[next[group]] = state as u32;
            place.push((next[group] - begins[group]) as u32);
            next[group] += 1;
        }
        let mut outward = vec![0.0; self.len()];
        let (mut reach, mut reach_inside) = (0, 0);
        for state in 0..self.len() {
            for &(from, rate) in self.incoming_of(state) {
                let from = from as usize;
                let distance = groups.of[from].abs_diff(groups.of[state]);
                if distance == 0 {
                    reach_inside = reach_inside.max(place[from].abs_diff(place[state]));
                } else {
                    reach = reach.max(distance);
                    outward[from] += rate;
                }
            }
        }
        Blocks {
            begins,
            states,
            place,
            outward,
            reach: reach as usize,
            reach_inside: reach_inside as usize,
        }
    }
}

/// What is known of groups before anything is solved.
struct Blocks {
    /// Where in `states` each group begins; one more at the end.
    begins: Vec<usize>,
    states: Vec<u32>,
    /// Of each state in its group.
    place: Vec<u32>,
    /// The sum of rates from each state to other groups.
    outward: Vec<f64>,
    /// How far apart the numbers of groups are between which a transition leads, at most; and of states in a group.
    reach: usize,
    reach_inside: usize,
}

/// A chain whose transitions lead at most `reach` states up or down, or out of it.
struct Band {
    count: usize,
    reach: usize,
    rates: Vec<f64>,
    /// The rate out of the chain from each state.
    out: Vec<f64>,
    /// What flows into each state from outside.
    into: Vec<f64>,
}

impl Band {
    fn new(count: usize, reach: usize) -> Self {
        Self {
            count,
            reach,
            rates: vec![0.0; count * (2 * reach + 1)],
            out: vec![0.0; count],
            into: vec![0.0; count],
        }
    }

    fn at(&self, from: usize, to: usize) -> usize {
        from * (2 * self.reach + 1) + to + self.reach - from
    }

    fn add(&mut self, from: usize, to: usize, rate: f64) {
        let place = self.at(from, to);
        self.rates[place] += rate;
    }

    /// The weight of each state; of a chain that nothing leaves they sum up to `weight`.
    /// By elimination from the last state to the first, without subtractions.
    fn solve(mut self, weight: f64) -> Vec<f64> {
        let is_closed = self.out.iter().all(|rate| *rate == 0.0);
        if is_closed {
            self.into.fill(0.0);
        }
        for last in (1..self.count).rev() {
            let near = last.saturating_sub(self.reach)..last;
            let inside: f64 = near.clone().map(|to| self.rates[self.at(last, to)]).sum();
            // What nothing leads back from is not reached either: state 0 recurs.
            let down = match inside + self.out[last] {
                0.0 => f64::INFINITY,
                down => down,
            };
            self.into[last] /= down;
            for to in near.clone() {
                self.into[to] += self.into[last] * self.rates[self.at(last, to)];
            }
            for from in near.clone() {
                let up = self.at(from, last);
                self.rates[up] /= down;
                let share = self.rates[up];
                if share > 0.0 {
                    self.out[from] += share * self.out[last];
                    for to in near.clone() {
                        let through = share * self.rates[self.at(last, to)];
                        self.add(from, to, through);
                    }
                }
            }
        }
        let mut weights = vec![0.0; self.count];
        weights[0] = if is_closed {
            1.0
        } else {
            self.into[0] / self.out[0]
        };
        for state in 1..self.count {
            let near = state.saturating_sub(self.reach)..state;
            let inside: f64 = near
                .map(|from| weights[from] * self.rates[self.at(from, state)])
                .sum();
            weights[state] = self.into[state] + inside;
            if is_closed && weights[state] > HUGE {
                weights[..=state].iter_mut().for_each(|w| *w /= HUGE);
            }
        }
        if is_closed {
            let total: f64 = weights.iter().sum();
            weights.iter_mut().for_each(|w| *w *= weight / total);
        }
        weights
    }
}
