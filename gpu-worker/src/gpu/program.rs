//! A program of Baton that uses CUDA for a worker, because the worker itself must not. The two communicate in
//! lines.

use nix::unistd::Pid;
use std::{
    io::{self, BufRead as _, Write as _},
    process::Stdio,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// The process ends when this is dropped.
#[derive(Debug)]
pub(super) struct Program {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

/// What is wrong with the program, or what it reports as wrong.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("a program ended with {0}")]
    Ended(String),
    #[error("{0}")]
    Wrong(String),
}

impl Program {
    pub(super) fn start(mut command: Command) -> io::Result<Self> {
        let mut process = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(input), Some(output)) = (process.stdin.take(), process.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok(Self {
            process,
            input,
            output: BufReader::new(output).lines(),
        })
    }

    /// `None` once its end has been noticed.
    pub(super) fn pid(&self) -> Option<Pid> {
        let pid = self.process.id()?;
        Some(Pid::from_raw(pid.cast_signed()))
    }

    /// Sends a line and returns the line that answers it.
    pub(super) async fn ask(&mut self, question: &str) -> Result<String, ProgramError> {
        let line = format!("{question}\n");
        let answer = match self.input.write_all(line.as_bytes()).await {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => None,
            Err(error) => return Err(error.into()),
            Ok(()) => self.output.next_line().await?,
        };
        match answer {
            Some(answer) => Ok(answer),
            None => Err(ProgramError::Ended(self.last_words().await?)),
        }
    }

    async fn last_words(&mut self) -> io::Result<String> {
        let mut said = String::new();
        if let Some(errors) = &mut self.process.stderr {
            errors.read_to_string(&mut said).await?;
        }
        let status = self.process.wait().await?;
        Ok(format!("{status} {}", said.trim()))
    }
}

/// The loop of such a program: answers each line with a line, until its input ends.
pub(super) fn answer_lines(mut answer: impl FnMut(&str) -> String) -> io::Result<()> {
    for line in io::stdin().lock().lines() {
        let answer = answer(&line?).replace('\n', " ");
        let mut output = io::stdout().lock();
        writeln!(output, "{answer}")?;
        output.flush()?;
    }
    Ok(())
}
