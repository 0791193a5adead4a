//! The process that a plain Python program starts in place of a proxy.
//!
//! Its standard input is one end of a socket, and the program holds the other end. In: the messages
//! that the shim of a notebook kernel sends. Out: the messages that such a shim receives and,
//! because there are no clients, each status line.
//!
//! **Invariant:** it ends with the program, no matter how that ends, and starts no process except
//! this user's broker.

use crate::{
    REMOTE_CELLS_END,
    config::{Audience, BrokerChoice, RemoteConfig, TrashConfig},
    shim,
};
use anyhow::Context as _;
use baton_chunks::scanner;
use baton_jupyter_wire::{
    folder::PrivateFolder,
    process::{parent, parent_gone},
    shim::of_peer,
};
use baton_protocol::{JobKind, Priority, shim::ToNotebook};
use baton_transport::{MemoryHolder, TransportChoice};
use std::os::{fd::AsFd as _, unix::net::UnixStream as Connected};
use tokio::{
    net::UnixStream,
    signal::unix::{SignalKind, signal},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

const NO_CONNECTION: &str = "Standard input is not a connection to the program that started this command\n\
     hint: do not run this command yourself; the Python package `baton` starts it";

#[derive(Debug, Clone)]
pub struct ProgramConfig {
    /// Shown to people.
    pub name: String,
    /// The kind of all its jobs, if it is the same for all.
    pub kind: Option<JobKind>,
    pub broker: BrokerChoice,
    pub course: Option<String>,
    pub priority: Priority,
    pub transport: TransportChoice,
    pub patience: std::time::Duration,
    pub trash: TrashConfig,
}

/// Serves the program that started this process until it ends or closes the connection.
///
/// # Errors
/// If standard input is not a connection to that program, or the folder for sockets cannot be made.
pub async fn run_program(config: ProgramConfig) -> anyhow::Result<()> {
    let program = parent();
    let mut terminations =
        signal(SignalKind::terminate()).context("Failed to listen for signals")?;
    // An interrupt is for the program, which cancels the running cells.
    let _interrupts = signal(SignalKind::interrupt()).context("Failed to listen for signals")?;
    let stream = connection().context(NO_CONNECTION)?;
    let program_pid = u32::try_from(program.as_raw()).context("The program has no process id")?;
    let (reader, mut writer) = of_peer(stream, program_pid).context(NO_CONNECTION)?;
    let folder = PrivateFolder::create("program")?;
    let scanner = scanner::install(folder.path())
        .context("Failed to write into the program's private folder")?;
    let (memory, serve_memory) = MemoryHolder::open(folder.path())
        .context("Failed to listen for workers on this machine")?;
    let ready = ToNotebook::Ready {
        folder: folder.path().to_string_lossy().into_owned(),
        scanner: scanner.to_string_lossy().into_owned(),
    };
    writer
        .send(&ready)
        .await
        .context("The program has closed its connection")?;

    let shutdown = CancellationToken::new();
    let tasks = TaskTracker::new();
    let remote_config = RemoteConfig {
        audience: Audience::Program {
            name: config.name,
            kind: config.kind,
        },
        broker: config.broker,
        course: config.course,
        trash: config.trash,
        priority: config.priority,
        memory: (config.transport == TransportChoice::Auto).then_some(memory),
        kernel_pid: program_pid,
        patience: config.patience,
    };
    let served = tasks.spawn(shim::serve_one(
        reader,
        writer,
        remote_config,
        shutdown.clone(),
    ));
    let ended = shutdown.clone();
    tasks.spawn(async move { ended.run_until_cancelled(serve_memory).await });
    tasks.close();
    tokio::select! {
        _ = served => {}
        _ = terminations.recv() => {}
        // Watch the parent as well: children of the program may keep its end of the connection open.
        () = parent_gone(program) => {}
    }
    shutdown.cancel();
    let _ = tokio::time::timeout(REMOTE_CELLS_END, tasks.wait()).await;
    Ok(())
}

fn connection() -> std::io::Result<UnixStream> {
    let stream = Connected::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}
