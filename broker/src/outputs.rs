//! Limits the output that the broker stores of each open job, and counts it for its person.
//!
//! In: changes that are about to be stored. Out: which outputs are deleted for them, the oldest first.
//! A connected notebook has already been sent these. A notebook that reads the job's events later
//! finds a message in their place.
//!
//! **Invariant:** a job has at most [`PARTS`] + 1 entries here, however many outputs it has.

use crate::quota::Quotas;
use baton_broker_queue::{OpenJob, Write};
use baton_protocol::{JobEvent, JobId, encoded_bytes};
use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

/// The share of the limit that is deleted at once.
const PARTS: u64 = 16;

pub(crate) struct Outputs {
    limit_bytes: u64,
    quotas: Arc<Quotas>,
    jobs: HashMap<JobId, OfJob>,
}

struct OfJob {
    owner: String,
    bytes: u64,
    /// In order.
    parts: VecDeque<Part>,
}

/// Consecutive outputs.
struct Part {
    /// The number of the last one.
    last: u64,
    bytes: u64,
}

impl Outputs {
    pub(crate) fn of(
        jobs: &[OpenJob],
        stored_bytes: &HashMap<JobId, u64>,
        limit_bytes: u64,
        quotas: Arc<Quotas>,
    ) -> Self {
        let of_job = |job: &OpenJob| {
            let bytes = stored_bytes.get(&job.job).copied().unwrap_or(0);
            let last = job.last_event;
            let owner = job.account.owner.clone();
            let parts = VecDeque::from([Part { last, bytes }]);
            (
                job.job,
                OfJob {
                    owner,
                    bytes,
                    parts,
                },
            )
        };
        Self {
            limit_bytes,
            quotas,
            jobs: jobs.iter().map(of_job).collect(),
        }
    }

    /// Returns what must be stored after this change.
    pub(crate) fn note(&mut self, write: &Write) -> Option<Write> {
        match write {
            Write::Submit {
                submission,
                account,
                ..
            } => {
                let of_job = OfJob {
                    owner: account.owner.clone(),
                    bytes: 0,
                    parts: VecDeque::new(),
                };
                self.jobs.insert(submission.job, of_job);
                None
            }
            Write::Events { job, events, .. } => {
                let of_job = self.jobs.get_mut(job)?;
                let before_bytes = of_job.bytes;
                for event in events {
                    if let JobEvent::Output(_) = &event.event {
                        let bytes = encoded_bytes(&event.event) as u64;
                        of_job.add(event.number, bytes, self.limit_bytes / PARTS);
                    }
                }
                let new_bytes = of_job.bytes - before_bytes;
                self.quotas.add(&of_job.owner, new_bytes);
                let through = of_job.cut(self.limit_bytes)?;
                Some(Write::DropOutputs { job: *job, through })
            }
            Write::Close { job } | Write::Remove { job } => {
                self.jobs.remove(job);
                None
            }
            _ => None,
        }
    }
}

impl OfJob {
    fn add(&mut self, number: u64, bytes: u64, part_bytes: u64) {
        self.bytes += bytes;
        match self.parts.back_mut() {
            Some(part) if part.bytes < part_bytes => {
                part.last = number;
                part.bytes += bytes;
            }
            _ => self.parts.push_back(Part {
                last: number,
                bytes,
            }),
        }
    }

    /// Forgets the oldest parts above the limit, but never the newest part. Returns the number of the
    /// last output in them.
    fn cut(&mut self, limit_bytes: u64) -> Option<u64> {
        let mut through = None;
        while self.bytes > limit_bytes && self.parts.len() > 1 {
            let oldest = self.parts.pop_front()?;
            self.bytes -= oldest.bytes;
            through = Some(oldest.last);
        }
        through
    }
}
