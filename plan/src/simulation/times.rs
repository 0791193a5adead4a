//! Durations, as distributions of seconds.

use rand::{RngExt, rngs::Xoshiro256PlusPlus};
use rand_distr::{Distribution, Exp1, LogNormal};

#[derive(Debug, Clone)]
pub enum Times {
    Never,
    Fixed(f64),
    /// With this mean.
    Exponential(f64),
    /// Half are shorter than the median; `spread` is the standard deviation of the logarithm.
    LogNormal {
        median: f64,
        spread: f64,
    },
    /// Observed times, all equally likely. Not empty.
    Measured(Vec<f64>),
    /// One of these, chosen by weight. Not empty.
    Mix(Vec<(f64, Times)>),
}

impl Times {
    #[must_use]
    pub fn mean(&self) -> f64 {
        match self {
            Self::Never => f64::INFINITY,
            Self::Fixed(mean) | Self::Exponential(mean) => *mean,
            Self::LogNormal { median, spread } => median * (spread * spread / 2.0).exp(),
            Self::Measured(times) => times.iter().sum::<f64>() / times.len() as f64,
            Self::Mix(parts) => {
                let weights: f64 = parts.iter().map(|(weight, _)| weight).sum();
                let sum: f64 = parts
                    .iter()
                    .map(|(weight, part)| weight * part.mean())
                    .sum();
                sum / weights
            }
        }
    }

    pub(crate) fn draw(&self, random: &mut Xoshiro256PlusPlus) -> f64 {
        match self {
            Self::Never => f64::INFINITY,
            Self::Fixed(time) => *time,
            Self::Exponential(mean) => {
                let one: f64 = Exp1.sample(random);
                one * mean
            }
            Self::LogNormal { median, spread } => LogNormal::new(median.ln(), *spread)
                .expect("a spread is a number")
                .sample(random),
            Self::Measured(times) => times[random.random_range(0..times.len())],
            Self::Mix(parts) => {
                let weights: f64 = parts.iter().map(|(weight, _)| weight).sum();
                let mut left = random.random_range(0.0..weights);
                for (weight, part) in parts {
                    if left < *weight {
                        return part.draw(random);
                    }
                    left -= weight;
                }
                parts[parts.len() - 1].1.draw(random)
            }
        }
    }
}
