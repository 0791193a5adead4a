//! Collects the state that a cell leaves: reads it from the session and moves it to where the proxy can fetch it.

use baton_chunks::Ledger;
use baton_protocol::outbox::state_bytes;
use baton_protocol::shim::Snapshot;
use baton_protocol::{Cell, Finished, Outcome, RemoteError, State, Usage};
use baton_transport::Changes;

use super::{Phase, Run};
use crate::job::deferred_state::{DeferredChannels, DeferredState};
use crate::job::{Ending, Job};
use crate::messages;
use crate::mirror::{self, MirrorError};
use crate::processes;
use crate::session::Held;
use crate::transfer::{NotTransferred, send_patiently};

/// A larger state does not fit into one message.
const LARGEST_STATE_BYTES: usize = 48 << 20;

/// The state that was read from the session, and the changes to files.
pub(super) type Collected = (
    Result<(State, Ledger), NotTransferred>,
    Result<mirror::Collected, MirrorError>,
);

/// How the cell ended, as its session reports it.
pub(super) struct SessionEnd {
    pub(super) outcome: Outcome,
    pub(super) error: Option<RemoteError>,
    /// Bytes that its state leaves out.
    pub(super) deferred_bytes: u64,
}

impl Run<'_> {
    pub(super) fn begin_collecting(
        &mut self,
        SessionEnd {
            outcome,
            error,
            deferred_bytes,
        }: SessionEnd,
        state: Snapshot,
        ledger: Ledger,
    ) -> Option<Ending> {
        let base = self.version;
        if state.messages != base.messages {
            let error =
                messages::session_failed("The session and the worker count messages differently");
            return Some(Ending::without_state(Outcome::WorkerLost, error));
        }
        let changes = Changes {
            kernel: self.session.kernel().as_raw(),
            base,
            snapshot: state,
            ledger,
        };
        let patience = self.context.config.patience;
        let access = self.context.access.clone();
        let collecting = send_patiently(patience, access, self.transport.clone(), changes);
        let kernel_bytes = processes::resident_of(self.session.kernel());
        if let Some(ending) = self.on_memory(Some(kernel_bytes)) {
            return Some(ending);
        }
        let files = self.session.mirror.as_mut().map(mirror::collect);
        let files = async move {
            match files {
                Some(files) => files.await,
                None => Ok(mirror::Collected::default()),
            }
        };
        self.phase = Phase::Collecting {
            outcome,
            error,
            deferred_bytes,
            // The session waits meanwhile, so it holds exactly what the cell left.
            collected: Box::pin(async move { tokio::join!(collecting, files) }),
        };
        None
    }

    pub(super) async fn on_collected(
        &mut self,
        (result, files): Collected,
        job: &Job,
        cell: &Cell,
    ) -> Option<Ending> {
        let Phase::Collecting {
            outcome,
            error,
            deferred_bytes,
            ..
        } = std::mem::replace(&mut self.phase, Phase::Over)
        else {
            return None;
        };
        let collected = match (result, files) {
            (Ok(state), Ok(files)) => Ok((state, files)),
            (Err(error), _) => Err((messages::state_lost(&error), error.to_string())),
            (Ok(_), Err(error)) => Err((messages::files_not_collected(&error), error.to_string())),
        };
        let ((state, ledger), files) = match collected {
            Ok(collected) => collected,
            Err((message, error)) => {
                tracing::warn!(error, "The cell's results could not be collected");
                return Some(Ending::without_state(Outcome::WorkerLost, message));
            }
        };
        let bytes = state_bytes(&state);
        if bytes > LARGEST_STATE_BYTES {
            let error = messages::state_too_large(bytes);
            return Some(Ending::without_state(Outcome::WorkerLost, error));
        }
        for note in files.notes {
            self.batcher.push(messages::warning(&note));
        }
        let held = Held {
            version: self.version.after_message(),
            ledger,
        };
        if let Some(mirror) = &mut self.session.mirror {
            mirror.after_cell();
        }
        let deferred = (deferred_bytes > 0).then(|| {
            let rest = DeferredChannels {
                events: job.events.clone(),
                revoked: job.revoked.clone(),
                wanted: job.deferred_wanted.clone(),
            };
            let transfer = (self.context.access.clone(), self.transport.clone());
            DeferredState::new(rest, transfer, self.session.kernel().as_raw(), &held)
        });
        self.session.held = Some(held);
        Some(Ending {
            finished: Finished {
                outcome,
                error,
                state: Some(state),
                usage: Usage::default(),
                files: files.changes,
                deferred_bytes,
                salvageable: cell.kind.outlives_kernel(),
            },
            deferred,
            file_chunks: files.chunks,
            elsewhere: false,
        })
    }
}
