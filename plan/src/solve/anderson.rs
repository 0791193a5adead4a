//! Accelerates rounds that converge to a limit slowly (Anderson 1965).
//!
//! It takes the mixture of the last few rounds that would have changed least if rounds were linear, which they
//! are near the limit. Errors are relative to each number, so that rare states count too.

use std::{array, collections::VecDeque};

/// The number of rounds to look back at.
const DEPTH: usize = 6;
/// The largest factor by which a number may change.
const MOST: f64 = 8.0;
/// Regularization: keeps rounding errors from dominating when rounds hardly differ.
const BLUR: f64 = 1e-13;

#[derive(Default)]
pub(super) struct Anderson {
    last: Option<Round>,
    /// Differences between consecutive rounds, newest first.
    differences: VecDeque<Round>,
}

struct Round {
    result: Vec<f64>,
    change: Vec<f64>,
}

impl Anderson {
    /// The next guess, after a round that led from `from` to `result`. Numbers below `rare` stay as they are.
    pub(super) fn next(&mut self, from: &[f64], result: Vec<f64>, rare: f64) -> Vec<f64> {
        let change = difference(&result, from);
        if let Some(last) = &self.last {
            self.differences.truncate(DEPTH - 1);
            self.differences.push_front(Round {
                result: difference(&result, &last.result),
                change: difference(&change, &last.change),
            });
        }
        let shares = self.shares(&change, &result, rare);
        let mut next = result.clone();
        for (share, round) in shares.into_iter().zip(&self.differences) {
            for (next, result) in next.iter_mut().zip(&round.result) {
                *next -= share * result;
            }
        }
        for (next, result) in next.iter_mut().zip(&result) {
            *next = if *result < rare {
                *result
            } else {
                next.clamp(result / MOST, result * MOST)
            };
        }
        self.last = Some(Round { result, change });
        next
    }

    /// How much of each difference to subtract, by least squares of what remains.
    fn shares(&self, change: &[f64], result: &[f64], rare: f64) -> [f64; DEPTH] {
        let count = self.differences.len();
        let mut products = [[0.0; DEPTH]; DEPTH];
        let mut goals = [0.0; DEPTH];
        for (state, result) in result.iter().enumerate() {
            if *result < rare {
                continue;
            }
            let mut changes = [0.0; DEPTH];
            for (change, round) in changes.iter_mut().zip(&self.differences) {
                *change = round.change[state];
            }
            for row in 0..count {
                let weighted = changes[row] / result;
                goals[row] += weighted * change[state];
                for column in 0..=row {
                    products[row][column] += weighted * changes[column];
                }
            }
        }
        solve(products, goals, count)
    }
}

/// The solution of `count` normal equations, given the lower half of their symmetric matrix (Cholesky).
fn solve(mut lower: [[f64; DEPTH]; DEPTH], mut goals: [f64; DEPTH], count: usize) -> [f64; DEPTH] {
    for row in 0..count {
        for column in 0..=row {
            let known: f64 = (0..column).map(|k| lower[row][k] * lower[column][k]).sum();
            let rest = lower[row][column] - known;
            lower[row][column] = if row > column {
                rest / lower[column][column]
            } else {
                rest.max(BLUR * lower[row][row]).sqrt()
            };
        }
        if lower[row][row] == 0.0 {
            return [0.0; DEPTH];
        }
        let known: f64 = (0..row).map(|k| lower[row][k] * goals[k]).sum();
        goals[row] = (goals[row] - known) / lower[row][row];
    }
    for row in (0..count).rev() {
        let known: f64 = (row + 1..count).map(|k| lower[k][row] * goals[k]).sum();
        goals[row] = (goals[row] - known) / lower[row][row];
    }
    array::from_fn(|row| if row < count { goals[row] } else { 0.0 })
}

fn difference(left: &[f64], right: &[f64]) -> Vec<f64> {
    left.iter()
        .zip(right)
        .map(|(left, right)| left - right)
        .collect()
}
