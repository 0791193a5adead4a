//! The program that asks the driver: a line says what is to be done with which processes, a line answers.

use std::{io, time::Duration};

use super::super::{
    driver::{Driver, DriverError, OUT_OF_MEMORY, State},
    program::answer_lines,
};

pub(super) const SLEEP: &str = "sleep";
pub(super) const WAKE: &str = "wake";
/// What it answers when all of it was done.
pub(super) const DONE: &str = "done";
/// What it answers when there is no room on the GPU.
pub(super) const FULL: &str = "full";

/// Until what a process has submitted is done. Sessions sleep when they have nothing to do.
const DRAIN: Duration = Duration::from_secs(5);

/// Until its input ends.
///
/// # Errors
/// Where its input or output breaks. What the driver does not do is said.
pub fn run() -> io::Result<()> {
    let mut place = None;
    answer_lines(|line| match answer(&mut place, line) {
        Ok(()) => DONE.to_owned(),
        Err(DriverError::Refused {
            code: OUT_OF_MEMORY,
            ..
        }) => FULL.to_owned(),
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
    // Another try may have come so far.
    if driver.state_of(process)? == State::Checkpointed {
        driver.restore(process)?;
    }
    match driver.state_of(process)? {
        State::Locked => driver.unlock(process),
        _ => Ok(()),
    }
}
