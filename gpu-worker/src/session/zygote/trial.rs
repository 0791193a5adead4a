//! A fork that no student has: it probes the walls that it has entered before a session does.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::unistd::pipe2;
use serde_bytes::ByteBuf;
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe::Receiver;

use super::Ground;
use super::process::{Order, Zygote, ZygoteError, bytes};
use crate::processes;
use crate::sandbox::{Entrance, Holder, Outermost, PROBE, Probe};

const PATIENCE: Duration = Duration::from_secs(60);
const TRIED: &str = "print('tried', flush=True)";

pub(super) async fn run(
    ground: &Ground,
    python: &Path,
    zygote: &Zygote,
) -> Result<(), ZygoteError> {
    let Some(sandbox) = &ground.sandbox else {
        let (printed, said) = fork(zygote, None, TRIED, Vec::new()).await?;
        return match printed == "tried\n" {
            true => Ok(()),
            false => Err(ZygoteError::Unfit(said)),
        };
    };
    let probe = Probe::create(sandbox, &ground.config.runtime_folder)?;
    let mut command = Probe::command(sandbox, python).await?;
    let holder = Holder::start(&mut command)?;
    let mut outermost = Outermost::spawn(command.stderr(Stdio::null()))?;
    drop(command);
    let entrance = holder.entrance(sandbox, &mut outermost).await?;
    let arguments = probe.arguments.iter().map(bytes).collect();
    let (printed, said) = fork(zygote, Some(&entrance), PROBE, arguments).await?;
    Ok(probe.judge(printed.as_bytes(), said.as_bytes())?)
}

/// Returns what the program prints to both of its outputs.
async fn fork(
    zygote: &Zygote,
    entrance: Option<&Entrance>,
    program: &'static str,
    arguments: Vec<ByteBuf>,
) -> Result<(String, String), ZygoteError> {
    let (printed, its_printed) = pipe()?;
    let (said, its_said) = pipe()?;
    let mark = processes::new_mark(baton_protocol::NotebookId::random());
    let order = Order {
        program: Some(program),
        arguments,
        environment: vec![(bytes(processes::MARK), bytes(mark))],
        folder: bytes("/"),
        descriptors: vec![1, 2],
        namespaces: entrance.map_or(0, |entrance| entrance.namespaces),
        filter: ByteBuf::from(entrance.map_or_else(Vec::new, |entrance| entrance.filter.clone())),
        watched: ByteBuf::new(),
    };
    let mut files = vec![its_printed.as_fd(), its_said.as_fd()];
    files.extend(entrance.map(|entrance| entrance.process.as_fd()));
    let parked = zygote.park(&[]).await?;
    parked.become_session(&order, &files).await?;
    drop((its_printed, its_said));
    let reading = async { tokio::join!(read(printed), read(said)) };
    let (printed, said) = tokio::time::timeout(PATIENCE, reading)
        .await
        .map_err(|_elapsed| ZygoteError::Unfit("a fork did not end in time".to_owned()))?;
    Ok((printed?, said?))
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe2(OFlag::O_CLOEXEC)?)
}

async fn read(pipe: OwnedFd) -> io::Result<String> {
    let mut text = String::new();
    Receiver::from_owned_fd(pipe)?
        .read_to_string(&mut text)
        .await?;
    Ok(text)
}
