//! A job's questions to the proxy about files, and the answers.
//!
//! **Invariant:** until a question is answered, it is repeated after each new connection to the broker.

use std::collections::BTreeMap;

use baton_mirror::{open_payload, small_payload};
use baton_protocol::JobEvent;
use baton_protocol::files::{FilesAnswer, FilesWanted, Payload};
use baton_transport::ChunkClient;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::report::EventSink;
use crate::transfer::TransferError;

pub(crate) struct Questions {
    events: EventSink,
    answers: mpsc::UnboundedReceiver<(u64, Payload)>,
    /// The notebook kernel has ended, so no answer can arrive.
    orphaned: CancellationToken,
    /// Counts the connections to the broker.
    connections: watch::Receiver<u64>,
    chunk_client: ChunkClient,
    open: BTreeMap<u64, Payload>,
    last: u64,
}

impl Questions {
    pub(crate) fn new(
        events: EventSink,
        answers: mpsc::UnboundedReceiver<(u64, Payload)>,
        orphaned: CancellationToken,
        connections: watch::Receiver<u64>,
        chunk_client: ChunkClient,
    ) -> Self {
        Self {
            events,
            answers,
            orphaned,
            connections,
            chunk_client,
            open: BTreeMap::new(),
            last: 0,
        }
    }

    /// Asks a question. Returns its number, by which [`Self::next`] identifies the answer.
    pub(crate) fn ask(&mut self, wanted: &FilesWanted) -> u64 {
        self.last += 1;
        let question = self.last;
        self.open.insert(question, small_payload(wanted));
        self.say(question);
        question
    }

    /// Waits for the next answer. Cancel safe.
    pub(crate) async fn next(&mut self) -> (u64, Payload) {
        loop {
            tokio::select! {
                answer = self.answers.recv() => match answer {
                    Some((question, answer)) => if self.open.remove(&question).is_some() {
                        return (question, answer);
                    },
                    // The agent has ended, so no answer can arrive.
                    None => std::future::pending().await,
                },
                () = self.orphaned.cancelled(), if !self.open.is_empty() => {
                    if let Some((question, _)) = self.open.pop_first() {
                        return (question, small_payload(&no_answer()));
                    }
                }
                changed = self.connections.changed() => match changed {
                    Ok(()) => self.open.keys().copied().collect::<Vec<_>>().into_iter().for_each(|question| self.say(question)),
                    Err(_) => std::future::pending().await,
                },
            }
        }
    }

    /// Asks a question and waits for its answer. Answers to other questions are dropped meanwhile, so there must be
    /// none.
    ///
    /// # Errors
    /// If the proxy could not answer.
    pub(crate) async fn ask_and_wait(
        &mut self,
        wanted: &FilesWanted,
    ) -> Result<FilesAnswer, TransferError> {
        let question = self.ask(wanted);
        loop {
            let (of, answer) = self.next().await;
            if of == question {
                return match open_payload(&self.chunk_client, &answer).await? {
                    FilesAnswer::Failed { reason } => Err(TransferError::AtHome { reason }),
                    answer => Ok(answer),
                };
            }
        }
    }

    fn say(&self, question: u64) {
        if let Some(wanted) = self.open.get(&question) {
            self.events.send(JobEvent::FilesWanted {
                question,
                wanted: wanted.clone(),
            });
        }
    }
}

fn no_answer() -> FilesAnswer {
    FilesAnswer::Failed {
        reason: "the notebook kernel has ended".to_owned(),
    }
}
