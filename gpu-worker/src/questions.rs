//! A job's questions to its notebook: a complete state, names, the student's input, files.
//!
//! In: questions of the job's task, and answers of the notebook from the agent. Out: the questions as events, and
//! each answer to the task that asked.
//!
//! **Invariant:** an open question is asked again after each new connection to the broker, so it is answered even if
//! an answer was lost. Only the first answer counts.

use crate::report::EventSink;
use baton_protocol::{Answer, JobEvent};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::oneshot;

#[derive(Debug, thiserror::Error)]
#[error("The notebook sent an unexpected answer")]
pub(crate) struct UnexpectedAnswer;

/// Fails if no answer can arrive any more.
pub(crate) type Answered = oneshot::Receiver<Answer>;

#[derive(Clone)]
pub(crate) struct Questions {
    events: EventSink,
    open: Arc<Mutex<Open>>,
}

struct Open {
    /// The number of the last question.
    last: u64,
    questions: BTreeMap<u64, (JobEvent, oneshot::Sender<Answer>)>,
    /// Whether a notebook can answer.
    has_notebook: bool,
}

impl Questions {
    pub(crate) fn new(events: EventSink) -> Self {
        let open = Open {
            // No other assignment of the job uses these numbers.
            last: events.fencing << 32,
            questions: BTreeMap::new(),
            has_notebook: true,
        };
        Self {
            events,
            open: Arc::new(Mutex::new(open)),
        }
    }

    /// `event` gets the number of the question.
    pub(crate) fn ask(&self, event: impl FnOnce(u64) -> JobEvent) -> Answered {
        let (sender, answered) = oneshot::channel();
        let mut open = self.lock();
        if open.has_notebook {
            open.last += 1;
            let (question, event) = (open.last, event(open.last));
            open.questions.insert(question, (event.clone(), sender));
            self.events.send(event);
        }
        answered
    }

    pub(crate) fn answer(&self, question: u64, answer: Answer) {
        if let Some((_, asker)) = self.lock().questions.remove(&question) {
            // If this fails, the job needs no answer any more.
            let _ = asker.send(answer);
        }
    }

    /// The broker is connected again. Messages may have been lost with the old connection.
    pub(crate) fn ask_again(&self) {
        let mut open = self.lock();
        open.questions.retain(|_, (_, asker)| !asker.is_closed());
        for (event, _) in open.questions.values() {
            self.events.send(event.clone());
        }
    }

    /// Without a notebook, neither open nor later questions get an answer.
    pub(crate) fn has_notebook(&self, has_notebook: bool) {
        let mut open = self.lock();
        open.has_notebook = has_notebook;
        if !has_notebook {
            open.questions.clear();
        }
    }

    /// Nothing panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
