//! The questions of a job to its notebook that have no answer yet.
//!
//! In: questions of the worker, and answers of the notebook. Out: whether an answer, or a sign that one is being
//! prepared, is passed on.
//!
//! **Invariant:** pure. A worker asks again after each new connection, so a broker that was restarted learns which
//! questions are open.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// More than a job has: its worker asks about at most 32 files at once, and besides one question of each other kind.
pub const MOST_OPEN_QUESTIONS: usize = 64;
/// A proxy pauses twice as long between two signs, so this only concerns proxies that are not ours.
const BETWEEN_SIGNS: Duration = Duration::from_secs(5);

/// Each question, with the time of its last sign.
#[derive(Debug, Clone, Default)]
pub(crate) struct Questions(BTreeMap<u64, Option<Instant>>);

impl Questions {
    /// If there are too many, the oldest is forgotten.
    pub(crate) fn open(&mut self, question: u64) {
        self.0.entry(question).or_default();
        if self.0.len() > MOST_OPEN_QUESTIONS {
            self.0.pop_first();
        }
    }

    /// Returns whether the question was open.
    pub(crate) fn close(&mut self, question: u64) -> bool {
        self.0.remove(&question).is_some()
    }

    /// Returns whether the worker hears that an answer is being prepared: the question is open, and its last sign was
    /// some time ago.
    pub(crate) fn sign(&mut self, question: u64, now: Instant) -> bool {
        let Some(last) = self.0.get_mut(&question) else {
            return false;
        };
        if last.is_some_and(|last| now < last + BETWEEN_SIGNS) {
            return false;
        }
        *last = Some(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_answered_once_and_few_are_remembered() {
        let mut questions = Questions::default();
        (1..=MOST_OPEN_QUESTIONS as u64 + 1).for_each(|question| questions.open(question));
        assert!(!questions.close(1), "the oldest was forgotten");
        assert!(questions.close(2));
        assert!(!questions.close(2));
        questions.open(2);
        assert!(questions.close(2));
    }

    #[test]
    fn a_sign_leaves_the_question_open_and_there_are_few_signs() {
        let mut questions = Questions::default();
        let now = Instant::now();
        assert!(!questions.sign(1, now), "there is no such question");
        questions.open(1);
        assert!(questions.sign(1, now));
        assert!(!questions.sign(1, now + BETWEEN_SIGNS / 2));
        // The worker asked again.
        questions.open(1);
        assert!(!questions.sign(1, now + BETWEEN_SIGNS / 2));
        assert!(questions.sign(1, now + BETWEEN_SIGNS));
        assert!(questions.close(1));
    }
}
