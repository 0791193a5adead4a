//! From the submission to the job's last event.

use std::time::Duration;

use baton_protocol::proxy::FromProxy;
use baton_protocol::shim::{FromNotebook, ToNotebook};
use baton_protocol::{JobEvent, Outcome, Parcel, RemoteError, State, Usage};
use tokio::time::Instant;

use super::Journey;
use super::current::{Call, Stop};
use super::names::sent;
use crate::journey::failure::Failure;
use crate::journey::link::{News, Step};
use crate::journey::notice::{Notice, Waiting};

/// How long an interrupted cell may still bring its state home; a worker gives a session less.
const CANCEL_PATIENCE: Duration = Duration::from_secs(5);
/// How long an interrupted cell waits for a broker that does not even say that it has heard.
const CANCEL_SILENCE: Duration = Duration::from_millis(500);

pub(super) struct Finished {
    pub(super) outcome: Outcome,
    pub(super) error: Option<RemoteError>,
    pub(super) state: Option<State>,
    pub(super) usage: Usage,
    pub(super) files: Option<Parcel>,
    /// What the state leaves out.
    pub(super) away_bytes: u64,
}

impl Journey {
    /// From the submission to the job's last event.
    pub(super) async fn follow(&mut self, call: &mut Call<'_>) -> Result<Finished, Stop> {
        let mut cancelled: Option<(Instant, Duration)> = None;
        let mut down_since: Option<Instant> = None;
        let mut names = None;
        call.notice.waits(Waiting::Starting { worker: None });
        loop {
            let mut look = call.notice.next_look(call.now());
            if let Some((since, patience)) = cancelled {
                look = look.min(patience.saturating_sub(since.elapsed()));
            }
            tokio::select! {
                step = self.link.next_of(call.job) => match step {
                    Step::News(News::Cancelling) => {
                        if let Some((_, patience)) = &mut cancelled {
                            *patience = CANCEL_PATIENCE;
                        }
                    }
                    Step::News(News::Lost) => return Err(Failure::job_lost(call.job).into()),
                    Step::News(News::Place(place)) => {
                        call.is_stored = true;
                        let since = call.now();
                        call.notice.waits(Waiting::Queued { place, since });
                    }
                    Step::News(News::Event(event)) => match *event {
                        JobEvent::Finished { outcome, error, state, usage, files, away_bytes } => {
                            return Ok(Finished { outcome, error, state, usage, files, away_bytes });
                        }
                        event => self.pass_on(call, event).await?,
                    },
                    Step::Status(status) => match call.lanes(status)? {
                        Ok(lanes) => {
                            down_since = None;
                            self.say_files_again(call).await;
                            self.files.answer(call.job, &lanes.chunks);
                        }
                        Err(_) => {
                            down_since.get_or_insert_with(Instant::now);
                            call.notice.waits(Waiting::Connecting);
                        }
                    },
                },
                (question, answer) = self.files.next_answer(call.job) => {
                    self.link.send(FromProxy::Files { job: call.job, question, answer }).await;
                }
                message = call.reader.receive() => match message? {
                    Some(FromNotebook::State { call: number, state }) if number == call.number => {
                        let state = self.send_state(call, state).await?;
                        self.link.send(FromProxy::State { job: call.job, state }).await;
                        call.release().await?;
                    }
                    Some(FromNotebook::Names { call: number, state }) if number == call.number => {
                        names = Some(self.begin_names(call, state)?);
                    }
                    Some(FromNotebook::Input { call: number, value }) if number == call.number => {
                        let (job, question) = (call.job, call.input.unwrap_or_default());
                        self.link.answer(job, FromProxy::Input { job, question, value }).await;
                    }
                    other => match call.stop_of(other) {
                        Some(Stop::Cancelled) if down_since.is_none() => {
                            self.link.send(FromProxy::Cancel { job: call.job }).await;
                            cancelled.get_or_insert_with(|| (Instant::now(), CANCEL_SILENCE));
                        }
                        Some(stop) => return Err(stop),
                        None => {}
                    },
                },
                sent = sent(&mut names) => {
                    names = None;
                    self.send_names(call, sent).await?;
                }
                () = tokio::time::sleep(look) => {
                    self.put_out(call, Notice::look);
                }
            }
            if cancelled.is_some_and(|(since, patience)| since.elapsed() >= patience) {
                return Err(Stop::Cancelled);
            }
            if down_since.is_some_and(|since| since.elapsed() > self.patience) {
                return Err(Failure::no_answer(None, call.job).into());
            }
        }
    }

    async fn pass_on(&mut self, call: &mut Call<'_>, event: JobEvent) -> Result<(), Stop> {
        call.is_stored = true;
        let number = call.number;
        match event {
            JobEvent::Assigned {
                worker,
                gpu,
                timeout_ms,
            } => {
                let now = call.now();
                call.notice.assigned(worker.clone(), gpu, timeout_ms, now);
                call.worker = Some(worker);
            }
            JobEvent::StateWanted {} | JobEvent::BytesWanted {} => {
                if matches!(event, JobEvent::BytesWanted {}) {
                    self.moving.use_chunks();
                }
                self.home = None;
                let wanted = ToNotebook::StateWanted { call: number };
                call.writer.send(&wanted).await?;
            }
            JobEvent::Started { worker } => {
                call.started = true;
                self.ended.forget();
                call.notice.starts(call.now());
                call.worker = Some(worker);
            }
            JobEvent::Output(output) => self.show(call, output).await?,
            JobEvent::FilesWanted { question, wanted } => {
                self.files.asked(question, wanted);
                if let Ok(lanes) = call.lanes(self.link.status())? {
                    self.files.answer(call.job, &lanes.chunks);
                }
            }
            JobEvent::InputWanted {
                question,
                prompt,
                password,
            } => {
                call.input = Some(question);
                let wanted = ToNotebook::InputWanted {
                    call: number,
                    prompt,
                    password,
                };
                call.writer.send(&wanted).await?;
            }
            JobEvent::NamesWanted {
                number: question,
                names,
            } => {
                call.question = Some(question);
                let wanted = ToNotebook::NamesWanted {
                    call: number,
                    names,
                };
                call.writer.send(&wanted).await?;
            }
            JobEvent::Charged(left) => call.notice.charged(left),
            // The first goes no further than the broker.
            JobEvent::NotStarted { .. } | JobEvent::Finished { .. } | JobEvent::Rest { .. } => {}
        }
        Ok(())
    }
}
