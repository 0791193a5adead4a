//! Limits the output and questions that the broker stores of each open job, and counts all events for its person.
//!
//! In: changes that are about to be stored. Out: which of these events are deleted for them, the oldest first.
//! A connected notebook has already been sent these. A notebook that reads the job's events later
//! finds a message in their place.
//!
//! **Invariant:** a job has at most [`PARTS`] + 1 entries here, however many events it has.

use crate::quota::Quotas;
use baton_broker_queue::{OpenJob, Write};
use baton_broker_store::is_limited;
use baton_protocol::{JobId, encoded_bytes};
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

/// Consecutive outputs and questions.
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
                for event in events {
                    let bytes = encoded_bytes(&event.event) as u64;
                    self.quotas.add(&of_job.owner, bytes);
                    if is_limited(&event.event) {
                        of_job.add(event.number, bytes, self.limit_bytes / PARTS);
                    }
                }
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
    /// last event in them.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use baton_broker_queue::samples::{naming, submit};
    use baton_broker_store::Store;
    use baton_protocol::{
        ChunkHash, Finished, JobEvent, Manifest, NumberedEvent, Outcome, Piece, State,
    };

    /// A notebook that never takes its results keeps them.
    #[tokio::test]
    async fn the_results_of_open_jobs_count_for_their_person() {
        const LIMIT: u64 = 100_000;
        let folder = tempfile::tempdir().unwrap();
        let database = folder.path().join("broker.db").into();
        let store = Store::open(&database).await.unwrap();
        let quotas = Arc::new(Quotas::new(Some(LIMIT), store.clone()));
        let mut outputs = Outputs::of(&[], &HashMap::new(), LIMIT, Arc::clone(&quotas));
        assert_eq!(quotas.take("", 1000).await.unwrap(), None);
        let State::Chunks(manifest) = naming(ChunkHash([0; 32])) else {
            panic!("it names chunks");
        };
        let result = Manifest {
            stream: vec![Piece::Inline(vec![0; 95_000].into())],
            ..manifest.clone()
        };
        let end = JobEvent::Finished(Finished {
            state: Some(State::Chunks(result)),
            ..Finished::without_state(Outcome::Ok, None)
        });
        let job = JobId::random();
        let finished = Write::Events {
            job,
            acknowledged: Some(1),
            events: vec![NumberedEvent {
                number: 1,
                event: end,
            }],
        };
        let writes = [submit(job, State::Chunks(manifest)), finished];
        assert!(writes.iter().all(|write| outputs.note(write).is_none()));
        store.apply(&writes).await.unwrap();
        assert!(quotas.take("", 10_000).await.unwrap().is_some());
    }
}
