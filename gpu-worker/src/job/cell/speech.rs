//! What the worker sends to the session, and how it handles the session's messages.

use std::os::fd::BorrowedFd;

use baton_protocol::shim::{Delta, FromSession, ToSession};
use baton_protocol::{Cell, Outcome};
use baton_transport::frames::FrameError;
use tokio::time::Instant;

use super::collecting::SessionEnd;
use super::limits::Cancel;
use super::{Phase, Question, Run};
use crate::gpu;
use crate::job::{Ending, Job};
use crate::messages;
use crate::session::Session;

pub(super) async fn send_cell(
    session: &mut Session,
    cell: &Cell,
    delta: Delta,
    file: BorrowedFd<'_>,
) -> Result<(), FrameError> {
    let run = ToSession::Run {
        message_id: cell.message_id.clone(),
        code: cell.code.clone(),
        silent: cell.silent,
        allow_stdin: cell.allow_stdin,
        execution_count: cell.execution_count,
        delta,
    };
    session.shim.send_with_file(&run, file).await
}

impl Run<'_> {
    pub(super) async fn on_said(
        &mut self,
        message: FromSession,
        job: &Job,
        cell: &Cell,
    ) -> Option<Ending> {
        match (message, std::mem::replace(&mut self.phase, Phase::Over)) {
            (FromSession::Started { .. }, Phase::Applying { ledger }) => {
                self.report_to_arbiter(gpu::Cell::Started);
                self.phase = Phase::Running {
                    ledger,
                    since: Instant::now(),
                };
                if self.cancel != Cancel::NotAsked {
                    // The first interrupt may have arrived before the session could handle it.
                    self.session.interrupt();
                }
            }
            (
                FromSession::Refused { error, .. },
                phase @ (Phase::Applying { .. } | Phase::Running { .. }),
            ) => {
                if let Phase::Running { since, .. } = phase {
                    self.ran_since(since);
                }
                let outcome = match self.cancel {
                    Cancel::NotAsked => Outcome::Refused,
                    Cancel::Asked(_) => Outcome::Cancelled,
                };
                return Some(Ending::without_state(outcome, error));
            }
            (
                FromSession::Finished {
                    outcome,
                    error,
                    state,
                    deferred_bytes,
                    keeps,
                    ..
                },
                Phase::Running { ledger, since },
            ) => {
                self.session.keeps = keeps;
                self.report_to_arbiter(gpu::Cell::Ended);
                self.ran_since(since);
                let (outcome, error) = if self.time_is_up && outcome == Outcome::Cancelled {
                    let error = messages::stopped_in_time(self.limit.unwrap_or_default(), error);
                    (Outcome::TimedOut, Some(error))
                } else {
                    (outcome, error)
                };
                let end = SessionEnd {
                    outcome,
                    error,
                    deferred_bytes,
                };
                return self.begin_collecting(end, state, ledger);
            }
            (FromSession::Ended { .. }, phase) => {
                self.phase = phase;
                self.ended = Some(Instant::now());
            }
            (FromSession::Published { output }, phase) => {
                self.phase = phase;
                self.batcher.push(output);
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
                let asked = Question::Input {
                    number: question,
                    prompt,
                    password,
                };
                self.ask(asked, job);
            }
            (FromSession::NamesWanted { names, .. }, phase @ Phase::Running { .. }) => {
                self.phase = phase;
                self.ask(Question::Names(names), job);
            }
            (unexpected, phase) => {
                self.phase = phase;
                tracing::warn!(
                    cell.message_id,
                    kind = kind(&unexpected),
                    "A session is out of step"
                );
            }
        }
        None
    }

    fn ran_since(&mut self, begin: Instant) {
        self.usage.run_ms = begin.elapsed().as_millis().try_into().unwrap_or(u64::MAX);
    }
}

fn kind(message: &FromSession) -> &'static str {
    match message {
        FromSession::Hello(_) => "hello",
        FromSession::Started { .. } => "started",
        FromSession::Ended { .. } => "ended",
        FromSession::Refused { .. } => "refused",
        FromSession::Published { .. } => "published",
        FromSession::InputWanted { .. } => "input_wanted",
        FromSession::NamesWanted { .. } => "names_wanted",
        FromSession::Finished { .. } => "finished",
        FromSession::DeferredReady { .. } => "deferred_ready",
        FromSession::Salvaged { .. } => "salvaged",
    }
}
