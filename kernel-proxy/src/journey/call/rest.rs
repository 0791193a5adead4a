//! What a call left in its session: it follows while no call runs, and is void once another one has come home.
//!
//! ```text
//! waiting ──Rest──> arrived ──fetched──> received ──told──> applied
//!    ^                 │
//!    └──── wanted ─────┘
//! ```
//!
//! What cannot be fetched or used is asked for again, for as long as the worker has it. A later call that fails
//! changes nothing here.
//!
//! **Invariant:** the shim hears of it between calls only, and of its loss in any case.

use std::os::fd::AsFd;

use baton_jupyter_wire::shim::ShimWriter;
use baton_protocol::proxy::FromProxy;
use baton_protocol::shim::ToNotebook;
use baton_protocol::{CallId, JobEvent, JobId, RemoteError, State};
use baton_transport::frames::FrameError;
use baton_transport::{Backoff, Held};

use super::Journey;
use super::state::Home;
use crate::journey::failure::Failure;
use crate::journey::link::{Link, News, describe};
use crate::journey::moving::{self, Received};

pub(super) struct Late {
    pub(super) job: JobId,
    pub(super) call: CallId,
    /// What the notebook has without it.
    pub(super) home: Home,
    /// Where a worker on this machine puts it.
    pub(super) held: Option<Held>,
    pub(super) stage: Stage,
    pub(super) backoff: Backoff,
}

pub(super) enum Stage {
    Waiting,
    /// Where it can be fetched.
    Arrived(State),
    Received(Box<Received>),
    /// The shim was told, and has not answered.
    Told(Box<Received>),
    Lost(RemoteError),
}

/// Until there is something to tell the shim. Cancel safe.
pub(super) async fn next(late: &mut Option<Late>, link: &mut Link) {
    loop {
        let Some(late) = late else {
            return std::future::pending().await;
        };
        late.stage = match &late.stage {
            Stage::Waiting => match link.next_of_watched().await {
                News::Event(event) => match *event {
                    JobEvent::Rest {
                        state: Some(state), ..
                    } => Stage::Arrived(state),
                    JobEvent::Rest { error, .. } => Stage::Lost(error.unwrap_or_else(lost)),
                    _ => continue,
                },
                News::Lost => {
                    Stage::Lost(Failure::rest_lost("The GPU service lost the cell's run"))
                }
                News::Place(_) | News::Cancelling => continue,
            },
            Stage::Arrived(state) => {
                let lanes = link.lanes().await;
                let ledger = late.home.ledger.clone();
                let held = late.held.as_ref();
                match moving::receive(state.clone(), ledger, held, &lanes.chunks).await {
                    Ok(received) => Stage::Received(Box::new(received)),
                    Err(error) if error.is_lasting() => {
                        Stage::Lost(Failure::rest_lost(&describe(&error)))
                    }
                    Err(error) => {
                        tracing::info!(
                            error = describe(&error),
                            "Deferred state could not be fetched yet"
                        );
                        tokio::time::sleep(late.backoff.next_delay()).await;
                        if error.is_transient() {
                            continue;
                        }
                        let job = late.job;
                        link.answer(job, FromProxy::RestWanted { job }).await;
                        Stage::Waiting
                    }
                }
            }
            Stage::Received(_) | Stage::Lost(_) => return,
            Stage::Told(_) => return std::future::pending().await,
        };
    }
}

impl Journey {
    /// What [`next`] has waited for.
    pub(in crate::journey) async fn tell_rest(
        &mut self,
        writer: &mut ShimWriter,
    ) -> Result<(), FrameError> {
        let Some(mut late) = self.late.take() else {
            return Ok(());
        };
        let call = late.call;
        match late.stage {
            Stage::Received(received) => {
                let (file, delta, _) = received.as_ref();
                let delta = delta.clone();
                let rest = ToNotebook::Rest { call, delta };
                writer.send_with_file(&rest, file.as_fd()).await?;
                late.stage = Stage::Told(received);
                self.late = Some(late);
            }
            Stage::Lost(error) => {
                tracing::warn!(job.id = %late.job, error = %error.value, "Deferred state is lost");
                self.home = None;
                self.link.applied(late.job).await;
                writer.send(&ToNotebook::RestLost { call, error }).await?;
            }
            _ => self.late = Some(late),
        }
        Ok(())
    }

    /// The shim has applied it, or cannot.
    pub(in crate::journey) async fn rest_applied(&mut self, call: CallId, error: Option<String>) {
        let Some(late) = self.late.take_if(|late| late.call == call) else {
            return;
        };
        if let Some(error) = &error {
            tracing::warn!(job.id = %late.job, error, "Deferred state could not be applied");
        }
        let fits = |home: &Home| home.version == late.home.version;
        self.home = match (self.home.take().filter(fits), late.stage) {
            (Some(home), Stage::Told(received)) if error.is_none() => Some(Home {
                version: home.version.after_message(),
                ledger: received.2,
            }),
            _ => None,
        };
        self.link.applied(late.job).await;
    }

    /// Another call begins: a shim that had not taken it up will not.
    pub(super) fn tell_rest_again(&mut self) {
        if let Some(late) = &mut self.late {
            late.stage = match std::mem::replace(&mut late.stage, Stage::Waiting) {
                Stage::Told(received) => Stage::Received(received),
                stage => stage,
            };
        }
    }

    /// Another call has not come home: what this one left is needed after all.
    pub(super) async fn want_rest(&mut self) {
        if let Some(late) = &self.late
            && matches!(late.stage, Stage::Waiting)
        {
            let job = late.job;
            self.link.answer(job, FromProxy::RestWanted { job }).await;
        }
    }

    /// Another call has come home, and with it the place of what this one left.
    pub(super) async fn set_late(&mut self, late: Option<Late>) {
        self.link.watch(late.as_ref().map(|late| late.job));
        if let Some(before) = std::mem::replace(&mut self.late, late) {
            self.link.applied(before.job).await;
        }
    }
}

fn lost() -> RemoteError {
    Failure::rest_lost("The GPU machine no longer has the cell's results")
}
