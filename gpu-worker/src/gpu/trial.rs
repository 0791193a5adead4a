//! Whether turns work with this machine's GPU and its driver, found out before a session depends on it.
//!
//! Two programs, started like sessions, have more memory together than they may have at a time. So the numbers of each
//! move to the host and back while the other computes, and have to be right afterwards.
//!
//! **Invariant:** it ends in time, and its programs with it.

mod program;
mod sys;

use std::{io, path::Path, process::Stdio, sync::Arc, time::Duration};

use baton_arbiter::{Memory, Settings, UserId};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::timeout,
};

pub use self::program::run as run_program;
use super::{
    Cell,
    shared::{Membership, OpenError, SharedGpu},
};

/// The hidden command of `baton` that is one of the two programs.
pub const COMMAND: &str = "gpu-trial";

/// Of each program.
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
    #[error("{0}")]
    Wrong(String),
    #[error("a program's memory stayed on the GPU when another needed the room")]
    Stayed,
    #[error("it did not end within {} s", PATIENCE.as_secs())]
    Endless,
}

/// `baton` is the program whose `COMMAND` this starts.
pub(super) async fn run(baton: &Path, runtime_folder: &Path) -> Result<(), TrialError> {
    let trial = take_turns(baton, runtime_folder);
    timeout(PATIENCE, trial)
        .await
        .unwrap_or(Err(TrialError::Endless))
}

async fn take_turns(baton: &Path, runtime_folder: &Path) -> Result<(), TrialError> {
    let each = MEMORY_BYTES as u64;
    let settings = move |_| {
        Settings::new(Memory {
            usable_bytes: each + each / 2,
            reserve_bytes: 0,
            host_bytes: 4 * each,
        })
    };
    let gpu = SharedGpu::listen(runtime_folder, None, settings, None)?;
    let mut programs = [
        Program::start(baton, &gpu, 1)?,
        Program::start(baton, &gpu, 2)?,
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
    Ok(())
}

struct Program {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    membership: Membership,
}

impl Program {
    fn start(baton: &Path, gpu: &Arc<SharedGpu>, user: UserId) -> Result<Self, TrialError> {
        let folder = gpu.folder().join(format!("program-{user}"));
        std::fs::create_dir(&folder)?;
        let mut command = Command::new(baton);
        let membership = gpu.admit(user, &mut command, &folder)?;
        let mut process = command
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        };
        Ok(Self {
            process,
            input,
            output: BufReader::new(output).lines(),
            membership,
        })
    }

    /// As a cell of a session would.
    async fn compute(&mut self) -> Result<(), TrialError> {
        self.membership.cell(Cell::Expected);
        self.membership.cell(Cell::Started);
        let said = self.ask().await;
        self.membership.cell(Cell::Ended);
        match said? {
            Some(said) if said == program::RIGHT => Ok(()),
            Some(said) => Err(TrialError::Wrong(said)),
            None => Err(TrialError::Wrong(self.last_words().await)),
        }
    }

    /// `None` where it has ended.
    async fn ask(&mut self) -> io::Result<Option<String>> {
        match self.input.write_all(b"compute\n").await {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(None),
            Err(error) => Err(error),
            Ok(()) => self.output.next_line().await,
        }
    }

    async fn last_words(&mut self) -> String {
        let mut said = String::new();
        if let Some(errors) = &mut self.process.stderr {
            let _ = errors.read_to_string(&mut said).await;
        }
        match self.process.wait().await {
            Ok(status) => format!("a program ended with {status} {}", said.trim()),
            Err(error) => error.to_string(),
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
        run(&baton, folder.path()).await.unwrap_err().to_string()
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
