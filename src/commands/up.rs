//! `baton up`: broker and worker in one process, for this user on this machine.
//!
//! Each user has only one instance. A second one waits until the first answers, then exits
//! successfully, so several notebooks may start it at once.

mod detached;

use crate::{
    commands::worker,
    logging,
    runtime::{self, on_its_threads},
    service::RuntimeFolder,
    settings::{Dashboard, ProcessEnvironment, Settings},
    signals::EndSignals,
};
use anyhow::Context;
use baton_broker::{Activity, Config, Listen};
use baton_gpu_worker::Stop;
use baton_protocol::address::BrokerAddress;
use baton_transport::{Dial, Token};
use clap::Args;
use nix::unistd;
use std::{
    fs::{self, OpenOptions},
    io,
    net::{SocketAddr, TcpListener},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};
use tokio::{
    runtime::Builder,
    sync::{oneshot, watch},
};
use tokio_util::sync::CancellationToken;

/// A log that is longer at the start is emptied.
const LONGEST_LOG_BYTES: u64 = 1 << 20;

/// How often the service looks whether its socket is still there.
const SOCKET_CHECK: Duration = Duration::from_secs(5);

/// A file's device and inode.
type FileId = (u64, u64);

const DETACHED: &str = "detached";
/// Marks a detached service for its own process, and for notebooks that start one.
const IN_BACKGROUND: &str = "in-background";

/// Run broker and worker for this user on this machine
#[derive(Args)]
pub(crate) struct Up {
    /// Start in the background, print where it runs, and return
    #[arg(long = DETACHED)]
    detached: bool,
    /// Detach from the terminal and log to a file in the runtime folder
    #[arg(long = IN_BACKGROUND, hide = true)]
    in_background: bool,
}

pub(crate) fn main(
    process: &ProcessEnvironment,
    settings: &Settings,
    of: &Up,
) -> anyhow::Result<ExitCode> {
    if of.detached {
        return detached::start(settings);
    }
    let folder = RuntimeFolder::create(&settings.runtime_folder)?;
    if of.in_background {
        leave_terminal(&folder)?;
    }
    logging::to_stderr(process, "info");
    let Some(_alone) = folder.lock()? else {
        outln!("Already running: unix:{}", folder.socket().display());
        return Ok(ExitCode::SUCCESS);
    };
    let state_folder = settings.state_folder.join(own_name(process, &folder));
    let token = folder.token()?;
    let (activity, activity_seen) = watch::channel(Activity::default());
    let mut broker = Config::new(
        Listen::Unix(folder.socket()),
        state_folder.join("broker.db"),
        state_folder.join("chunks"),
    );
    broker.chunks_limit_bytes = settings.broker_chunk_limit.bytes;
    broker.token = Some(token.clone());
    broker.activity = Some(activity);
    let place = folder.worker(settings.worker_name.as_deref())?;
    let dashboard = match settings.up_dashboard {
        Dashboard::On(address) => Some(open_dashboard(address)?),
        Dashboard::Off => None,
    };
    let url = dashboard
        .as_ref()
        .map(|(_, port)| format!("http://{port}/?token={token}"));
    folder.write_dashboard(url.as_deref())?;
    broker.dashboard = dashboard.map(|(listener, _)| Arc::new(listener));
    if let (Some(url), false) = (url, of.in_background) {
        outln!("Dashboard: {url}");
    }

    runtime::allow_many_open_files();
    let runtime = runtime::start(Builder::new_multi_thread())?;
    runtime.block_on(async {
        let mut signals = EndSignals::listen().context("Failed to listen for signals")?;
        let stop = watch::Sender::default();
        let (listens, listening) = oneshot::channel();
        let ask = async {
            tokio::select! {
                () = asked_to_end(&mut signals, of.in_background) => {}
                () = idle(activity_seen, settings.up_idle_exit) => {}
                () = cut_off(folder.socket(), listening) => {}
            }
            Stop::WhenCellsEnd.ask(&stop);
            asked_to_end(&mut signals, of.in_background).await;
            Stop::Now.ask(&stop);
            std::future::pending().await
        };
        let token = Token::new(&token);
        let worker = |address| {
            // The receiver may be gone, if the service has been asked to end.
            let _ = listens.send(file_at(&folder.socket()).unwrap_or(None));
            let token = Some(token);
            let dial = Dial {
                address,
                token,
                ca_file: None,
            };
            worker::config_for_one_person(settings, place.id, dial, &folder)
        };
        tokio::select! {
            ended = serve(broker, worker, &stop) => ended,
            () = ask => Ok(()),
        }
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Instances may share a home folder (several machines) or a user (several runtime folders), but
/// never a database.
fn own_name(process: &ProcessEnvironment, folder: &RuntimeFolder) -> String {
    format!("{}{}", process.host, folder.path().display()).replace('/', "-")
}

fn open_dashboard(address: SocketAddr) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let open = || {
        let listener = TcpListener::bind(address)?;
        let port = listener.local_addr()?;
        io::Result::Ok((listener, port))
    };
    open().with_context(|| format!("Failed to show the dashboard on {address}"))
}

/// Starts the worker when the broker is ready, and ends it before the broker.
async fn serve(
    broker: Config,
    worker: impl FnOnce(BrokerAddress) -> baton_gpu_worker::Config,
    stop: &watch::Sender<Stop>,
) -> anyhow::Result<()> {
    let asked = stop.subscribe();
    let worker_ended = CancellationToken::new();
    let (ready, address) = oneshot::channel();
    let broker = async {
        let ready = |address| drop(ready.send(address));
        let end = worker_ended.clone().cancelled_owned();
        let ended = on_its_threads(baton_broker::run(broker, ready, end)).await;
        Stop::WhenCellsEnd.ask(stop);
        ended
    };
    let worker = async {
        let _ended = worker_ended.clone().drop_guard();
        let Ok(address) = address.await else {
            // The broker did not start and has reported why.
            return Ok(());
        };
        outln!("Ready: {address}");
        on_its_threads(baton_gpu_worker::run(worker(address), asked)).await
    };
    let (broker, worker) = tokio::join!(broker, worker);
    broker.context("The broker ended")?;
    worker.context("The worker ended")
}

async fn asked_to_end(signals: &mut EndSignals, in_background: bool) {
    if in_background {
        signals.received_without_terminal().await;
    } else {
        signals.received().await;
    }
}

/// Completes when the service has been unused for `idle_exit`.
async fn idle(mut activity: watch::Receiver<Activity>, idle_exit: Option<Duration>) {
    let Some(idle_exit) = idle_exit else {
        return std::future::pending().await;
    };
    loop {
        if activity
            .wait_for(|activity| activity.is_idle())
            .await
            .is_err()
        {
            return;
        }
        let busy = activity.wait_for(|activity| !activity.is_idle());
        match tokio::time::timeout(idle_exit, busy).await {
            Ok(Ok(_)) => {}
            Ok(Err(_)) => return,
            Err(_) => {
                tracing::info!("Stopping: the service was idle for a long time");
                return;
            }
        }
    }
}

/// Completes when the service's socket is gone, for example because a cleaner of old files has removed the runtime
/// folder. No new notebook can connect then, and no other service can start while this one has the database.
async fn cut_off(socket: PathBuf, listening: oneshot::Receiver<Option<FileId>>) {
    let Ok(own) = listening.await else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(SOCKET_CHECK).await;
        if let Ok(now) = file_at(&socket)
            && (now.is_none() || now != own)
        {
            tracing::warn!(
                "Stopping when no cell runs: the socket {} is gone",
                socket.display()
            );
            return;
        }
    }
}

/// The file of this name, if there is one.
fn file_at(path: &Path) -> io::Result<Option<FileId>> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some((metadata.dev(), metadata.ino()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Detaches from the terminal: its signals no longer arrive, and output goes to the log.
fn leave_terminal(folder: &RuntimeFolder) -> anyhow::Result<()> {
    // This fails for the leader of a process group; its own group already keeps the terminal's signals away.
    let _ = unistd::setsid();
    let path = folder.log();
    let log = OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("Failed to open {}", path.display()))?;
    if log
        .metadata()
        .is_ok_and(|metadata| metadata.len() > LONGEST_LOG_BYTES)
    {
        log.set_len(0).context("Failed to shorten the log")?;
    }
    unistd::dup2_stderr(&log).context("Failed to log to a file")?;
    unistd::dup2_stdout(&log).context("Failed to log to a file")?;
    Ok(())
}
