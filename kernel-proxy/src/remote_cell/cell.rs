//! The running cell: what its steps share, its messages to the shim, and how the shim ends it.

use super::{
    autostart::Obstacle,
    deferred::Applied,
    failure::{Absence, Failure, Meanwhile, NamedJob},
    link::Status,
    session_state::SessionState,
    status_line::StatusLine,
    stop::{Connection, Stop},
};
use crate::relay::{MessageNumber, ParentCell};
use baton_jupyter_wire::{
    message::{iopub_topic, message_type},
    shim::{ShimReader, ShimWriter},
};
use baton_protocol::{
    CallId, Cell, ClientJob, Finished, GroupId, JobId, JobKind, Outcome, Output, RemoteError,
    shim::{Attach, FromNotebook, Ran, Run, ToNotebook},
};
use baton_transport::HeldMemory;
use bytes::Bytes;
use std::{collections::VecDeque, time::Duration};
use tokio::time::Instant;

/// What the steps of one cell share.
pub(super) struct RemoteCell<'a> {
    pub(super) job: JobId,
    pub(super) kind: JobKind,
    pub(super) group: Option<GroupId>,
    pub(super) parent: ParentCell,
    pub(super) captured: bool,
    /// The shim's number for this run.
    pub(super) call: CallId,
    pub(super) began: Instant,
    pub(super) status_line: StatusLine,
    /// The broker's messages have shown that it stored the job.
    pub(super) is_stored: bool,
    pub(super) worker: Option<String>,
    /// What the session holds if it did not receive the cell's state.
    pub(super) session_before: Option<SessionState>,
    /// A worker may have received the cell's state.
    pub(super) state_may_have_arrived: bool,
    /// The cell may have written files.
    pub(super) started: bool,
    pub(super) has_ended: bool,
    /// The obstacle that its owner was last warned of, since the broker could last be used.
    pub(super) warned_of: Option<Obstacle>,
    /// The shim will submit the cell again.
    pub(super) withdrawn: bool,
    /// The student interrupted it, and the broker has been asked to cancel its job.
    pub(super) cancelled_here: bool,
    /// Comms that the cell opened. The notebook owns them once the cell's changes are applied.
    pub(super) comms: Vec<String>,
    /// State that workers on this machine may fetch while the cell runs.
    pub(super) held: Option<HeldMemory>,
    /// Questions for a complete state that the shim has not answered yet.
    pub(super) states_wanted: VecDeque<u64>,
    /// The question that the cell last asked the student.
    pub(super) input_question: Option<u64>,
    /// The last question for names that the cell looked up.
    pub(super) names_question: Option<u64>,
    /// Like `held`, for the answer to that question.
    pub(super) names_held: Option<HeldMemory>,
    /// Earlier calls whose output the shim wants again.
    pub(super) outputs_wanted: Vec<CallId>,
    /// What the shim said of earlier cells meanwhile.
    pub(super) earlier_applied: Vec<Applied>,
    pub(super) reader: &'a mut ShimReader,
    pub(super) writer: &'a mut ShimWriter,
}

/// Where the output of a cell appears.
struct OutputTarget {
    parent: ParentCell,
    captured: bool,
    quiet: bool,
}

impl<'a> RemoteCell<'a> {
    pub(super) fn new(
        job: ClientJob,
        run: &Run,
        reader: &'a mut ShimReader,
        writer: &'a mut ShimWriter,
    ) -> Self {
        let message = message_type(&run.parent_header);
        let is_callback = message.is_some_and(|message| message != "execute_request");
        let parent = ParentCell {
            header: Bytes::from(run.parent_header.clone().into_vec()),
            message_id: run.message_id.clone(),
            kernel_session: run.kernel_session.clone(),
            after: run.after.as_deref().and_then(MessageNumber::read),
            silent: run.silent || is_callback,
            background: job.kind == JobKind::Background,
        };
        let target = OutputTarget {
            parent,
            captured: run.captured,
            quiet: run.quiet || run.silent,
        };
        Self::at(target, job, run.call, reader, writer)
    }

    /// What the broker and the worker get, apart from state and folder.
    pub(super) fn request(&self, run: &Run, python: &str, python_version: &str) -> Cell {
        Cell {
            code: run.code.clone(),
            message_id: run.message_id.clone(),
            execution_count: run.execution_count,
            kind: self.kind,
            silent: run.silent,
            timeout_ms: run.timeout_ms,
            longest_timeout_ms: None,
            gpu_memory_bytes: run.gpu_memory_bytes,
            gpu: run.gpu.clone(),
            environment: run.environment.clone(),
            allow_stdin: run.allow_stdin,
            python: python.to_owned(),
            python_version: python_version.to_owned(),
            folder: run.folder.clone(),
            notebook_folder: None,
        }
    }

    /// The cell that attaches a job of an earlier kernel.
    pub(super) fn attaching(
        attach: Attach,
        reader: &'a mut ShimReader,
        writer: &'a mut ShimWriter,
    ) -> Self {
        let parent = ParentCell {
            header: Bytes::from(attach.parent_header.into_vec()),
            message_id: attach.message_id,
            kernel_session: attach.kernel_session,
            after: None,
            silent: false,
            background: false,
        };
        let target = OutputTarget {
            parent,
            captured: attach.captured,
            quiet: false,
        };
        let job = ClientJob {
            id: attach.job,
            kind: JobKind::Background,
            group: None,
        };
        Self::at(target, job, attach.call, reader, writer)
    }

    fn at(
        target: OutputTarget,
        ClientJob {
            id: job,
            kind,
            group,
        }: ClientJob,
        call: CallId,
        reader: &'a mut ShimReader,
        writer: &'a mut ShimWriter,
    ) -> Self {
        Self {
            job,
            kind,
            group,
            parent: target.parent,
            captured: target.captured,
            call,
            began: Instant::now(),
            status_line: StatusLine::new(format!("baton-{job}"), kind, target.quiet),
            is_stored: false,
            worker: None,
            session_before: None,
            state_may_have_arrived: false,
            started: false,
            has_ended: false,
            warned_of: None,
            withdrawn: false,
            cancelled_here: false,
            comms: Vec::new(),
            held: None,
            states_wanted: VecDeque::new(),
            input_question: None,
            names_question: None,
            names_held: None,
            outputs_wanted: Vec::new(),
            earlier_applied: Vec::new(),
            reader,
            writer,
        }
    }

    pub(super) fn named_job(&self) -> NamedJob {
        NamedJob {
            id: self.job,
            kind: self.kind,
        }
    }

    pub(super) fn ran(&self) -> Ran {
        Ran {
            job: self.job.short(),
            worker: self.worker.clone(),
            gpu_time: self.status_line.gpu_time_left(),
        }
    }

    pub(super) fn cancelled(&self, table_kept: bool) -> ToNotebook {
        ToNotebook::Finished {
            call: self.call,
            outcome: Outcome::Cancelled,
            error: None,
            delta: None,
            table_kept,
            ran: Some(self.ran()),
            summary: None,
        }
    }

    pub(super) fn failed(&self, failure: Failure, table_kept: bool) -> ToNotebook {
        tracing::warn!(job.id = %self.job, error = %failure.error.value, "A %%gpu cell returned no result");
        ToNotebook::Failed {
            call: self.call,
            outcome: failure.outcome,
            error: failure.error,
            table_kept,
            ran: Some(self.ran()),
        }
    }

    /// Whether its job did not start because the notebook, which runs other cells meanwhile, did not answer in time.
    pub(super) fn may_begin_again(&self, end: &Finished) -> bool {
        let error = end.error.as_ref();
        let is_silent = error.is_some_and(|error| error.name == RemoteError::NOTEBOOK_SILENT);
        self.kind.outlives_kernel() && !self.started && is_silent
    }

    /// Another job will run the cell. Returns the one that did not start.
    pub(super) fn begin_again(&mut self) -> JobId {
        (self.is_stored, self.has_ended, self.worker) = (false, false, None);
        std::mem::replace(&mut self.job, JobId::random())
    }

    /// How long it waits for a broker that is unreachable. The result of a cell that continues alone is never given up.
    pub(super) fn patience(&self, usual: Duration) -> Duration {
        match self.continues_alone() {
            true => Duration::MAX,
            false => usual,
        }
    }

    /// The broker lets it continue although its notebook is away.
    fn continues_alone(&self) -> bool {
        self.kind.outlives_kernel() && self.started
    }

    /// What happens to it while the broker refuses its notebook.
    pub(super) fn meanwhile(&self) -> Meanwhile {
        match self.has_ended {
            true => Meanwhile::HasEnded,
            false if self.continues_alone() => Meanwhile::Continues,
            false => Meanwhile::Stops,
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// What the link's status means for this cell. A cell that no worker has does not wait for a broker that refuses its
    /// notebook: the broker gives it up within seconds.
    pub(super) fn connection(&self, status: Status) -> Result<Connection, Stop> {
        match status {
            Status::Up(broker) => Ok(Connection::Up(broker)),
            Status::Down { reason } => Ok(Connection::Down(Absence::NoAnswer { reason })),
            Status::Unable { reason } if self.is_stored => {
                let reason = Some(reason);
                Ok(Connection::Down(Absence::NoAnswer { reason }))
            }
            Status::Refused(obstacle) if self.worker.is_some() && !obstacle.is_final => {
                Ok(Connection::Down(Absence::Refused(obstacle)))
            }
            Status::Unable { reason } => Err(Failure::unable(&reason, self.named_job()).into()),
            Status::Refused(obstacle) if self.continues_alone() => {
                let failure = Failure::left(&obstacle, self.named_job());
                Err(Stop::Detached(Box::new(failure)))
            }
            Status::Refused(obstacle) => {
                Err(Failure::refused(&obstacle, self.named_job(), self.started).into())
            }
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

    /// Tells the shim that its memory has been read. Messages to the broker are sent first: the
    /// student waits for those, and the shim takes a processor when it wakes.
    pub(super) async fn release(&mut self) -> Result<(), Stop> {
        tokio::task::yield_now().await;
        let released = ToNotebook::Released { call: self.call };
        Ok(self.writer.send(&released).await?)
    }

    /// How the message ends the cell. Requests for earlier output and news of earlier cells are noted.
    pub(super) fn stop_of(&mut self, message: Option<FromNotebook>) -> Option<Stop> {
        match message {
            None => Some(Stop::KernelGone),
            Some(FromNotebook::Run(run)) => Some(Stop::Replaced(Box::new(run))),
            Some(FromNotebook::Cancel { call }) if call == self.call => Some(Stop::Cancelled),
            Some(FromNotebook::Withdraw { call }) if call == self.call => {
                self.withdrawn = true;
                Some(Stop::Cancelled)
            }
            Some(FromNotebook::GiveUp { call }) if call == self.call => Some(Stop::GivenUp),
            Some(FromNotebook::Ending { call }) => Some(Stop::Ending(call)),
            Some(FromNotebook::OutputWanted { call }) => {
                self.outputs_wanted.push(call);
                None
            }
            Some(FromNotebook::Applied { call, error }) => {
                self.earlier_applied.push((call, error));
                None
            }
            Some(unexpected) => {
                tracing::debug!(?unexpected, "Ignored an unexpected message");
                None
            }
        }
    }
}

fn comm_of(topic: &str) -> String {
    topic.strip_prefix("comm-").unwrap_or(topic).to_owned()
}
