//! A job that the link follows, and what it repeats about the job after a reconnect.

use baton_protocol::{Answer, JobId, Submission, proxy::FromProxy};
use std::collections::BTreeMap;

/// How many questions of a job are remembered, unless more are open. A cell can ask for several files at the same time.
const KEPT_QUESTIONS: usize = 64;

pub(super) enum LinkJob {
    Open(FollowedJob),
    /// The proxy is done with the job, and the broker has not confirmed that yet.
    Ended(Box<FromProxy>),
}

pub(super) struct FollowedJob {
    /// `None`: a job of an earlier kernel.
    pub(super) submission: Option<Box<Submission>>,
    /// The job's open questions, without an answer, and its last ones that were answered. A worker has few open ones: for
    /// a complete state, names, input, and as many files as it fetches at a time (32).
    pub(super) questions: BTreeMap<u64, Option<Answer>>,
    /// The cell's deferred state was asked for and has not arrived yet.
    pub(super) deferred_wanted: bool,
    /// The number of the last event that was passed on.
    pub(super) seen: u64,
}

impl FollowedJob {
    pub(super) fn new(submission: Option<Box<Submission>>) -> Self {
        Self {
            submission,
            questions: BTreeMap::new(),
            deferred_wanted: false,
            seen: 0,
        }
    }

    /// Notes a question. Returns whether it is new, or else its answer.
    pub(super) fn asked(&mut self, question: u64) -> Result<(), Option<Answer>> {
        if let Some(answer) = self.questions.get(&question) {
            return Err(answer.clone());
        }
        self.questions.insert(question, None);
        if self.questions.len() > KEPT_QUESTIONS {
            // The cell waits for the answer to each open question, however late it is.
            let mut questions = self.questions.iter();
            let oldest = questions.find_map(|(of, answer)| answer.as_ref().map(|_| *of));
            if let Some(oldest) = oldest {
                self.questions.remove(&oldest);
            }
        }
        Ok(())
    }

    /// What a broker may have lost: everything that the job waits for.
    pub(super) fn repeated(&self, job: JobId) -> impl Iterator<Item = FromProxy> {
        let answers = self.questions.iter().filter_map(move |(question, answer)| {
            let answer = answer.clone()?;
            Some(answered(job, *question, answer))
        });
        let deferred = self
            .deferred_wanted
            .then_some(FromProxy::DeferredWanted { job });
        answers.chain(deferred)
    }

    /// Says of each open question that its answer is being prepared.
    pub(super) fn signs(&self, job: JobId) -> Vec<FromProxy> {
        let open = self.questions.iter().filter(|(_, answer)| answer.is_none());
        open.map(|(question, _)| answered(job, *question, Answer::Preparing {}))
            .collect()
    }

    /// The request for the events that this proxy has not seen.
    pub(super) fn follow(&self, job: JobId) -> FromProxy {
        let after = self.seen;
        match self.submission {
            Some(_) => FromProxy::Resume { job, after },
            None => FromProxy::Attach { job, after },
        }
    }
}

pub(super) fn answered(job: JobId, question: u64, answer: Answer) -> FromProxy {
    FromProxy::Answer {
        job,
        question,
        answer,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn an_open_question_waits_for_its_answer_however_many_follow() {
        let mut job = FollowedJob::new(None);
        job.asked(1).unwrap();
        for question in 2..=200 {
            job.asked(question).unwrap();
            job.questions.insert(question, Some(Answer::Input(None)));
        }
        assert_eq!(job.questions.len(), KEPT_QUESTIONS);
        assert_eq!(job.asked(1), Err(None));
        assert_eq!(job.asked(200), Err(Some(Answer::Input(None))));
        assert_eq!(job.asked(2), Ok(()), "the oldest answer is forgotten");
    }

    #[test]
    fn all_open_questions_are_kept() {
        let mut job = FollowedJob::new(None);
        for question in 1..=200 {
            job.asked(question).unwrap();
        }
        assert_eq!(job.questions.len(), 200);
    }
}
