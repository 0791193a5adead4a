//! The way of a `%%gpu` cell as the proxy sees it.
//!
//! In: calls of the notebook kernel's shim, and job events from the broker.
//! Out: submissions and chunks to the broker; outputs on iopub; the changed state to the shim.
//!
//! One task ([`link`]) keeps the connection to the broker; one ([`serve`]) follows the shim, one call at a time.
//!
//! **Invariant:** nothing here is on the path of an ordinary cell.

mod autostart;
mod call;
mod failure;
mod files;
mod link;
mod moving;
mod naming;
mod notice;
mod shown;

use std::time::Duration;

use baton_jupyter_wire::shim::{ShimListener, ShimReader, ShimWriter};
use baton_protocol::NotebookId;
use baton_protocol::shim::{FromNotebook, Hello};
use baton_transport::MemoryHolder;
use tokio_util::sync::CancellationToken;

use crate::config::{BrokerChoice, TrashConfig};
use crate::relay::Relay;
use call::{BetweenCalls, CallEnd, Journey};
use moving::Moving;

pub(crate) struct Context {
    pub(crate) relay: Relay,
    pub(crate) shim: ShimListener,
    pub(crate) broker: BrokerChoice,
    pub(crate) course: Option<String>,
    pub(crate) trash: TrashConfig,
    /// Where workers on this machine may fetch state; none where all of it goes through the broker.
    pub(crate) memory: Option<MemoryHolder>,
    pub(crate) kernel_pid: u32,
    /// How long a cell, and what it made, wait for a broker that is away.
    pub(crate) patience: Duration,
    pub(crate) shutdown: CancellationToken,
}

/// Serves the kernel's shim until `shutdown`, and then says goodbye to the broker.
pub(crate) async fn serve(context: Context) {
    let shutdown = context.shutdown.clone();
    let notebook = NotebookId::random();
    let (link, ended, keep_linked) =
        link::open(context.broker, context.course, notebook, context.patience);
    let moving = Moving::new(context.kernel_pid, context.memory);
    let mut journey = Journey::new(
        context.relay,
        (link, ended),
        moving,
        notebook,
        context.trash,
        context.patience,
    );
    tokio::pin!(keep_linked);
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = &mut keep_linked => return,
        () = serve_shim(&mut journey, &context.shim, context.kernel_pid) => {}
    }
    drop(journey);
    keep_linked.await;
}

async fn serve_shim(journey: &mut Journey, listener: &ShimListener, kernel_pid: u32) {
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
        if let Err(error) = serve_connection(journey, &mut reader, &mut writer).await {
            tracing::warn!(error = ?error, "The kernel's private connection broke");
        }
        journey.forget_state().await;
    }
}

async fn serve_connection(
    journey: &mut Journey,
    reader: &mut ShimReader,
    writer: &mut ShimWriter,
) -> anyhow::Result<()> {
    let mut next = None;
    loop {
        let message = match next.take() {
            Some(run) => FromNotebook::Run(run),
            None => tokio::select! {
                message = reader.receive() => match message? {
                    Some(message) => message,
                    None => return Ok(()),
                },
                event = journey.between_calls() => {
                    match event {
                        BetweenCalls::Rest => journey.tell_rest(writer).await?,
                        BetweenCalls::SessionEnded(worker) => {
                            journey.tell_session_ended(worker, writer).await?;
                        }
                    }
                    continue;
                }
            },
        };
        match message {
            FromNotebook::Hello(hello) => greet(journey, hello),
            FromNotebook::Run(run) => match journey.run(run, reader, writer).await? {
                CallEnd::Done => {}
                CallEnd::Replaced(run) => next = Some(*run),
                CallEnd::KernelGone => return Ok(()),
            },
            FromNotebook::OutputWanted { call } => journey.show_again(call, writer).await?,
            FromNotebook::Applied { call, error } => journey.rest_applied(call, error).await,
            late => tracing::debug!(?late, "Ignored a message of a finished call"),
        }
    }
}

fn greet(journey: &mut Journey, hello: Hello) {
    let expected = env!("CARGO_PKG_VERSION");
    if hello.version != expected {
        tracing::warn!(
            shim.version = %hello.version,
            "The Python package baton_shim has version {}, this program has version {expected}: \
             install the same version of both",
            hello.version
        );
    }
    journey.greeted(hello);
}
