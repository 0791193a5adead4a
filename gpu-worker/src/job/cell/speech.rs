//! What the session is told, and what its kernel and its shim say.

use std::os::fd::BorrowedFd;

use baton_jupyter_link::client::{ClientError, KernelMessage, Source};
use baton_link::frames::FrameError;
use baton_protocol::shim::{Delta, END_OF_OUTPUT, FromSession, ToSession};
use baton_protocol::{Cell, JobEvent, Outcome, Output};
use jupyter_protocol::ExecuteRequest;
use tokio::time::Instant;

use super::collecting::SessionEnd;
use super::limits::Cancel;
use super::{PATIENCE, Phase, Run};
use crate::gpu;
use crate::job::{Ending, Order};
use crate::notice;
use crate::session::Session;

#[derive(Debug, thiserror::Error)]
pub(super) enum TellError {
    #[error(transparent)]
    Shim(#[from] FrameError),
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// The kernel first: only in a cell its shim listens, and a frame may be larger than what the socket holds.
pub(super) async fn tell(
    session: &mut Session,
    cell: &Cell,
    delta: Delta,
    file: BorrowedFd<'_>,
) -> Result<(), TellError> {
    let request = ExecuteRequest {
        code: cell.code.clone(),
        silent: cell.silent,
        store_history: false,
        user_expressions: None,
        allow_stdin: cell.allow_stdin,
        // One cell at a time: there is nothing behind it that could be stopped.
        stop_on_error: false,
    };
    session.client.execute(&cell.message_id, &request).await?;
    let prepare = ToSession::Prepare {
        message_id: cell.message_id.clone(),
        execution_count: cell.execution_count,
        delta,
    };
    Ok(session.shim.send_with_file(&prepare, file).await?)
}

impl Run<'_> {
    pub(super) fn on_kernel(&mut self, message: KernelMessage, cell: &Cell) -> Option<Ending> {
        let idle = message.is_idle_of(&cell.message_id);
        if idle || message.is_end_of_output_of(&cell.message_id) {
            self.all_output_is_here = true;
        } else if message.source == Source::Iopub && is_output(&message.kind) {
            self.batcher.push(Output {
                kind: message.kind,
                content: message.content,
                metadata: message.metadata,
                buffers: message.buffers,
            });
            return None;
        } else {
            return None;
        }
        if matches!(self.phase, Phase::Closing { .. }) {
            return self.close();
        }
        // The shim speaks before its kernel does; but its message may still be on its way to this task.
        if idle && self.deadline.is_none() {
            self.deadline = Some(Instant::now() + PATIENCE);
        }
        None
    }

    pub(super) async fn on_shim(
        &mut self,
        message: FromSession,
        order: &Order,
        cell: &Cell,
    ) -> Option<Ending> {
        match (message, std::mem::replace(&mut self.phase, Phase::Over)) {
            (FromSession::Started { .. }, Phase::Applying { ledger }) => {
                order.events.send(JobEvent::Started {
                    worker: self.context.name.clone(),
                });
                if let Some(away) = self.session.away.take() {
                    away.superseded();
                }
                self.turns(gpu::Cell::Started);
                self.phase = Phase::Running {
                    ledger,
                    since: Instant::now(),
                };
                if self.cancel != Cancel::NotAsked {
                    // The first one may have come before the session listened to it.
                    self.session.interrupt();
                }
            }
            (
                FromSession::Refused { error, .. },
                phase @ (Phase::Applying { .. } | Phase::Running { .. }),
            ) => {
                self.refused = matches!(phase, Phase::Applying { .. });
                let outcome = match self.cancel {
                    Cancel::NotAsked => Outcome::Refused,
                    Cancel::Asked(_) | Cancel::Moot => Outcome::Cancelled,
                };
                return Some(Ending::without_state(outcome, error));
            }
            (
                FromSession::Finished {
                    outcome,
                    error,
                    state,
                    away_bytes,
                    ..
                },
                Phase::Running { ledger, since },
            ) => {
                self.turns(gpu::Cell::Ended);
                self.usage.run_ms = since.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
                let (outcome, error) = if self.time_is_up && outcome == Outcome::Cancelled {
                    let error = notice::stopped_in_time(self.limit.unwrap_or_default(), error);
                    (Outcome::TimedOut, Some(error))
                } else {
                    (outcome, error)
                };
                let end = SessionEnd {
                    outcome,
                    error,
                    away_bytes,
                };
                return self.begin_collecting(end, state, ledger);
            }
            (
                FromSession::InputWanted {
                    question,
                    prompt,
                    password,
                    ..
                },
                phase,
            ) => {
                self.phase = phase;
                // The question comes after what was printed before it.
                self.flush(order);
                order.events.send(JobEvent::InputWanted {
                    question,
                    prompt,
                    password,
                });
            }
            (FromSession::NamesWanted { names, .. }, phase @ Phase::Running { .. }) => {
                self.phase = phase;
                self.ask_for(names, order);
            }
            (unexpected, phase) => {
                self.phase = phase;
                tracing::warn!(
                    cell.message_id,
                    kind = kind(&unexpected),
                    "A session's shim is out of step"
                );
            }
        }
        None
    }

    /// A connection that broke is seen when the session is listened to.
    pub(super) async fn answer(&mut self, message: ToSession) {
        if let Err(error) = self.session.shim.send(&message).await {
            tracing::warn!(%error, "A session's shim takes no messages");
        }
    }
}

/// Everything that IPython publishes while a cell runs, except what the notebook kernel says itself.
fn is_output(kind: &str) -> bool {
    !matches!(
        kind,
        "status"
            | "execute_input"
            | "execute_result"
            | "error"
            | "iopub_welcome"
            | "shutdown_reply"
            | "debug_event"
            | END_OF_OUTPUT
    )
}

fn kind(message: &FromSession) -> &'static str {
    match message {
        FromSession::Hello(_) => "hello",
        FromSession::Started { .. } => "started",
        FromSession::Refused { .. } => "refused",
        FromSession::InputWanted { .. } => "input_wanted",
        FromSession::NamesWanted { .. } => "names_wanted",
        FromSession::Finished { .. } => "finished",
        FromSession::Settled { .. } => "settled",
    }
}
