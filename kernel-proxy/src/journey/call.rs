//! One call of the shim: from the snapshot of a `%%gpu` cell to its change being applied at home.
//!
//! Every wait here also listens to the shim, so that an interrupt works in every phase.
//!
//! **Invariant:** the state comes home whole or not at all; whatever ends a call early voids the object table on
//! both ends, and the next call starts a new one.

mod current;
mod files;
mod follow;
mod names;
mod rest;
mod state;

use std::time::Duration;

use baton_jupyter_wire::shim::{ShimReader, ShimWriter};
use baton_protocol::shim::{Hello, Run, ToNotebook};
use baton_protocol::{CallId, Cell, JobId, NotebookId, Outcome, Output, Submission, Usage};
use baton_transport::frames::FrameError;
use bytes::Bytes;
use tokio::time::Instant;
use tracing::Instrument;

use self::current::{Call, Stop};
use self::rest::Late;
use self::state::Home;
use super::failure::Failure;
use super::files::HomeFiles;
use super::link::{EndedSessions, Lanes, Link};
use super::moving::Moving;
use super::naming::Naming;
use super::notice::{Line, Notice};
use super::shown::Shown;
use crate::config::TrashConfig;
use crate::relay::{Relay, is_visible};

/// How long a cell waits for a broker that was never reached.
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Journey {
    relay: Relay,
    link: Link,
    ended: EndedSessions,
    moving: Moving,
    files: HomeFiles,
    notebook: NotebookId,
    naming: Naming,
    /// How long a cell waits for a broker that went away while the job was its business.
    patience: Duration,
    python: String,
    python_version: String,
    /// What the session holds; none before the first cell and after anything that went wrong.
    home: Option<Home>,
    /// What a call that has come home left in its session.
    late: Option<Late>,
    shown: Shown,
    /// The cell below which that of the last call stands.
    shown_in: Option<String>,
    /// The worker that has the session.
    session_on: Option<String>,
}

/// What may happen while no call runs.
pub(super) enum BetweenCalls {
    /// There is something to tell the shim of what a call left.
    Rest,
    /// On this worker.
    SessionEnded(String),
}

pub(super) enum CallEnd {
    Done,
    /// The shim gave this call up and began another.
    Replaced(Box<Run>),
    KernelGone,
}

impl Journey {
    pub(super) fn new(
        relay: Relay,
        (link, ended): (Link, EndedSessions),
        moving: Moving,
        notebook: NotebookId,
        trash: TrashConfig,
        patience: Duration,
    ) -> Self {
        Self {
            relay,
            link,
            ended,
            moving,
            files: HomeFiles::new(trash),
            notebook,
            naming: Naming::new(),
            patience,
            python: String::new(),
            python_version: String::new(),
            home: None,
            late: None,
            shown: Shown::default(),
            shown_in: None,
            session_on: None,
        }
    }

    pub(super) fn greeted(&mut self, hello: Hello) {
        self.python = hello.python;
        self.python_version = hello.python_version;
    }

    /// The kernel's table is gone, so what the session holds is of no use.
    pub(super) async fn forget_state(&mut self) {
        self.home = None;
        self.set_late(None).await;
    }

    /// Cancel safe.
    pub(super) async fn between_calls(&mut self) -> BetweenCalls {
        loop {
            let ended = tokio::select! {
                () = rest::next(&mut self.late, &mut self.link) => return BetweenCalls::Rest,
                worker = self.ended.next() => worker,
            };
            let is_its_own = self.session_on.as_ref() == Some(&ended);
            if self.home.is_some() && is_its_own {
                return BetweenCalls::SessionEnded(ended);
            }
        }
    }

    /// What it held is the shim's to know.
    pub(super) async fn tell_session_ended(
        &mut self,
        worker: String,
        writer: &mut ShimWriter,
    ) -> Result<(), FrameError> {
        tracing::info!("The session on {worker} ended, and the objects that only it held are lost");
        self.home = None;
        writer.send(&ToNotebook::SessionEnded { worker }).await
    }

    pub(super) async fn run(
        &mut self,
        run: Run,
        reader: &mut ShimReader,
        writer: &mut ShimWriter,
    ) -> Result<CallEnd, FrameError> {
        let job = JobId::random();
        self.tell_rest_again();
        let mut call = Call::new(job, &run, reader, writer);
        let span = tracing::error_span!("job", job.id = %job);
        let result = self.travel(&mut call, run).instrument(span).await;
        let stop = match result {
            Ok(()) => return Ok(CallEnd::Done),
            Err(stop) => stop,
        };
        self.home = None;
        let told = match &stop {
            Stop::Failed(failure) => Some(failure.outcome),
            _ => (!call.withdrawn).then_some(Outcome::Cancelled),
        };
        self.link.give_up(job, told).await;
        self.want_rest().await;
        self.close_comms(&mut call);
        if matches!(stop, Stop::Cancelled | Stop::GivenUp | Stop::Failed(_)) {
            self.tell_of_files(&mut call).await;
        }
        match stop {
            Stop::Cancelled | Stop::GivenUp => {
                self.end_line(&mut call);
                let finished = ToNotebook::Finished {
                    call: call.number,
                    outcome: Outcome::Cancelled,
                    error: None,
                    delta: None,
                    summary: None,
                };
                call.writer.send(&finished).await?;
                Ok(CallEnd::Done)
            }
            Stop::Failed(failure) => {
                self.end_line(&mut call);
                tracing::warn!(job.id = %job, error = %failure.error.value, "A %%gpu cell did not run");
                let failed = ToNotebook::Failed {
                    call: call.number,
                    outcome: failure.outcome,
                    error: failure.error,
                };
                call.writer.send(&failed).await?;
                Ok(CallEnd::Done)
            }
            Stop::Replaced(run) => Ok(CallEnd::Replaced(run)),
            Stop::KernelGone => Ok(CallEnd::KernelGone),
            Stop::Shim(error) => Err(error),
        }
    }

    async fn travel(&mut self, call: &mut Call<'_>, run: Run) -> Result<(), Stop> {
        self.link.wake().await;
        let lanes = self.lanes(call, CONNECT_PATIENCE).await?;
        let mut cell = self.cell(&run);
        cell.notebook_folder = self.notebook_folder(call, &lanes).await?;
        let cell_key = Some(self.naming.cell_key(&run.code, &self.link.status()));
        let priority = run.priority;
        let state = self.send_state(call, run.state).await?;
        self.link
            .submit(Submission {
                job: call.job,
                notebook: self.notebook,
                notebook_name: self.naming.notebook.clone(),
                cell_key,
                priority,
                cell,
                state,
            })
            .await;
        call.release().await?;
        let finished = self.follow(call).await?;
        self.bring_home(call, finished).await
    }

    /// Waits for the broker, while trying again is of use.
    async fn lanes(&mut self, call: &mut Call<'_>, patience: Duration) -> Result<Lanes, Stop> {
        let since = Instant::now();
        loop {
            let reason = match call.lanes(self.link.status())? {
                Ok(lanes) => return Ok(lanes),
                Err(reason) => reason,
            };
            if since.elapsed() > patience {
                return Err(Failure::no_answer(reason.as_deref(), call.job).into());
            }
            let look = call.notice.next_look(call.now());
            tokio::select! {
                () = self.link.status_changed() => {}
                () = tokio::time::sleep(look) => {
                    self.put_out(call, Notice::look);
                }
                stop = call.stopped() => return Err(stop),
            }
        }
    }

    fn cell(&self, run: &Run) -> Cell {
        Cell {
            code: run.code.clone(),
            message_id: run.message_id.clone(),
            execution_count: run.execution_count,
            silent: run.silent,
            timeout_ms: run.timeout_ms,
            longest_timeout_ms: None,
            gpu_memory_bytes: run.gpu_memory_bytes,
            allow_stdin: run.allow_stdin,
            python: self.python.clone(),
            python_version: self.python_version.clone(),
            folder: run.folder.clone(),
            notebook_folder: None,
        }
    }

    fn put_out(
        &self,
        call: &mut Call<'_>,
        line: impl FnOnce(&mut Notice, Duration) -> Option<Line>,
    ) {
        let now = call.now();
        if let Some(line) = line(&mut call.notice, now) {
            let content = line.content.as_bytes();
            self.relay
                .inject(&call.parent, line.kind, content, b"{}", &[]);
        }
    }

    /// Removes the line that stands, at once or when something takes its place. There is no message that removes one
    /// output, only all of a cell; so where the cell has shown something else, the line stays.
    fn remove_line(&self, call: &mut Call<'_>, when_replaced: bool) {
        let is_alone = !self.relay.has_output(&call.parent)
            && self.shown_in.as_ref() != Some(&call.parent.message_id);
        if call.notice.stands() && is_alone {
            let content = serde_json::json!({"wait": when_replaced}).to_string();
            self.relay
                .inject(&call.parent, "clear_output", content.as_bytes(), b"{}", &[]);
            call.notice.is_gone();
        }
    }

    /// The last word on a cell that came home: for the shim, which knows when the cell has shown everything, unless it
    /// is said in the line that stands.
    fn summary(&self, call: &mut Call<'_>, usage: Usage) -> Option<Output> {
        self.remove_line(call, true);
        let text = call.notice.summary(call.now(), usage)?;
        if call.notice.stands() {
            self.put_out(call, |notice, now| Some(notice.show(&text, now)));
            return None;
        }
        let line = Line::new(&text);
        Some(Output {
            kind: line.kind.to_owned(),
            content: line.content.into(),
            metadata: Bytes::from_static(b"{}"),
            buffers: Vec::new(),
        })
    }

    /// Of a cell that brings nothing home: what the student reads next says why.
    fn end_line(&self, call: &mut Call<'_>) {
        self.remove_line(call, false);
        if call.notice.stands() {
            self.put_out(call, |notice, now| {
                Some(notice.show("The cell did not finish", now))
            });
        }
    }

    /// Where a cell without Baton would show it.
    async fn show(&mut self, call: &mut Call<'_>, output: Output) -> Result<(), Stop> {
        call.note_comm(&output);
        if !call.captured {
            self.shown.note(call.number, &output);
            if is_visible(&output.kind) {
                self.remove_line(call, true);
                call.notice.output_came();
                self.shown_in = Some(call.parent.message_id.clone());
            } else if output.kind == "clear_output" {
                call.notice.is_gone();
            }
            self.inject(call, &output);
            return Ok(());
        }
        let publish = ToNotebook::Publish {
            call: call.number,
            output,
        };
        Ok(call.writer.send(&publish).await?)
    }

    /// What an earlier call showed, for the shim to show it again.
    pub(super) async fn show_again(
        &self,
        call: CallId,
        writer: &mut ShimWriter,
    ) -> Result<(), FrameError> {
        let (outputs, missing) = self.shown.of(call);
        for output in outputs {
            writer.send(&ToNotebook::Publish { call, output }).await?;
        }
        let given = ToNotebook::OutputGiven { call, missing };
        writer.send(&given).await
    }

    /// Nobody is there whom what the cell opened could reach.
    fn close_comms(&self, call: &mut Call<'_>) {
        for comm in call.comms.drain(..) {
            let content = serde_json::json!({"comm_id": comm, "data": {}}).to_string();
            self.relay
                .inject(&call.parent, "comm_close", content.as_bytes(), b"{}", &[]);
        }
    }

    fn inject(&self, call: &Call<'_>, output: &Output) {
        self.relay.inject(
            &call.parent,
            &output.kind,
            &output.content,
            &output.metadata,
            &output.buffers,
        );
    }
}
