//! Solves small chains exactly, by elimination without subtractions (Grassmann, Taksar and Heyman 1985).

/// Weights are scaled down when one exceeds this during the solution.
const HUGE: f64 = 1e200;

/// A chain whose transitions lead at most `reach` states up or down, or out of the chain.
pub(super) struct Band {
    count: usize,
    reach: usize,
    rates: Vec<f64>,
    /// The rate out of the chain from each state.
    pub(super) out: Vec<f64>,
    /// The flow into each state from outside.
    pub(super) into: Vec<f64>,
}

impl Band {
    pub(super) fn new(count: usize, reach: usize) -> Self {
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

    pub(super) fn add(&mut self, from: usize, to: usize, rate: f64) {
        let place = self.at(from, to);
        self.rates[place] += rate;
    }

    /// Divides the rates from each state by its weight.
    pub(super) fn divide(&mut self, weights: &[f64]) {
        let rows = self.rates.chunks_mut(2 * self.reach + 1);
        for (row, weight) in rows.zip(weights) {
            row.iter_mut().for_each(|rate| *rate /= weight);
        }
    }

    /// Returns the weight of each state. If state 0 never leaves the chain, they add up to
    /// `weight`. Eliminates from the last state to the first, without subtractions.
    pub(super) fn solve(mut self, weight: f64) -> Vec<f64> {
        for last in (1..self.count).rev() {
            let near = last.saturating_sub(self.reach)..last;
            let inside: f64 = near.clone().map(|to| self.rates[self.at(last, to)]).sum();
            // If nothing leads back from this state, it is not reached either, because state 0 recurs.
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
        let is_closed = self.out[0] == 0.0;
        if is_closed {
            self.into.fill(0.0);
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
