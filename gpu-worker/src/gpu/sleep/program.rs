//! The program that asks the driver: each line names an action and a process, and is answered with a line.

use super::super::{
    program::answer_lines,
    sys::driver::{Driver, DriverError, State},
};
use std::{io, time::Duration};

pub(super) const SLEEP: &str = "sleep";
pub(super) const WAKE: &str = "wake";
/// The answer when everything was done.
pub(super) const DONE: &str = "done";

/// How long the work that a process has submitted may take. Sessions sleep when they have nothing to do.
const DRAIN: Duration = Duration::from_secs(5);

/// Runs until its input ends.
///
/// # Errors
/// If its input or output breaks. What the driver fails to do is reported as an answer.
pub fn run() -> io::Result<()> {
    let mut place = None;
    answer_lines(|line| match answer(&mut place, line) {
        Ok(()) => DONE.to_owned(),
        Err(error) => error.to_string(),
    })
}

fn answer(place: &mut Option<Driver>, line: &str) -> Result<(), DriverError> {
    let driver = match place {
        Some(driver) => driver,
        None => place.insert(Driver::open()?),
    };
    let (verb, process) = line.split_once(' ').unwrap_or_default();
    let process = process.parse().unwrap_or_default();
    if verb == SLEEP {
        driver.lock(process, DRAIN)?;
        return driver.checkpoint(process);
    }
    // An earlier attempt may already have restored it.
    if driver.state_of(process)? == State::Checkpointed {
        driver.restore(process)?;
    }
    match driver.state_of(process)? {
        State::Locked => driver.unlock(process),
        _ => Ok(()),
    }
}
