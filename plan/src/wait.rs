//! The distribution of waits, not only their mean.
//!
//! In: how often a submission finds the GPUs in which state, with how many people ahead
//! ([`Queueing`]), and what the holders do meanwhile. Out: [`Waits`].
//!
//! People further back do not change the waits of those ahead. So a wait is a walk over two numbers, the state
//! of the GPUs and the number of people ahead. It ends once one more GPU has been handed over than there are
//! people ahead. Its Laplace transform follows step by step from a small linear system ([`factored`]). The
//! distribution follows from that numerically (Abate and Whitt 1995, "Euler"), to about ten digits.

mod factored;

use factored::Factored;
use num_complex::Complex64;

/// The weights of submissions by what they find. They need not add up to one.
pub(crate) struct Queueing {
    at_once: f64,
    /// `queued[before][holder]`.
    queued: Vec<Vec<f64>>,
    holders: usize,
}

impl Queueing {
    pub(crate) fn new(holders: usize, most_before: usize) -> Self {
        Self {
            at_once: 0.0,
            queued: vec![vec![0.0; holders]; most_before + 1],
            holders,
        }
    }

    pub(crate) fn at_once(&mut self, weight: f64) {
        self.at_once += weight;
    }

    pub(crate) fn queued(&mut self, holder: usize, before: usize, weight: f64) {
        self.queued[before][holder] += weight;
    }
}

/// One transition of the holders while a person waits.
#[derive(Debug, Clone, Copy)]
struct Step {
    from: usize,
    to: usize,
    rate: f64,
    handed: bool,
}

/// The distribution of waits, in seconds.
#[derive(Debug)]
pub struct Waits {
    /// The share of submissions that do not wait at all.
    at_once: f64,
    /// `queued[before][holder]`, as shares of all submissions, without those that are too rare to matter.
    queued: Vec<Vec<f64>>,
    holders: usize,
    steps: Vec<Step>,
    exits: Vec<f64>,
}

/// Queues so long that at most this share of submissions finds them are ignored.
const NEGLIGIBLE: f64 = 1e-12;

/// Abate and Whitt's parameters: the discretisation error is `exp(-A)`.
const A: f64 = 25.0;
const EULER_TERMS: usize = 13;

/// The relative precision of a percentile; the distribution itself is not more exact.
const PRECISION: f64 = 1e-9;

/// The search for a percentile first grows in steps of this factor.
const GROWTH: f64 = 8.0;

impl Waits {
    /// `each(holder, go)` calls `go(next, rate, handed)` for each possible transition.
    pub(crate) fn new(
        arrivals: Queueing,
        each: impl Fn(usize, &mut dyn FnMut(usize, f64, bool)),
    ) -> Self {
        let Queueing {
            at_once,
            mut queued,
            holders,
        } = arrivals;
        let total: f64 = at_once + queued.iter().flatten().sum::<f64>();
        queued
            .iter_mut()
            .flatten()
            .for_each(|weight| *weight /= total);
        let mut rare = 0.0;
        while let Some(last) = queued.last() {
            rare += last.iter().sum::<f64>();
            if rare > NEGLIGIBLE {
                break;
            }
            queued.pop();
        }
        let mut steps = Vec::new();
        let mut exits = vec![0.0; holders];
        for (from, exit) in exits.iter_mut().enumerate() {
            each(from, &mut |to, rate, handed| {
                steps.push(Step {
                    from,
                    to,
                    rate,
                    handed,
                });
                *exit += rate;
            });
        }
        Self {
            at_once: at_once / total,
            queued,
            holders,
            steps,
            exits,
        }
    }

    /// The share of submissions that run without waiting.
    #[must_use]
    pub fn none(&self) -> f64 {
        self.at_once
    }

    /// The share of submissions that wait longer than `seconds`, to about ten digits.
    #[must_use]
    pub fn longer_than(&self, seconds: f64) -> f64 {
        let waiting = 1.0 - self.at_once;
        if seconds <= 0.0 || waiting <= 0.0 {
            return waiting.max(0.0);
        }
        let term = |k: usize| {
            let theta = Complex64::new(A, 2.0 * std::f64::consts::PI * k as f64) / (2.0 * seconds);
            let tail = (waiting - self.transform(theta)) / theta;
            if k.is_multiple_of(2) {
                tail.re
            } else {
                -tail.re
            }
        };
        let plain_terms = self.plain_terms();
        let mut sum = 0.5 * term(0) + (1..=plain_terms).map(term).sum::<f64>();
        let mut weight = 0.5_f64.powi(EULER_TERMS as i32);
        let mut averaged = weight * sum;
        for k in 1..=EULER_TERMS {
            sum += term(plain_terms + k);
            weight *= (EULER_TERMS + 1 - k) as f64 / k as f64;
            averaged += weight * sum;
        }
        ((A / 2.0).exp() / seconds * averaged).clamp(0.0, waiting)
    }

    /// Behind a long queue the wait is nearly certain: its distribution is steep and needs more terms.
    fn plain_terms(&self) -> usize {
        40 + 5 * self.queued.len().isqrt()
    }

    /// The wait in seconds that a share `part` (below one) of submissions does not exceed.
    #[must_use]
    pub fn percentile(&self, part: f64) -> f64 {
        let tail = 1.0 - part;
        if self.longer_than(0.0) <= tail {
            return 0.0;
        }
        // On a logarithmic scale, a tail is nearly straight.
        let beyond = |seconds| (self.longer_than(seconds) / tail + NEGLIGIBLE).ln();
        let (mut low, mut high) = (0.0, 1.0 / self.exits.iter().copied().fold(0.0, f64::max));
        let (mut above, mut below) = (beyond(low), beyond(high));
        while below > 0.0 {
            (low, above) = (high, below);
            high *= GROWTH;
            below = beyond(high);
        }
        // False position, moved slightly towards the middle so that both ends converge. Never
        // slower than bisection (Oliveira and Takahashi 2020, "ITP").
        let first = high - low;
        let mut allowed = first;
        while high - low > PRECISION * high {
            let (width, middle) = (high - low, 0.5 * (low + high));
            let straight = low + width * above / (above - below);
            let little = 0.2 * width * width / first;
            let towards = (middle - straight).clamp(-little, little);
            let slack = (allowed - 0.5 * width).max(0.0);
            let between = (straight + towards).clamp(middle - slack, middle + slack);
            allowed *= 0.5;
            let value = beyond(between);
            if value > 0.0 {
                (low, above) = (between, value);
            } else {
                (high, below) = (between, value);
            }
        }
        high
    }

    /// The Laplace transform of the density of waits above zero.
    fn transform(&self, theta: Complex64) -> Complex64 {
        let until_handed = self.until_handed(theta);
        let mut now = vec![Complex64::ONE; self.holders];
        let mut next = now.clone();
        let handed: Vec<_> = self.steps.iter().filter(|step| step.handed).collect();
        let mut sum = Complex64::ZERO;
        for weights in &self.queued {
            next.fill(Complex64::ZERO);
            for step in &handed {
                next[step.from] += now[step.to] * step.rate;
            }
            until_handed.solve(&mut next);
            std::mem::swap(&mut now, &mut next);
            sum += weights
                .iter()
                .zip(&now)
                .map(|(weight, value)| value * weight)
                .sum::<Complex64>();
        }
        sum
    }

    /// What the holders do until the next hand-over.
    fn until_handed(&self, theta: Complex64) -> Factored {
        let among = || self.steps.iter().filter(|step| !step.handed);
        let reach = among().map(|step| step.from.abs_diff(step.to)).max();
        let mut equations = Factored::nothing(self.holders, reach.unwrap_or(0));
        for (holder, exit) in self.exits.iter().enumerate() {
            equations.add(holder, holder, theta + exit);
        }
        for step in among() {
            equations.add(step.from, step.to, Complex64::from(-step.rate));
        }
        equations.eliminate();
        equations
    }
}
