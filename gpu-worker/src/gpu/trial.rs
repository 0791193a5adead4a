//! Finds out whether time-sharing works with this machine's GPU and its driver, before a session depends on it.
//!
//! Two programs, started like sessions, have more memory together than they may have at a time. So the numbers of
//! each move to the host and back while the other computes, and must be correct afterwards.
//!
//! **Invariant:** it ends within a time limit, and its programs with it.

mod program;

use super::{
    Cell,
    program::{Program, ProgramError},
    shared::{Membership, OpenError, SharedGpu},
    sleep::Sleeper,
};
use baton_scheduling::arbiter::{Memory, Settings, UserId};
use nix::unistd::Pid;
use std::{
    io,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::{process::Command, time::timeout};

pub use self::program::run as run_program;

/// The hidden command of `baton` that runs one of the two programs.
pub const COMMAND: &str = "gpu-trial";

/// Memory of each program.
const MEMORY_BYTES: usize = 8 << 20;

/// Passes of each program: the first fills its memory, the others need it back.
const PASSES: usize = 3;

/// Long enough for a driver that has to start first.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug, thiserror::Error)]
pub(super) enum TrialError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Start(#[from] io::Error),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("a program's memory stayed on the GPU although another program needed the room")]
    Stayed,
    #[error("it did not end within {} s", PATIENCE.as_secs())]
    Endless,
}

/// What a trial found out about a GPU.
pub(super) struct Found {
    /// If the driver can take contexts off the GPU.
    pub(super) sleeper: Option<Sleeper>,
    /// The GPU's memory, as the programs report it.
    pub(super) memory_bytes: Option<u64>,
}

/// Starts `baton` with `COMMAND`, on the GPU called `name` (`None`: the only one).
pub(super) async fn run(
    baton: &Path,
    runtime_folder: &Path,
    name: Option<&str>,
) -> Result<Found, TrialError> {
    let trial = take_turns(baton, runtime_folder, name.map(str::to_owned));
    timeout(PATIENCE, trial)
        .await
        .unwrap_or(Err(TrialError::Endless))
}

async fn take_turns(
    baton: &Path,
    runtime_folder: &Path,
    name: Option<String>,
) -> Result<Found, TrialError> {
    let each = MEMORY_BYTES as u64;
    let memory = Arc::<OnceLock<u64>>::default();
    let known = memory.clone();
    let settings = move |memory_bytes| {
        let _ = known.set(memory_bytes);
        Settings::new(Memory {
            usable_bytes: each + each / 2,
            reserve_bytes: 0,
            host_bytes: 4 * each,
        })
    };
    let gpu = SharedGpu::open(runtime_folder, None, settings, name, None)?;
    let mut programs = [
        Member::start(baton, &gpu, 1)?,
        Member::start(baton, &gpu, 2)?,
    ];
    for _ in 0..PASSES {
        for program in &mut programs {
            program.compute().await?;
        }
    }
    for program in &programs {
        if program.membership.usage().await.swaps == 0 {
            return Err(TrialError::Stayed);
        }
    }
    let sleeper = Sleeper::new(baton);
    let slept = sleep(&sleeper, &mut programs[0]).await;
    if let Err(error) = &slept {
        tracing::info!(
            "CUDA contexts stay on this machine's GPU while their sessions live: {error}"
        );
    }
    Ok(Found {
        sleeper: slept.is_ok().then_some(sleeper),
        memory_bytes: memory.get().copied(),
    })
}

/// The program's memory is on the host; its context leaves the GPU and returns.
async fn sleep(sleeper: &Sleeper, member: &mut Member) -> Result<(), TrialError> {
    let process = member.program.pid().unwrap_or(Pid::from_raw(0));
    sleeper.sleep(process).await?;
    sleeper.wake(process).await?;
    member.compute().await
}

/// A program that stands for a session with one process.
struct Member {
    program: Program,
    membership: Membership,
}

impl Member {
    fn start(baton: &Path, gpu: &Arc<SharedGpu>, user: UserId) -> Result<Self, TrialError> {
        let folder = gpu.folder().join(format!("program-{user}"));
        std::fs::create_dir(&folder)?;
        let mut command = Command::new(baton);
        command.arg(COMMAND);
        let membership = gpu.admit(user, &mut command, &folder)?;
        Ok(Self {
            program: Program::start(command)?,
            membership,
        })
    }

    /// Computes as a cell of a session would.
    async fn compute(&mut self) -> Result<(), TrialError> {
        self.membership.cell(Cell::Expected);
        self.membership.cell(Cell::Started);
        let computed = self.program.ask("compute").await;
        self.membership.cell(Cell::Ended);
        match computed? {
            said if said == program::RIGHT => Ok(()),
            said => Err(ProgramError::Wrong(said).into()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, path::PathBuf};

    use super::*;

    fn script(folder: &Path, text: &str) -> PathBuf {
        let path = folder.join("baton");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    async fn complaint(text: &str) -> String {
        let folder = tempfile::Builder::new()
            .prefix("w")
            .tempdir_in("/tmp")
            .unwrap();
        let baton = script(folder.path(), text);
        let found = run(&baton, folder.path(), None).await;
        found.err().unwrap().to_string()
    }

    #[tokio::test]
    async fn a_program_that_ends_or_complains_is_heard() {
        let ended = complaint("read line; echo 'no GPU here' >&2; exit 3").await;
        assert!(ended.contains("exit status: 3 no GPU here"), "{ended}");
        let wrong = complaint("read line; echo cuInit answered 100; read line").await;
        assert_eq!(wrong, "cuInit answered 100");
    }

    #[tokio::test]
    async fn memory_has_to_move() {
        let stayed = complaint("while read line; do echo right; done").await;
        assert!(stayed.contains("stayed on the GPU"), "{stayed}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_never_answers_is_ended() {
        let endless = complaint("exec sleep 600").await;
        assert!(endless.contains("did not end"), "{endless}");
    }
}
