//! Linear equations in which each unknown only meets near ones. They are eliminated once and solved many times.

use num_complex::Complex64;

/// The equations are diagonally dominant, so no pivoting is needed.
pub(super) struct Factored {
    count: usize,
    /// The largest distance between two unknowns of one equation.
    reach: usize,
    /// For each equation, `2 * reach + 1` numbers with the diagonal in the middle. After elimination: the
    /// factors of the equations above, the reciprocal of the diagonal, and what remains to the right of it.
    rows: Vec<Complex64>,
}

impl Factored {
    pub(super) fn nothing(count: usize, reach: usize) -> Self {
        Self {
            count,
            reach,
            rows: vec![Complex64::ZERO; count * (2 * reach + 1)],
        }
    }

    fn at(&self, row: usize, column: usize) -> usize {
        row * (2 * self.reach + 1) + column + self.reach - row
    }

    pub(super) fn add(&mut self, row: usize, column: usize, value: Complex64) {
        let place = self.at(row, column);
        self.rows[place] += value;
    }

    pub(super) fn eliminate(&mut self) {
        for pivot in 0..self.count {
            let diagonal = self.at(pivot, pivot);
            self.rows[diagonal] = self.rows[diagonal].inv();
            let end = (pivot + self.reach + 1).min(self.count);
            let right = end - pivot - 1;
            for row in pivot + 1..end {
                let below = self.at(row, pivot);
                let (upper, lower) = self.rows.split_at_mut(below);
                let factor = lower[0] * upper[diagonal];
                if factor != Complex64::ZERO {
                    lower[0] = factor;
                    let pairs = lower[1..=right].iter_mut().zip(&upper[diagonal + 1..]);
                    pairs.for_each(|(value, above)| *value -= factor * above);
                }
            }
        }
    }

    /// Replaces the right-hand sides with the unknowns.
    pub(super) fn solve(&self, values: &mut [Complex64]) {
        for row in 1..self.count {
            let first = row.saturating_sub(self.reach);
            let factors = &self.rows[self.at(row, first)..self.at(row, row)];
            values[row] -= dot(factors, &values[first..row]);
        }
        for row in (0..self.count).rev() {
            let end = (row + self.reach + 1).min(self.count);
            let diagonal = self.at(row, row);
            let known = dot(
                &self.rows[diagonal + 1..][..end - row - 1],
                &values[row + 1..end],
            );
            values[row] = (values[row] - known) * self.rows[diagonal];
        }
    }
}

fn dot(left: &[Complex64], right: &[Complex64]) -> Complex64 {
    left.iter().zip(right).map(|(a, b)| a * b).sum()
}
