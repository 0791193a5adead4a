//! Deferred state of the last cell: it arrives while no cell runs, and is void once a later cell has returned.
//!
//! ```text
//! waiting ──DeferredState──> announced ──received──> received ──sent──> applied
//!    ^                           │
//!    └───────── wanted ──────────┘
//! ```
//!
//! State that cannot be fetched or used is requested again as long as the worker has it. A later
//! cell that fails changes nothing here.
//!
//! **Invariant:** the shim gets deferred state only between cells, and always learns of a loss.

use super::{
    failure::{Failure, NamedJob, naming},
    link::{JobUpdate, Link},
    session_state::SessionState,
    transfer,
};
use baton_chunks::Severity;
use baton_humanize::with_causes;
use baton_jupyter_wire::shim::ShimWriter;
use baton_protocol::{CallId, JobEvent, JobKind, RemoteError, State, shim::ToNotebook};
use baton_transport::{Backoff, HeldMemory, Received, frames::FrameError};
use std::os::fd::AsFd;

/// The deferred state of the last cell that returned, if there is any.
#[derive(Default)]
pub(super) struct Deferred(Option<DeferredState>);

/// A cell whose deferred state the shim has applied, or why it could not.
pub(super) type Applied = (CallId, Option<String>);

pub(super) struct DeferredState {
    job: NamedJob,
    call: CallId,
    /// What both notebook and session hold without the deferred state.
    session: SessionState,
    /// Where a worker on this machine deposits the deferred state.
    held: Option<HeldMemory>,
    stage: Stage,
    backoff: Backoff,
}

enum Stage {
    Waiting,
    /// The worker has named the place from which it can be received.
    Announced(State),
    Received(Box<Received>),
    /// Sent to the shim, which has not answered yet.
    Sent(Box<Received>),
    Lost(RemoteError),
}

impl Deferred {
    /// Waits until there is something for the shim. Cancel safe.
    pub(super) async fn next(&mut self, link: &mut Link) {
        match &mut self.0 {
            Some(deferred) => deferred.next(link).await,
            None => std::future::pending().await,
        }
    }

    /// Sends the shim what [`Self::next`] has waited for. Returns true if the deferred state is lost.
    pub(super) async fn send(
        &mut self,
        link: &Link,
        writer: &mut ShimWriter,
    ) -> Result<bool, FrameError> {
        let Some(mut deferred) = self.0.take() else {
            return Ok(false);
        };
        let (job, call) = (deferred.job.id, deferred.call);
        match deferred.stage {
            Stage::Received(received) => {
                let delta = received.delta.clone();
                let message = ToNotebook::DeferredState { call, delta };
                writer
                    .send_with_file(&message, received.file.as_fd())
                    .await?;
                deferred.stage = Stage::Sent(received);
            }
            Stage::Lost(error) => {
                tracing::warn!(job.id = %job, error = %error.value, "Deferred state is lost");
                link.applied(job).await;
                let error = naming(job, error);
                writer
                    .send(&ToNotebook::DeferredLost { call, error })
                    .await?;
                return Ok(true);
            }
            Stage::Waiting | Stage::Announced(_) | Stage::Sent(_) => {}
        }
        self.0 = Some(deferred);
        Ok(false)
    }

    /// The shim has applied the deferred state, or could not.
    pub(super) async fn on_applied(
        &mut self,
        link: &Link,
        call: CallId,
        error: Option<String>,
        session: &mut Option<SessionState>,
    ) {
        let Some(deferred) = self.0.take_if(|deferred| deferred.call == call) else {
            return;
        };
        if let Some(error) = &error {
            tracing::warn!(job.id = %deferred.job.id, error, "Deferred state could not be applied");
        }
        let fits = |session: &SessionState| session.version == deferred.session.version;
        *session = match (session.take().filter(fits), deferred.stage) {
            (Some(session), Stage::Sent(received)) if error.is_none() => {
                Some(SessionState::after(session.version, received.ledger))
            }
            _ => None,
        };
        link.applied(deferred.job.id).await;
    }

    /// Another cell begins. If the shim has not yet applied what was sent, it no longer will.
    pub(super) fn repeat(&mut self) {
        if let Some(deferred) = &mut self.0 {
            deferred.stage = match std::mem::replace(&mut deferred.stage, Stage::Waiting) {
                Stage::Sent(received) => Stage::Received(received),
                stage => stage,
            };
        }
    }

    /// A later cell returned no state, so the deferred state is needed after all.
    pub(super) async fn request(&self, link: &Link) {
        if let Some(deferred) = &self.0
            && matches!(deferred.stage, Stage::Waiting)
        {
            link.want_deferred(deferred.job.id).await;
        }
    }

    /// A later cell returned its state, which includes everything that was deferred before.
    pub(super) async fn replace(&mut self, link: &mut Link, deferred: Option<DeferredState>) {
        link.watch(deferred.as_ref().map(|deferred| deferred.job.id));
        if let Some(before) = std::mem::replace(&mut self.0, deferred) {
            link.applied(before.job.id).await;
        }
    }
}

impl DeferredState {
    pub(super) fn new(
        job: NamedJob,
        call: CallId,
        session: SessionState,
        held: Option<HeldMemory>,
    ) -> Self {
        Self {
            job,
            call,
            session,
            held: held.inspect(HeldMemory::keep_for_results),
            stage: Stage::Waiting,
            backoff: Backoff::default(),
        }
    }

    async fn next(&mut self, link: &mut Link) {
        loop {
            self.stage = match &self.stage {
                Stage::Waiting => match link.next_of_watched().await {
                    JobUpdate::Event(event) => match *event {
                        JobEvent::DeferredState {
                            state: Some(state), ..
                        } => Stage::Announced(state),
                        JobEvent::DeferredState { error, .. } => {
                            Stage::Lost(error.unwrap_or_else(|| lost(self.job.kind)))
                        }
                        _ => continue,
                    },
                    JobUpdate::Lost => {
                        let kind = self.job.kind;
                        let reason = format!("The GPU service lost the {}'s run", kind.noun());
                        Stage::Lost(Failure::deferred_lost(&reason, kind))
                    }
                    JobUpdate::Position(_) | JobUpdate::Cancelling | JobUpdate::TooLarge { .. } => {
                        continue;
                    }
                },
                Stage::Announced(state) => {
                    let broker = link.broker().await;
                    let ledger = self.session.ledger.clone();
                    let held = self.held.as_ref();
                    match transfer::receive(state.clone(), ledger, held, &broker.chunks).await {
                        Ok(received) => Stage::Received(Box::new(received)),
                        Err(error) if error.severity() == Severity::Lasting => {
                            Stage::Lost(Failure::deferred_lost(&with_causes(&error), self.job.kind))
                        }
                        Err(error) => {
                            tracing::info!(
                                error = with_causes(&error),
                                "Deferred state could not be fetched yet"
                            );
                            tokio::time::sleep(self.backoff.next_delay()).await;
                            if error.severity() == Severity::Passing {
                                continue;
                            }
                            link.want_deferred(self.job.id).await;
                            Stage::Waiting
                        }
                    }
                }
                Stage::Received(_) | Stage::Lost(_) => return,
                Stage::Sent(_) => return std::future::pending().await,
            };
        }
    }
}

fn lost(kind: JobKind) -> RemoteError {
    let noun = kind.noun();
    Failure::deferred_lost(
        &format!("The GPU machine no longer has the {noun}'s results"),
        kind,
    )
}
