//! The program that asks the driver: a line says what is to be done with which processes, a line answers.

use std::{
    collections::BTreeSet,
    io::{self, BufRead, Write},
    time::Duration,
};

use super::super::driver::{Driver, DriverError, OUT_OF_MEMORY};

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
    for line in io::stdin().lock().lines() {
        let line = line?;
        let answer = match obey(&mut place, &line) {
            Ok(()) => DONE.to_owned(),
            Err(DriverError::Refused {
                code: OUT_OF_MEMORY,
                ..
            }) => FULL.to_owned(),
            Err(error) => error.to_string(),
        };
        let mut output = io::stdout().lock();
        writeln!(output, "{}", answer.replace('\n', " "))?;
        output.flush()?;
    }
    Ok(())
}

struct Watch {
    driver: Driver,
    /// Those that are off the GPU.
    asleep: BTreeSet<i32>,
}

fn obey(place: &mut Option<Watch>, line: &str) -> Result<(), DriverError> {
    let watch = match place {
        Some(watch) => watch,
        None => place.insert(Watch {
            driver: Driver::open()?,
            asleep: BTreeSet::new(),
        }),
    };
    let mut words = line.split_whitespace();
    let is_sleep = words.next() == Some(SLEEP);
    let processes: Vec<i32> = words.filter_map(|word| word.parse().ok()).collect();
    match is_sleep {
        true => watch.sleep(&processes),
        false => watch.wake(&processes),
    }
}

impl Watch {
    /// All of them are locked before the first leaves, because they may share memory.
    fn sleep(&mut self, processes: &[i32]) -> Result<(), DriverError> {
        for process in processes {
            self.driver.lock(*process, DRAIN)?;
        }
        for process in processes {
            self.driver.checkpoint(*process)?;
            self.asleep.insert(*process);
        }
        Ok(())
    }

    fn wake(&mut self, processes: &[i32]) -> Result<(), DriverError> {
        for process in processes {
            // Another try, for which there was no room the last time.
            if self.asleep.contains(process) {
                self.driver.restore(*process)?;
                self.asleep.remove(process);
            }
        }
        (processes.iter()).try_for_each(|process| self.driver.unlock(*process))
    }
}
