//! The meaning of command-line arguments.

mod machines;

use crate::settings::Value;
use baton_plan::simulation::Times;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

pub(crate) use machines::{GroupArgument, KindArgument, MachinesArgument, PoolArgument};

/// Which users get the kernel, and the Python in which it runs; without one, the Python beside this program.
pub(crate) enum Place {
    User {
        python: Option<PathBuf>,
    },
    System {
        python: Option<PathBuf>,
    },
    SysPrefix {
        python: Option<PathBuf>,
    },
    Prefix {
        prefix: PathBuf,
        python: Option<PathBuf>,
    },
}

/// Everything except a notebook counts as a script.
pub(crate) fn is_notebook(program: &Path) -> bool {
    program
        .extension()
        .is_some_and(|extension| extension == "ipynb")
}

/// The smallest and largest number of machines in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PoolSize {
    pub(crate) min: u32,
    pub(crate) max: u32,
}

impl Value for PoolSize {
    const EXPECTED: &'static str = "two numbers such as 0-4";

    fn parse(text: &str) -> Option<Self> {
        let (min, max) = text.split_once('-')?;
        let (min, max) = (min.parse().ok()?, max.parse().ok()?);
        (min <= max && max > 0).then_some(Self { min, max })
    }
}

/// The GPU times of cells, in parts, each with a weight and a median.
#[derive(Debug, Clone)]
pub(crate) struct Cells(pub(crate) Times);

impl Value for Cells {
    const EXPECTED: &'static str =
        "parts and medians such as 88%:700ms,12%:30s, with parts that add up to 100 %";

    fn parse(text: &str) -> Option<Self> {
        let part = |part: &str| {
            let (weight, median) = part.trim().split_once(':')?;
            let weight: f64 = weight.trim().strip_suffix('%')?.trim().parse().ok()?;
            let median = Duration::parse(median.trim())?.as_secs_f64();
            (weight > 0.0 && weight.is_finite() && median > 0.0).then_some((
                weight,
                Times::LogNormal {
                    median,
                    spread: SPREAD,
                },
            ))
        };
        let parts: Vec<_> = text.split(',').map(part).collect::<Option<_>>()?;
        let all: f64 = parts.iter().map(|(weight, _)| weight).sum();
        ((all - 100.0).abs() < ROUNDING).then_some(Self(Times::Mix(parts)))
    }
}

/// The weights of all parts may differ from 100 per cent by this much, because they were rounded.
const ROUNDING: f64 = 0.5;

/// Two thirds of a part's cells take between half and twice its median.
const SPREAD: f64 = 0.7;

#[cfg(test)]
mod tests {
    use super::{Cells, Value};

    #[test]
    fn cells_are_parts_and_medians() {
        let mean = |text: &str| Cells::parse(text).map(|cells| cells.0.mean());
        let one = mean("100%:1s").expect("one part");
        assert!((one - 1.278).abs() < 0.001);
        assert!((mean("50%:1s, 50%: 3s").expect("two parts") - 2.0 * one).abs() < 1e-9);
        for bad in [
            "",
            "1s",
            "50:1s",
            "0%:1s",
            "100%:soon",
            "100%:1s,",
            "80%:1s",
        ] {
            assert!(mean(bad).is_none(), "{bad}");
        }
    }
}
