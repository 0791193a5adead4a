//! The process that Jupyter starts as the kernel: a relay between its clients and the notebook
//! kernel, its child.
//!
//! In: connections of clients. Out: the same bytes to and from the notebook kernel. The output that `%%gpu`
//! cells produce elsewhere is inserted on iopub, between whole messages. `remote_cell` describes what happens
//! to a `%%gpu` cell. A plain Python program uses the same code without clients and relay (`program`).
//!
//! **Invariant:** a message of the kernel or a client leaves with the bytes it arrived with, and no
//! failure of broker, worker or network affects an ordinary cell.

mod config;
mod kernel;
mod program;
mod relay;
mod remote_cell;
mod shim;

use anyhow::Context as _;
use baton_chunks::scanner::{self, SCANNER};
use baton_jupyter_wire::{
    connection::ConnectionFile,
    folder::PrivateFolder,
    process::{KernelCommand, start_kernel},
    shim::{SHIM_SOCKET, ShimListener},
};
use baton_transport::{MemoryHolder, TransportChoice};
use kernel::{Kernel, Signals};
use relay::{KernelSide, Listeners, Relay};
use std::{
    ffi::{OsStr, OsString},
    path::Path,
    time::Duration,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use config::{BrokerChoice, Config, LAUNCHER_MODULE, TrashConfig};
pub use kernel::ForkedKernel;
pub use program::{ProgramConfig, run_program};

/// Time for `%%gpu` cells to close their connection to the broker once the notebook kernel has ended.
const REMOTE_CELLS_END: Duration = Duration::from_secs(1);

/// Serves one notebook kernel until it ends. Returns the kernel's exit code, or 128 plus the number
/// of the signal that killed it.
///
/// Await this on the main thread, not in a spawned task: the operating system ends the kernel
/// together with the thread that started it.
pub async fn run(config: Config) -> anyhow::Result<i32> {
    let signals = Signals::listen().context("Failed to listen for signals")?;
    let outer = ConnectionFile::read(&config.connection_file)?;
    let folder = PrivateFolder::create("kernel")?;
    let inner = outer.moved_to(folder.path());
    let inner_file = folder.path().join("connection.json");
    inner.write(&inner_file)?;
    let shim = ShimListener::bind(folder.path())?;
    let scanner = scanner::install(folder.path())
        .context("Failed to write into the kernel's private folder")?;
    let (memory, serve_memory) = MemoryHolder::open(folder.path())
        .context("Failed to listen for workers on this machine")?;
    // Open all sockets before the kernel starts: clients can connect at once and wait in the
    // backlog, and a port that is in use leaves no kernel behind.
    let listeners = Listeners::open(&outer).await?;

    let mut environment = vec![
        (SHIM_SOCKET, shim.path().as_os_str()),
        (SCANNER, scanner.as_os_str()),
    ];
    if !config.virtual_cuda {
        let (name, value) = config::NO_VIRTUAL_CUDA;
        environment.push((name, value.as_ref()));
    }
    let mut kernel =
        start(&config, &inner_file, &environment).context("Failed to start the notebook kernel")?;
    let kernel_pid = kernel
        .id()
        .context("The notebook kernel has no process id")?;

    let relay = Relay::new(&outer);
    let kernel_side = KernelSide::new(inner);
    let shutdown = CancellationToken::new();
    let connections = listeners.serve(&relay, &kernel_side, &shutdown);
    let remote_tasks = TaskTracker::new();
    let remote_config = config::RemoteConfig {
        audience: config::Audience::Clients(relay),
        broker: config.broker,
        course: config.course,
        priority: config.priority,
        trash: config.trash,
        memory: (config.transport == TransportChoice::Auto).then_some(memory),
        kernel_pid,
        patience: config.patience,
    };
    remote_tasks.spawn(shim::serve(shim, remote_config, shutdown.clone()));
    let ended = shutdown.clone();
    remote_tasks.spawn(async move { ended.run_until_cancelled(serve_memory).await });
    remote_tasks.close();

    let status = kernel::supervise(&mut kernel, kernel_pid, signals)
        .await
        .context("Failed to wait for the notebook kernel")?;
    shutdown.cancel();
    connections.drain().await;
    let _ = tokio::time::timeout(REMOTE_CELLS_END, remote_tasks.wait()).await;
    if let Some(code) = status.code()
        && code != 0
        && !kernel_side.was_reached()
    {
        return Err(never_ready(&config.python, &config.launcher_module, code));
    }
    Ok(kernel::exit_code(status))
}

fn start(
    config: &Config,
    connection_file: &Path,
    environment: &[(&str, &OsStr)],
) -> anyhow::Result<Kernel> {
    Ok(match config.forked {
        Some(forked) => {
            let ours = ["-f".as_ref(), connection_file.as_os_str()];
            let all = ours
                .into_iter()
                .chain(config.kernel_arguments.iter().map(OsString::as_os_str));
            Kernel::Forked(forked.begin(environment, all)?)
        }
        None => Kernel::Started(start_kernel(&KernelCommand {
            python: &config.python,
            module: &config.launcher_module,
            connection_file,
            arguments: &config.kernel_arguments,
            environment,
        })?),
    })
}

fn never_ready(python: &Path, module: &str, code: i32) -> anyhow::Error {
    let python = python.display();
    anyhow::anyhow!(
        "The notebook kernel ended with exit code {code} before it was ready\n\
         hint: `{python} -c \"import ipykernel\"` and `{python} -m {module} --version` must both work"
    )
}
