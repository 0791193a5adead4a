//! The running call: what its phases share, and how the shim may end it.

use std::time::Duration;

use baton_jupyter_wire::message::{iopub_topic, message_type};
use baton_jupyter_wire::shim::{ShimReader, ShimWriter};
use baton_protocol::shim::{FromNotebook, Run, Snapshot, ToNotebook};
use baton_protocol::{JobId, Output};
use baton_transport::Held;
use baton_transport::frames::FrameError;
use bytes::Bytes;
use tokio::time::Instant;

use crate::journey::failure::Failure;
use crate::journey::link::{Lanes, Status};
use crate::journey::notice::Notice;
use crate::relay::ParentCell;

/// What all phases of one call share.
pub(super) struct Call<'a> {
    pub(super) job: JobId,
    pub(super) parent: ParentCell,
    pub(super) captured: bool,
    pub(super) number: u64,
    pub(super) began: Instant,
    pub(super) notice: Notice,
    /// The broker has spoken of the job, so it has it.
    pub(super) is_stored: bool,
    pub(super) worker: Option<String>,
    /// The cell may have written files.
    pub(super) started: bool,
    /// The shim sends the cell anew.
    pub(super) withdrawn: bool,
    /// Comms that the cell opened. The notebook has them once its change is applied.
    pub(super) comms: Vec<String>,
    /// What workers on this machine may fetch, as long as the call lasts.
    pub(super) held: Option<Held>,
    /// The last question to the student.
    pub(super) input: Option<u64>,
    /// The last question for names that the cell looked up.
    pub(super) question: Option<u64>,
    /// The same as `held`, of the answer to it.
    pub(super) names_held: Option<Held>,
    pub(super) reader: &'a mut ShimReader,
    pub(super) writer: &'a mut ShimWriter,
}

fn comm_of(topic: &str) -> String {
    topic.strip_prefix("comm-").unwrap_or(topic).to_owned()
}

/// Why a call ends without a result.
pub(super) enum Stop {
    Cancelled,
    /// The shim takes nothing of the call any more.
    GivenUp,
    Replaced(Box<Run>),
    KernelGone,
    Failed(Box<Failure>),
    Shim(FrameError),
}

impl From<FrameError> for Stop {
    fn from(error: FrameError) -> Self {
        Self::Shim(error)
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(Box::new(failure))
    }
}

impl<'a> Call<'a> {
    pub(super) fn new(
        job: JobId,
        run: &Run,
        reader: &'a mut ShimReader,
        writer: &'a mut ShimWriter,
    ) -> Self {
        let kind = message_type(&run.parent_header);
        let is_callback = kind.is_some_and(|kind| kind != "execute_request");
        Self {
            job,
            parent: ParentCell {
                header: Bytes::from(run.parent_header.clone().into_vec()),
                message_id: run.message_id.clone(),
                kernel_session: run.kernel_session.clone(),
                silent: run.silent || is_callback,
            },
            captured: run.captured,
            number: run.call,
            began: Instant::now(),
            notice: Notice::new(format!("baton-{job}"), run.quiet || run.silent),
            is_stored: false,
            worker: None,
            started: false,
            withdrawn: false,
            comms: Vec::new(),
            held: None,
            input: None,
            question: None,
            names_held: None,
            reader,
            writer,
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The ways to a worker, or why there are none yet.
    pub(super) fn lanes(&self, status: Status) -> Result<Result<Lanes, Option<String>>, Stop> {
        match status {
            Status::Up(lanes) => Ok(Ok(lanes)),
            Status::Down { reason } => Ok(Err(reason)),
            Status::Unable { reason } if self.is_stored => Ok(Err(Some(reason))),
            Status::Unable { reason } => Err(Failure::unable(&reason, self.job).into()),
            Status::Refused(obstacle) => Err(Failure::refused(&obstacle, self.job).into()),
        }
    }

    pub(super) fn note_comm(&mut self, output: &Output) {
        let topic = || iopub_topic(&output.kind, &output.content);
        match output.kind.as_str() {
            "comm_open" => self.comms.push(comm_of(&topic())),
            "comm_close" => self.comms.retain(|comm| *comm != comm_of(&topic())),
            _ => {}
        }
    }

    /// Tells the shim that its memory was read. What was made of it goes out first: the service is what the student
    /// waits for, and a shim that was woken takes a processor.
    pub(super) async fn release(&mut self) -> Result<(), Stop> {
        tokio::task::yield_now().await;
        let released = ToNotebook::Released { call: self.number };
        Ok(self.writer.send(&released).await?)
    }

    /// The shim's new table, whole.
    pub(super) async fn whole_state(&mut self) -> Result<Snapshot, Stop> {
        let wanted = ToNotebook::StateWanted { call: self.number };
        self.writer.send(&wanted).await?;
        loop {
            match self.reader.receive().await? {
                Some(FromNotebook::State { call, state }) if call == self.number => {
                    return Ok(state);
                }
                other => {
                    if let Some(stop) = self.stop_of(other) {
                        return Err(stop);
                    }
                }
            }
        }
    }

    /// Whether the shim applied the change; with no it kept everything as it was before the cell.
    pub(super) async fn applied(&mut self) -> Result<bool, Stop> {
        loop {
            match self.reader.receive().await? {
                Some(FromNotebook::Applied { call, error }) if call == self.number => {
                    if let Some(error) = &error {
                        tracing::warn!(job.id = %self.job, error, "A cell's change could not be applied");
                    }
                    return Ok(error.is_none());
                }
                // Too late for an interrupt: the change is being applied.
                Some(FromNotebook::Cancel { .. }) => {}
                other => {
                    if let Some(stop) = self.stop_of(other) {
                        return Err(stop);
                    }
                }
            }
        }
    }

    /// Waits until the shim wants this call to end. Cancel safe.
    pub(super) async fn stopped(&mut self) -> Stop {
        loop {
            let message = match self.reader.receive().await {
                Ok(message) => message,
                Err(error) => return Stop::Shim(error),
            };
            if let Some(stop) = self.stop_of(message) {
                return stop;
            }
        }
    }

    pub(super) fn stop_of(&mut self, message: Option<FromNotebook>) -> Option<Stop> {
        match message {
            None => Some(Stop::KernelGone),
            Some(FromNotebook::Run(run)) => Some(Stop::Replaced(Box::new(run))),
            Some(FromNotebook::Cancel { call }) if call == self.number => Some(Stop::Cancelled),
            Some(FromNotebook::Withdraw { call }) if call == self.number => {
                self.withdrawn = true;
                Some(Stop::Cancelled)
            }
            Some(FromNotebook::GiveUp { call }) if call == self.number => Some(Stop::GivenUp),
            Some(late) => {
                tracing::debug!(?late, "Ignored an unexpected message");
                None
            }
        }
    }
}
