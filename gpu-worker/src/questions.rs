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
    time::Duration,
};
use tokio::{
    sync::{oneshot, watch},
    time::{Instant, sleep_until},
};

#[derive(Debug, thiserror::Error)]
#[error("The notebook sent an unexpected answer")]
pub(crate) struct UnexpectedAnswer;

/// Fails if no answer can arrive any more.
pub(crate) type Answered = oneshot::Receiver<Answer>;

/// How long a job waits for answers before its cell starts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waits {
    /// For each answer, since the notebook's last sign that it works on it.
    pub(crate) silent: Duration,
    /// For all answers together; `None`: no limit. After that time, the job still waits `silent` for each answer.
    pub(crate) in_all: Option<Duration>,
}

/// Why a job no longer waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Neglect {
    Silent(Duration),
    Slow(Duration),
}

#[derive(Clone)]
pub(crate) struct Questions {
    events: EventSink,
    /// Whether the worker is connected to the broker.
    connected: watch::Receiver<bool>,
    open: Arc<Mutex<Open>>,
}

struct Open {
    /// The number of the last question.
    last: u64,
    questions: BTreeMap<u64, Question>,
    /// Whether a notebook can answer.
    has_notebook: bool,
    /// How long the job has waited for the answers that it has.
    waited: Duration,
}

struct Question {
    event: JobEvent,
    asker: oneshot::Sender<Answer>,
    asked: Instant,
    /// When the notebook was asked, or has last said that it works on the answer.
    last_sign: Instant,
}

impl Questions {
    pub(crate) fn new(events: EventSink, connected: watch::Receiver<bool>) -> Self {
        let open = Open {
            // No other assignment of the job uses these numbers.
            last: events.fencing << 32,
            questions: BTreeMap::new(),
            has_notebook: true,
            waited: Duration::ZERO,
        };
        Self {
            events,
            connected,
            open: Arc::new(Mutex::new(open)),
        }
    }

    /// `event` gets the number of the question.
    pub(crate) fn ask(&self, event: impl FnOnce(u64) -> JobEvent) -> Answered {
        let (sender, answered) = oneshot::channel();
        let mut open = self.lock();
        if open.has_notebook {
            open.last += 1;
            let (number, event, now) = (open.last, event(open.last), Instant::now());
            let question = Question {
                event: event.clone(),
                asker: sender,
                asked: now,
                last_sign: now,
            };
            open.questions.insert(number, question);
            self.events.send(event);
        }
        answered
    }

    pub(crate) fn answer(&self, number: u64, answer: Answer) {
        let mut open = self.lock();
        if matches!(answer, Answer::Preparing {}) {
            if let Some(question) = open.questions.get_mut(&number) {
                question.last_sign = Instant::now();
            }
        } else if let Some(question) = open.questions.remove(&number) {
            open.waited += question.asked.elapsed();
            // If this fails, the job needs no answer any more.
            let _ = question.asker.send(answer);
        }
    }

    /// Completes when the job has waited for too long for an answer. Time without a connection to the broker does not
    /// count.
    pub(crate) async fn neglected(&self, waits: Waits) -> Neglect {
        let mut connected = self.connected.clone();
        loop {
            if !*connected.borrow_and_update() {
                let since = Instant::now();
                if connected.wait_for(|connected| *connected).await.is_err() {
                    // The agent is ending.
                    return std::future::pending().await;
                }
                self.lock().renew(since);
            }
            let next = self.lock().next_neglect(waits);
            let later = match next {
                Some((at, neglect)) if at <= Instant::now() => return neglect,
                Some((at, _)) => at,
                // No later question is overdue before this time.
                None => Instant::now() + waits.silent,
            };
            tokio::select! {
                () = sleep_until(later) => {}
                Ok(()) = connected.changed() => {}
            }
        }
    }

    /// The broker is connected again. Messages may have been lost with the old connection.
    pub(crate) fn ask_again(&self) {
        let mut open = self.lock();
        open.questions
            .retain(|_, question| !question.asker.is_closed());
        open.renew(Instant::now());
        for question in open.questions.values() {
            self.events.send(question.event.clone());
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

impl Open {
    /// The notebook could neither be asked nor answer from then until now.
    fn renew(&mut self, since: Instant) {
        let now = Instant::now();
        for question in self.questions.values_mut() {
            question.asked = now - since.saturating_duration_since(question.asked);
            question.last_sign = now;
        }
    }

    /// When the first open question will be neglected, and in which way.
    fn next_neglect(&self, Waits { silent, in_all }: Waits) -> Option<(Instant, Neglect)> {
        let open = self.questions.values();
        let open = open.filter(|question| !question.asker.is_closed());
        let neglects = open.flat_map(|question| {
            let slow = in_all.and_then(|longest| {
                let left = longest.saturating_sub(self.waited).max(silent);
                Some((question.asked.checked_add(left)?, Neglect::Slow(longest)))
            });
            let silent = (question.last_sign + silent, Neglect::Silent(silent));
            std::iter::once(silent).chain(slow)
        });
        neglects.min_by_key(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Report;
    use baton_protocol::JobId;
    use tokio::{sync::mpsc, time::sleep};

    const WAITS: Waits = Waits {
        silent: Duration::from_secs(30),
        in_all: Some(Duration::from_secs(100)),
    };

    fn questions() -> (
        Questions,
        watch::Sender<bool>,
        mpsc::UnboundedReceiver<Report>,
    ) {
        let (reports, reported) = mpsc::unbounded_channel();
        let events = EventSink {
            job: JobId::random(),
            fencing: 0,
            reports,
            unsent_bytes: Arc::default(),
            memory_bytes: Arc::default(),
        };
        let connected = watch::Sender::new(true);
        let questions = Questions::new(events, connected.subscribe());
        (questions, connected, reported)
    }

    fn ask(questions: &Questions) -> Answered {
        questions.ask(|question| JobEvent::StateWanted { question })
    }

    /// Waits until a question is neglected. Returns how, and after how many seconds.
    async fn neglect(questions: &Questions, since: Instant) -> (Neglect, u64) {
        let neglect = questions.neglected(WAITS).await;
        (neglect, since.elapsed().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_without_an_answer_is_neglected() {
        let (questions, _connected, _reported) = questions();
        let since = Instant::now();
        let late = async {
            sleep(Duration::from_secs(1)).await;
            ask(&questions).await
        };
        tokio::select! {
            found = neglect(&questions, since) => assert_eq!(found, (Neglect::Silent(WAITS.silent), 31)),
            _ = late => unreachable!("there is no answer"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_notebook_that_works_on_an_answer_has_the_time_limit() {
        let (questions, _connected, _reported) = questions();
        let since = Instant::now();
        let signs = async {
            for number in 1.. {
                let _answered = ask(&questions);
                for _ in 0..6 {
                    sleep(Duration::from_secs(10)).await;
                    questions.answer(number, Answer::Preparing {});
                }
                questions.answer(number, Answer::Input(None));
            }
        };
        tokio::select! {
            found = neglect(&questions, since) => assert_eq!(found, (Neglect::Slow(Duration::from_secs(100)), 100)),
            () = signs => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_outage_of_the_broker_is_not_the_notebooks_silence() {
        let (questions, connected, _reported) = questions();
        let since = Instant::now();
        let _open = ask(&questions);
        connected.send_replace(false);
        let outage = async {
            sleep(Duration::from_secs(300)).await;
            connected.send_replace(true);
            std::future::pending::<()>().await;
        };
        tokio::select! {
            found = neglect(&questions, since) => assert_eq!(found, (Neglect::Silent(WAITS.silent), 330)),
            () = outage => {}
        }
    }
}
