//! Sessions that sleep: the driver takes everything that their process has off the GPU, including its context, and
//! later returns it.
//!
//! In: a process. Out: whether that was done. A separate program asks the driver, because the worker does not use
//! CUDA. The program keeps running, because the driver takes seconds to get ready for it.
//!
//! **Invariant:** after an error the process can no longer be used, and must be ended.

mod program;

use super::program::{Program, ProgramError};
use nix::unistd::Pid;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{process::Command, sync::Mutex, time::timeout};

pub use self::program::run as run_program;

/// The hidden command of `baton` that runs this program.
pub const COMMAND: &str = "gpu-sleep";

/// Includes the time for earlier questions. A process has little on the GPU, because its memory has moved before.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct Sleeper {
    baton: PathBuf,
    program: Mutex<Option<Program>>,
}

impl Sleeper {
    pub(super) fn new(baton: &Path) -> Self {
        Self {
            baton: baton.to_owned(),
            program: Mutex::default(),
        }
    }

    /// Its calls to the driver wait until it is woken.
    pub(super) async fn sleep(&self, process: Pid) -> Result<(), ProgramError> {
        self.ask(program::SLEEP, process).await
    }

    /// There must be room: a process whose return fails cannot return later, whatever has become free by then. To be
    /// repeated if an earlier call was dropped before its answer.
    pub(super) async fn wake(&self, process: Pid) -> Result<(), ProgramError> {
        self.ask(program::WAKE, process).await
    }

    async fn ask(&self, verb: &str, process: Pid) -> Result<(), ProgramError> {
        let late = |_| {
            ProgramError::Wrong(format!(
                "the driver took longer than {} s",
                PATIENCE.as_secs()
            ))
        };
        timeout(PATIENCE, self.converse(&format!("{verb} {process}")))
            .await
            .map_err(late)?
    }

    async fn converse(&self, question: &str) -> Result<(), ProgramError> {
        let mut place = self.program.lock().await;
        // A program that failed, or whose answer was not awaited, is not used again.
        let mut program = match place.take() {
            Some(program) => program,
            None => self.start()?,
        };
        match program.ask(question).await? {
            answer if answer == program::DONE => *place = Some(program),
            answer => return Err(ProgramError::Wrong(answer)),
        }
        Ok(())
    }

    fn start(&self) -> std::io::Result<Program> {
        let mut command = Command::new(&self.baton);
        command.arg(COMMAND);
        Program::start(command)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn sleeper(folder: &Path, text: &str) -> Sleeper {
        let baton = folder.join("baton");
        std::fs::write(&baton, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&baton, PermissionsExt::from_mode(0o755)).unwrap();
        Sleeper::new(&baton)
    }

    #[tokio::test]
    async fn one_program_is_asked_until_it_fails() {
        let folder = tempfile::tempdir().unwrap();
        let started = folder.path().join("started");
        let text = format!(
            "echo >> {}; while read verb one; do case $one in 7) echo done;; *) echo cuInit answered 100;; esac; done",
            started.display()
        );
        let sleeper = sleeper(folder.path(), &text);
        let [good, bad] = [7, 8].map(Pid::from_raw);
        sleeper.sleep(good).await.unwrap();
        sleeper.wake(good).await.unwrap();
        let error = sleeper.wake(bad).await.unwrap_err().to_string();
        assert_eq!(error, "cuInit answered 100");
        sleeper.sleep(good).await.unwrap();
        assert_eq!(std::fs::read_to_string(started).unwrap().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_that_does_not_answer_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let sleeper = sleeper(folder.path(), "exec sleep 600");
        let error = sleeper.sleep(Pid::this()).await.unwrap_err();
        assert_eq!(error.to_string(), "the driver took longer than 20 s");
    }
}
