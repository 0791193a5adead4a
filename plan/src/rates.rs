//! Rates of events, per second.

use crate::simulation::{Life, Times};

/// Rates of one person's state changes, per second. Each is the reciprocal of a mean time in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Asleep to editing.
    pub arrival: f64,
    /// Editing to asleep; zero for people who stay.
    pub departure: f64,
    /// Editing to ready.
    pub submission: f64,
    /// Ready to editing, while holding a GPU.
    pub execution: f64,
    /// A GPU's hand-over, from a holder who is not ready to the first person in the queue.
    pub hand_over: f64,
}

#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BadRate {
    #[error("The rate of {what} is {rate} per second; it must be more than zero and finite")]
    NotPositive { what: &'static str, rate: f64 },
    #[error(
        "The rate of departures is {rate} per second; it must be zero (nobody leaves) or more, and finite"
    )]
    Departure { rate: f64 },
}

impl Rates {
    /// Defaults: two minutes of editing between cells of thirty seconds.
    pub const USUAL: Self = Self {
        arrival: 1.0 / 3600.0,
        departure: 0.0,
        submission: 1.0 / 120.0,
        execution: 1.0 / 30.0,
        hand_over: 2.0,
    };

    /// # Errors
    /// If a rate is negative, infinite, not a number, or zero where that would stop the model.
    pub fn checked(self) -> Result<Self, BadRate> {
        let positive = [
            ("arrivals", self.arrival),
            ("submissions", self.submission),
            ("executions", self.execution),
            ("hand-overs", self.hand_over),
        ];
        for (what, rate) in positive {
            if !(rate > 0.0 && rate.is_finite()) {
                return Err(BadRate::NotPositive { what, rate });
            }
        }
        if !(self.departure >= 0.0 && self.departure.is_finite()) {
            return Err(BadRate::Departure {
                rate: self.departure,
            });
        }
        Ok(self)
    }
}

/// For a simulation: exponential times at these rates.
impl Rates {
    #[must_use]
    pub fn life(&self) -> Life {
        let mean = |rate: f64| {
            if rate > 0.0 {
                Times::Exponential(1.0 / rate)
            } else {
                Times::Never
            }
        };
        Life {
            edit: mean(self.submission),
            run: mean(self.execution),
            hand_over: mean(self.hand_over),
            stay: mean(self.departure),
            away: mean(self.arrival),
        }
    }
}
