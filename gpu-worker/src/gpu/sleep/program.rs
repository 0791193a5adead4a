//! The program that asks the driver: a line says what is to be done with which processes, a line answers.

use std::{
    io::{self, BufRead, Write},
    time::Duration,
};

use super::super::driver::{Driver, DriverError};

pub(super) const SLEEP: &str = "sleep";
pub(super) const WAKE: &str = "wake";
/// What it answers when all of it was done.
pub(super) const DONE: &str = "done";

/// Until what a process has submitted is done. Sessions sleep when they have nothing to do.
const DRAIN: Duration = Duration::from_secs(5);

/// Until its input ends.
///
/// # Errors
/// Where its input or output breaks. What the driver does not do is said.
pub fn run() -> io::Result<()> {
    let mut driver = None;
    for line in io::stdin().lock().lines() {
        let line = line?;
        let answer = match obey(&mut driver, &line) {
            Ok(()) => DONE.to_owned(),
            Err(error) => error.to_string(),
        };
        let mut output = io::stdout().lock();
        writeln!(output, "{}", answer.replace('\n', " "))?;
        output.flush()?;
    }
    Ok(())
}

fn obey(driver: &mut Option<Driver>, line: &str) -> Result<(), DriverError> {
    let driver = match driver {
        Some(driver) => driver,
        None => driver.insert(Driver::open()?),
    };
    let mut words = line.split_whitespace();
    let is_sleep = words.next() == Some(SLEEP);
    // All of them are locked before the first leaves, because they may share memory.
    let processes: Vec<i32> = words.filter_map(|word| word.parse().ok()).collect();
    let each = |step: &dyn Fn(i32) -> Result<(), DriverError>| {
        processes.iter().try_for_each(|process| step(*process))
    };
    if is_sleep {
        each(&|process| driver.lock(process, DRAIN))?;
        each(&|process| driver.checkpoint(process))
    } else {
        each(&|process| driver.restore(process))?;
        each(&|process| driver.unlock(process))
    }
}
