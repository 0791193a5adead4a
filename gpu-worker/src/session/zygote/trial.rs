//! Tries a zygote before it is used: one of its forks enters a sandbox, or confines itself, and runs the probe there.

use super::{
    Ground,
    parked::{ForkRequest, bytes, variables},
    process::{Zygote, ZygoteError},
};
use crate::{
    processes,
    sandbox::{
        Bubblewrap, Entrance, Holder, INSIDE, Landlock, Outermost, PROBE, Probe, Sandbox, guarded,
    },
};
use nix::{fcntl::OFlag, unistd::pipe2};
use serde_bytes::ByteBuf;
use std::{
    ffi::OsString,
    io,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
    path::Path,
    process::Stdio,
    time::Duration,
};
use tokio::{io::AsyncReadExt as _, net::unix::pipe::Receiver, process::Command};

const PATIENCE: Duration = Duration::from_secs(60);
const TRIED: &str = "print('tried', flush=True)";

pub(super) async fn run(
    ground: &Ground,
    python: &Path,
    zygote: &Zygote,
) -> Result<(), ZygoteError> {
    let Some(sandbox) = ground.sandbox.as_deref() else {
        let (printed, said) = fork(zygote, Trial::new(TRIED, &[])).await?;
        return match printed == "tried\n" {
            true => Ok(()),
            false => Err(ZygoteError::Unfit(said)),
        };
    };
    let probe = Probe::create(sandbox, &ground.config.runtime_folder)?;
    let trial = Trial::new(PROBE, &probe.arguments);
    let (printed, said) = match sandbox {
        Sandbox::Bubblewrap(bubblewrap) => {
            let command = probe.command(bubblewrap, python).await?;
            inside(zygote, bubblewrap, command, trial).await?
        }
        Sandbox::Landlock(landlock) => confined(zygote, landlock, python, trial).await?,
    };
    Ok(probe.judge(printed.as_bytes(), said.as_bytes())?)
}

async fn inside(
    zygote: &Zygote,
    bubblewrap: &Bubblewrap,
    mut command: Command,
    mut trial: Trial,
) -> Result<(String, String), ZygoteError> {
    let holder = Holder::start(&mut command)?;
    let mut outermost = Outermost::spawn(command.stderr(Stdio::null()))?;
    drop(command);
    let Entrance {
        process,
        namespaces,
        filter,
        ..
    } = holder.entrance(bubblewrap, &mut outermost).await?;
    trial.request.namespaces = namespaces;
    trial.request.filter = ByteBuf::from(filter);
    let (variable, inside) = INSIDE;
    trial
        .request
        .environment
        .push((bytes(variable), bytes(inside)));
    trial.files.push(process);
    fork(zygote, trial).await
}

async fn confined(
    zygote: &Zygote,
    landlock: &Landlock,
    python: &Path,
    mut trial: Trial,
) -> Result<(String, String), ZygoteError> {
    // This command is never started. It only collects the variables for the fork.
    let mut command = Command::new(python);
    command.env_clear();
    let confined = landlock.bare(&mut command, python).await?;
    let imposed = landlock.impose(&mut command, &confined, Path::new("/"))?;
    for file in imposed.descriptors {
        trial.request.descriptors.push(file.as_raw_fd());
        trial.files.push(file);
    }
    trial.request.environment.extend(variables(&command));
    let (watched, place, answered) = guarded(imposed.guard)?.into_parts();
    trial.request.watched = ByteBuf::from(watched);
    trial.files.push(place);
    let tried = fork(zygote, trial).await?;
    answered.required().await?;
    Ok(tried)
}

/// The request for a fork, and the descriptors that it gets besides its outputs.
struct Trial {
    request: ForkRequest,
    files: Vec<OwnedFd>,
}

impl Trial {
    fn new(program: &'static str, arguments: &[OsString]) -> Self {
        let mark = processes::new_mark(baton_protocol::NotebookId::random());
        Self {
            request: ForkRequest {
                program: Some(program),
                arguments: arguments.iter().map(bytes).collect(),
                environment: vec![(bytes(processes::MARK), bytes(mark))],
                folder: bytes("/"),
                descriptors: vec![1, 2],
                namespaces: 0,
                filter: ByteBuf::new(),
                watched: ByteBuf::new(),
            },
            files: Vec::new(),
        }
    }
}

/// Runs the trial in a fork. Returns its standard output and its error output.
async fn fork(zygote: &Zygote, trial: Trial) -> Result<(String, String), ZygoteError> {
    let (printed, its_printed) = pipe()?;
    let (said, its_said) = pipe()?;
    let parked = zygote.park(&[]).await?;
    let mut files = vec![its_printed.as_fd(), its_said.as_fd()];
    files.extend(trial.files.iter().map(OwnedFd::as_fd));
    parked.become_session(&trial.request, &files).await?;
    drop((its_printed, its_said, trial));
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
