//! The log lines about each job, from its submission to its end, in one span with its person and worker.
//!
//! In: changes that are stored. Out: log lines, which contain names and numbers but nothing of a cell.

use baton_broker_queue::{Account, OpenJob, Write};
use baton_protocol::JobId;
use std::collections::HashMap;
use tracing::{Span, field, info, info_span};

/// The spans of the jobs that have not ended.
#[derive(Default)]
pub(crate) struct Journal(HashMap<JobId, Span>);

impl Journal {
    /// The spans of jobs that were submitted to an earlier broker, whose log has their beginning.
    pub(crate) fn of(jobs: &[OpenJob]) -> Self {
        let span = |job: &OpenJob| {
            let span = span(job.job, &job.account);
            if job.worker.is_some() {
                span.record("worker", &job.worker_name);
            }
            (job.job, span)
        };
        Self(jobs.iter().map(span).collect())
    }

    pub(crate) fn note(&mut self, write: &Write) {
        match write {
            Write::Submit {
                submission,
                account,
                ..
            } => {
                let span = span(submission.job, account);
                span.in_scope(|| info!("Submitted"));
                self.0.insert(submission.job, span);
            }
            Write::Assign {
                job,
                worker_name,
                fencing,
                ..
            } => self.log(*job, |span| {
                span.record("worker", worker_name);
                info!(fencing, "Assigned");
            }),
            Write::Requeue { job, .. } => self.log(*job, |_| info!("Back in the queue")),
            Write::Start { job, .. } => self.log(*job, |_| info!("Started")),
            Write::Finish {
                job,
                outcome,
                usage,
                ..
            } => {
                let (outcome, run_ms) = (outcome.name(), usage.run_ms);
                self.log(*job, |_| info!(outcome, run_ms, "Ended"));
                self.0.remove(job);
            }
            Write::GiveUp { job, outcome } => {
                let outcome = outcome.name();
                info!(job.id = %job, outcome, "The notebook rejected the cell's result");
            }
            _ => {}
        }
    }

    fn log(&self, job: JobId, words: impl FnOnce(&Span)) {
        if let Some(span) = self.0.get(&job) {
            span.in_scope(|| words(span));
        }
    }
}

fn span(job: JobId, account: &Account) -> Span {
    let Account { owner, course } = account;
    info_span!("job", job.id = %job, person = owner, course, worker = field::Empty)
}
