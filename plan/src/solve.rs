//! The stationary distribution of a large, sparse Markov chain in continuous time.
//!
//! In: the rates out of each state, and one or more ways to put states into groups. Out: the probability of each state.
//!
//! Gauss-Seidel sweeps smooth what differs between neighbours. What differs between distant parts of the chain they
//! change too slowly, so in between the chain of groups, weighted with the present guess, is solved exactly and the
//! guess corrected by it (iterative aggregation; Koury, McAllister and Stewart 1984). All numbers stay non-negative and
//! nothing is subtracted, so small probabilities are as exact as large ones (Grassmann, Taksar and Heyman 1985).

/// Transitions between states `0..len`, by where they go to.
#[derive(Debug)]
pub(crate) struct Chain {
    /// Where in `incoming` the transitions into each state begin; one more at the end.
    begins: Vec<usize>,
    incoming: Vec<(u32, f64)>,
    /// The sum of rates out of each state.
    exit: Vec<f64>,
}

/// Every state's group; groups are numbered so that transitions lead only to near numbers.
pub(crate) struct Groups {
    pub(crate) of: Vec<u32>,
    pub(crate) count: usize,
}

const SWEEPS: usize = 8;
const MAX_ROUNDS: usize = 20_000;
const TOLERANCE: f64 = 1e-13;
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
        let reaches: Vec<_> = groupings.iter().map(|groups| self.reach(groups)).collect();
        for _ in 0..MAX_ROUNDS {
            for (groups, reach) in groupings.iter().zip(&reaches) {
                self.correct(&mut probabilities, groups, *reach);
                for _ in 0..SWEEPS {
                    self.sweep(&mut probabilities);
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
        let exact = band.stationary();
        for (state, probability) in probabilities.iter_mut().enumerate() {
            let group = groups.of[state] as usize;
            *probability = (*probability / weights[group] * exact[group]).max(FLOOR);
        }
    }

    /// How far apart the numbers of groups are between which a transition leads, at most.
    fn reach(&self, groups: &Groups) -> usize {
        let distance = |state: usize| {
            let group = groups.of[state];
            self.incoming_of(state)
                .iter()
                .map(move |&(from, _)| groups.of[from as usize].abs_diff(group))
        };
        (0..self.len()).flat_map(distance).max().unwrap_or(0) as usize
    }
}

/// A chain whose transitions lead at most `reach` states up or down.
struct Band {
    count: usize,
    reach: usize,
    rates: Vec<f64>,
}

impl Band {
    fn new(count: usize, reach: usize) -> Self {
        Self {
            count,
            reach,
            rates: vec![0.0; count * (2 * reach + 1)],
        }
    }

    fn at(&self, from: usize, to: usize) -> usize {
        from * (2 * self.reach + 1) + to + self.reach - from
    }

    fn add(&mut self, from: usize, to: usize, rate: f64) {
        let place = self.at(from, to);
        self.rates[place] += rate;
    }

    /// By elimination from the last state to the first, without subtractions.
    fn stationary(mut self) -> Vec<f64> {
        for last in (1..self.count).rev() {
            let near = last.saturating_sub(self.reach)..last;
            let down: f64 = near.clone().map(|to| self.rates[self.at(last, to)]).sum();
            for from in near.clone() {
                let up = self.at(from, last);
                self.rates[up] /= down;
                let share = self.rates[up];
                if share > 0.0 {
                    for to in near.clone() {
                        let through = share * self.rates[self.at(last, to)];
                        self.add(from, to, through);
                    }
                }
            }
        }
        let mut probabilities = vec![0.0; self.count];
        probabilities[0] = 1.0;
        for state in 1..self.count {
            let near = state.saturating_sub(self.reach)..state;
            probabilities[state] = near
                .map(|from| probabilities[from] * self.rates[self.at(from, state)])
                .sum();
            if probabilities[state] > HUGE {
                probabilities[..=state].iter_mut().for_each(|p| *p /= HUGE);
            }
        }
        let total: f64 = probabilities.iter().sum();
        probabilities.iter_mut().for_each(|p| *p /= total);
        probabilities
    }
}
