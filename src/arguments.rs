//! The meaning of command-line arguments.

mod machines;

use crate::settings::Value;
use baton_plan::simulation::Times;
use clap::Args;
use std::{path::Path, str::FromStr, time::Duration};

pub(crate) use machines::{GroupArgument, KindArgument, MachinesArgument, PoolArgument};

/// Everything except a notebook counts as a script.
pub(crate) fn is_notebook(program: &Path) -> bool {
    program
        .extension()
        .is_some_and(|extension| extension == "ipynb")
}

/// Checks the end of a job's id.
///
/// # Errors
/// If it cannot be one; the message says what is expected.
fn last_digits(text: &str) -> Result<String, &'static str> {
    let is_digit = |one: char| one.is_ascii_hexdigit() || one == '-';
    match !text.is_empty() && text.chars().all(is_digit) {
        true => Ok(text.to_owned()),
        false => {
            Err("the last digits of a job are expected, such as 7f3a: `baton jobs` lists the jobs")
        }
    }
}

const LONGEST_NAME: usize = 100;

/// Checks the name of a person, a worker or a course, which tables and logs show on one line.
///
/// # Errors
/// If it cannot be one; the message says what is expected.
pub(crate) fn read_name(text: &str) -> Result<String, String> {
    let is_long = text.chars().count() > LONGEST_NAME;
    match text.trim().is_empty() || is_long || text.contains(char::is_control) {
        true => Err(format!(
            "a name is one line of 1 to {LONGEST_NAME} characters, without control characters"
        )),
        false => Ok(text.to_owned()),
    }
}

/// Checks a text that people read on one line.
///
/// # Errors
/// If it is missing or has several lines.
pub(crate) fn read_line(text: &str) -> Result<String, &'static str> {
    match text.trim().is_empty() || text.contains(char::is_control) {
        true => Err("one line of text is expected"),
        false => Ok(text.to_owned()),
    }
}

/// A job, as people name it.
#[derive(Args)]
pub(crate) struct JobArgument {
    /// The last digits of the job, as errors, pages and `baton jobs` show them
    #[arg(value_parser = last_digits)]
    pub(crate) job: String,
}

/// A time, or `none` to remove a limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit(pub(crate) Option<Duration>);

impl Limit {
    pub(crate) fn ms(self) -> Option<u64> {
        let whole = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.0.map(whole)
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self(None)),
            text => match Duration::from_text(text)? {
                Duration::ZERO => Err("a time above 0 is expected, or none".to_owned()),
                time => Ok(Self(Some(time))),
            },
        }
    }
}

/// When people work together, and how many: `Mon 17:00-18:30 350`.
#[derive(Debug, Clone)]
pub(crate) struct LessonArgument {
    pub(crate) when: String,
    pub(crate) people: u32,
}

impl FromStr for LessonArgument {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        let read = || {
            let (when, people) = text.trim().rsplit_once(' ')?;
            let (when, people) = (when.to_owned(), people.parse().ok()?);
            Some(Self { when, people })
        };
        read().ok_or("a time and a number of people are expected, such as \"Mon 17:00-18:30 350\"")
    }
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
