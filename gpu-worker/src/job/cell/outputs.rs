//! What a cell shows and asks, in order: a question is sent after the outputs before it.
//!
//! In: outputs and questions of the session. Out: the job's events, and the answers of the notebook.

use crate::{batch::Batcher, job::Job, messages, questions};
use baton_protocol::{Answer, JobEvent, Output, State};
use futures_util::{StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use std::time::Duration;
use tokio::time::Instant;

/// How long outputs wait before the next look, while too many bytes are not acknowledged yet.
const FULL_POLL: Duration = Duration::from_millis(60);

#[derive(Default)]
pub(super) struct Outputs {
    batcher: Batcher,
    /// A question that waits, like the outputs before it, until the broker accepts more.
    question: Option<Question>,
    /// Calls of `input()` that wait for the student, each with the session's own number.
    inputs: FuturesUnordered<BoxFuture<'static, (u64, Option<String>)>>,
    /// The cell asked for names that it was not given, and has no answer yet.
    names: Option<questions::Answered>,
}

/// What the cell asks its notebook.
pub(super) enum Question {
    Input {
        /// The session's own number of the question.
        number: u64,
        prompt: String,
        password: bool,
    },
    Names(Vec<String>),
}

/// The notebook's answer; `None` if it cannot answer.
pub(super) enum Answered {
    Input {
        question: u64,
        value: Option<String>,
    },
    Names(Option<State>),
}

impl Outputs {
    pub(super) fn push(&mut self, output: Output) {
        self.batcher.push(output);
    }

    pub(super) fn warn(&mut self, warnings: impl IntoIterator<Item = String>) {
        for warning in warnings {
            self.push(messages::warning(&warning));
        }
    }

    pub(super) fn ask(&mut self, question: Question, job: &Job) {
        self.question = Some(question);
        if !job.events.is_full() {
            self.flush(job);
        }
    }

    /// Whether another output would have to be left out.
    pub(super) fn is_full(&self) -> bool {
        self.batcher.is_full() || self.question.is_some()
    }

    /// When to call `flush`.
    pub(super) fn due(&self, job: &Job) -> Option<Instant> {
        let now = Instant::now();
        let due = match self.question {
            Some(_) => now,
            None => Instant::from_std(self.batcher.due(now.into_std())?),
        };
        Some(if job.events.is_full() {
            now + FULL_POLL
        } else {
            due
        })
    }

    pub(super) fn flush(&mut self, job: &Job) {
        for output in self.batcher.take(std::time::Instant::now()) {
            job.events.send(JobEvent::Output(output));
        }
        if let Some(question) = self.question.take() {
            self.send_question(question, job);
        }
    }

    fn send_question(&mut self, question: Question, job: &Job) {
        match question {
            Question::Input {
                number,
                prompt,
                password,
            } => {
                let answered = job.questions.ask(|question| JobEvent::InputWanted {
                    question,
                    prompt,
                    password,
                });
                self.inputs.push(Box::pin(async move {
                    match answered.await {
                        Ok(Answer::Input(value)) => (number, value),
                        _ => (number, None),
                    }
                }));
            }
            Question::Names(names) => {
                let ask = |question| JobEvent::NamesWanted { question, names };
                self.names = Some(job.questions.ask(ask));
            }
        }
    }

    /// Waits for the next answer. Cancel safe.
    pub(super) async fn answered(&mut self) -> Answered {
        tokio::select! {
            Some((question, value)) = self.inputs.next() => Answered::Input { question, value },
            names = next_names(&mut self.names) => Answered::Names(names),
        }
    }
}

async fn next_names(names: &mut Option<questions::Answered>) -> Option<State> {
    let Some(answered) = names else {
        return std::future::pending().await;
    };
    let answer = answered.await;
    *names = None;
    match answer {
        Ok(Answer::Names(state)) => Some(state),
        _ => None,
    }
}
