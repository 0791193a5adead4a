//! Serves the notebook kernel's shim: one connection that carries one `%%gpu` cell after another.
//!
//! In: the shim's messages. Out: [`RemoteCells`] runs each cell and answers.
//!
//! **Invariant:** nothing here is on the path of an ordinary cell.

use crate::{
    config::RemoteConfig,
    remote_cell::{CellEnd, RemoteCells, StateRequest, attach},
};
use baton_jupyter_wire::shim::{ShimListener, ShimReader, ShimWriter};
use baton_protocol::shim::{FromNotebook, Hello};
use tokio_util::sync::CancellationToken;

/// Serves the shim until `shutdown`, and then sends `Goodbye` to the broker.
pub(crate) async fn serve(
    listener: ShimListener,
    config: RemoteConfig,
    shutdown: CancellationToken,
) {
    let kernel_pid = config.kernel_pid;
    let (mut cells, drive_link) = RemoteCells::open(config);
    tokio::pin!(drive_link);
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = &mut drive_link => return,
        () = serve_connections(&mut cells, &listener, kernel_pid) => {}
    }
    drop(cells);
    drive_link.await;
}

/// Serves one connection until it or `shutdown` ends, and then sends `Goodbye` to the broker.
pub(crate) async fn serve_one(
    reader: ShimReader,
    mut writer: ShimWriter,
    config: RemoteConfig,
    shutdown: CancellationToken,
) {
    let (mut cells, drive_link) = RemoteCells::open(config);
    let mut reader = reader.within(baton_chunks::memory::available_bytes());
    tokio::pin!(drive_link);
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = &mut drive_link => return,
        served = serve_connection(&mut cells, &mut reader, &mut writer) => if let Err(error) = served {
            tracing::warn!(error = ?error, "The program's connection broke");
        },
    }
    drop(cells);
    drive_link.await;
}

async fn serve_connections(cells: &mut RemoteCells, listener: &ShimListener, kernel_pid: u32) {
    loop {
        let (mut reader, mut writer) = match listener.accept(kernel_pid).await {
            Ok((reader, writer)) => (
                reader.within(baton_chunks::memory::available_bytes()),
                writer,
            ),
            Err(error) => {
                tracing::error!(%error, "No %%gpu cell can run: the kernel's private socket failed");
                return;
            }
        };
        if let Err(error) = serve_connection(cells, &mut reader, &mut writer).await {
            tracing::warn!(error = ?error, "The kernel's private connection broke");
        }
        cells.forget_state().await;
    }
}

async fn serve_connection(
    cells: &mut RemoteCells,
    reader: &mut ShimReader,
    writer: &mut ShimWriter,
) -> anyhow::Result<()> {
    let mut next = None;
    loop {
        let message = match next.take() {
            Some(message) => message,
            None => tokio::select! {
                message = reader.receive() => match message? {
                    Some(message) => message,
                    None => return Ok(()),
                },
                event = cells.between_cells() => {
                    cells.on_between_cells(event, writer).await?;
                    continue;
                }
            },
        };
        match message {
            FromNotebook::Hello(hello) => on_hello(cells, hello),
            FromNotebook::Run(run) => match cells.run(run, reader, writer).await? {
                CellEnd::Done => {}
                CellEnd::Replaced(run) => next = Some(FromNotebook::Run(*run)),
                CellEnd::KernelGone => return Ok(()),
            },
            FromNotebook::OutputWanted { call } => cells.replay_output(call, writer).await?,
            FromNotebook::Applied { call, error } => cells.on_deferred_applied(call, error).await,
            FromNotebook::Ending { call } => cells.on_ending(call, writer).await?,
            FromNotebook::Attach(wanted) => next = attach(cells, wanted, reader, writer).await?,
            message => match StateRequest::read(message) {
                Ok((call, request)) => {
                    let states = cells.saved_states();
                    next = states.on_request(call, request, reader, writer).await?;
                }
                Err(stale) => tracing::debug!(?stale, "Ignored a message about a finished cell"),
            },
        }
    }
}

fn on_hello(cells: &mut RemoteCells, hello: Hello) {
    let expected = env!("CARGO_PKG_VERSION");
    if hello.version != expected {
        tracing::warn!(
            shim.version = %hello.version,
            "The Python package baton_shim has version {}, this program has version {expected}: \
             install the same version of both",
            hello.version
        );
    }
    cells.on_hello(hello);
}

#[cfg(test)]
mod tests;
