//! The events of one assignment on their way to the broker.
//!
//! In: what happens to the job, in order. Out: numbered batches to send. An event stays here until the broker
//! confirms that it is stored; after a reconnect all events that are still here are sent again under the same
//! numbers.
//! A stored `Started` is the permission to run the cell.
//!
//! **Invariant:** no I/O and no clock.

use crate::{Finished, JobEvent, Output, Payload, Piece, RemoteError, State};
use std::collections::VecDeque;

/// A batch ends when it has reached this size.
const BATCH_BYTES: usize = 256 << 10;

#[derive(Debug, Clone, Default)]
pub struct Outbox {
    /// Events that are not acknowledged yet.
    events: VecDeque<JobEvent>,
    /// The number of the last event that was acknowledged.
    acknowledged: u64,
    /// How many of `events` were sent over the current connection.
    sent: usize,
    /// The number of `Started`, once it has been pushed.
    start: Option<u64>,
    /// The cell's end has been pushed.
    ended: bool,
    /// The last event has been pushed.
    complete: bool,
    /// Deferred state has been pushed, and the notebook may ask for it again.
    deferred_sent: bool,
    /// The end has been pushed, and the session is asked for more only if the notebook kernel ends.
    salvageable: bool,
}

impl Outbox {
    pub fn push(&mut self, event: JobEvent) {
        debug_assert!(!self.complete, "nothing follows the last event");
        self.ended |= event.is_last() || matches!(event, JobEvent::Finished(_));
        self.complete |= event.is_last();
        self.deferred_sent |= matches!(event, JobEvent::DeferredState { .. });
        self.salvageable |= matches!(
            event,
            JobEvent::Finished(Finished {
                salvageable: true,
                ..
            })
        );
        let is_start = matches!(event, JobEvent::Started { .. });
        self.events.push_back(event);
        if is_start {
            self.start = Some(self.acknowledged + self.events.len() as u64);
        }
    }

    /// The next events to send, and the number of the first one.
    pub fn next_batch(&mut self) -> Option<(u64, Vec<JobEvent>)> {
        let mut bytes = 0;
        let batch: Vec<JobEvent> = self
            .events
            .iter()
            .skip(self.sent)
            .take_while(|event| {
                let fits = bytes < BATCH_BYTES;
                bytes += event_bytes(event);
                fits
            })
            .cloned()
            .collect();
        let first = self.acknowledged + self.sent as u64 + 1;
        self.sent += batch.len();
        (!batch.is_empty()).then_some((first, batch))
    }

    /// The broker has stored everything up to `number`. Returns how many bytes were removed.
    pub fn acknowledge(&mut self, number: u64) -> usize {
        let count = number.saturating_sub(self.acknowledged);
        let count = usize::try_from(count).map_or(self.events.len(), |n| n.min(self.events.len()));
        self.acknowledged += count as u64;
        self.sent = self.sent.saturating_sub(count);
        self.events
            .drain(..count)
            .map(|event| event_bytes(&event))
            .sum()
    }

    /// The connection is new, and it is unknown which of the sent events arrived.
    pub fn rewind(&mut self) {
        self.sent = 0;
    }

    /// The number of the last event that the broker is known to have stored.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The job has asked to start its cell.
    #[must_use]
    pub fn has_start(&self) -> bool {
        self.start.is_some()
    }

    /// The broker has stored `Started`: the cell may start, and no other worker will get the job.
    #[must_use]
    pub fn start_is_stored(&self) -> bool {
        self.start.is_some_and(|number| number <= self.acknowledged)
    }

    /// The cell has ended; deferred state may follow.
    #[must_use]
    pub fn has_end(&self) -> bool {
        self.ended
    }

    /// The last event has been pushed.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Everything is stored, and nothing more needs to follow.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        (self.complete || self.deferred_sent || self.salvageable) && self.events.is_empty()
    }

    /// Everything is stored, and nothing more will follow.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.complete && self.events.is_empty()
    }
}

/// Approximate size of the names and numbers of one thing.
const OVERHEAD: usize = 64;

/// Approximate size of an event.
#[must_use]
pub fn event_bytes(event: &JobEvent) -> usize {
    OVERHEAD
        + match event {
            JobEvent::Output(output) => output_bytes(output),
            JobEvent::InputWanted { prompt, .. } => prompt.len(),
            JobEvent::NamesWanted { names, .. } => text_bytes(names),
            JobEvent::NotStarted { error } => error_bytes(error),
            JobEvent::Finished(Finished {
                state,
                files,
                error,
                ..
            }) => {
                state.as_ref().map_or(0, state_bytes)
                    + files.as_ref().map_or(0, payload_bytes)
                    + error.as_ref().map_or(0, error_bytes)
            }
            JobEvent::DeferredState { state, error } => {
                state.as_ref().map_or(0, state_bytes) + error.as_ref().map_or(0, error_bytes)
            }
            JobEvent::Salvaged {
                state,
                files,
                error,
            } => {
                let pieces = state.iter().flat_map(|state| state.manifest.pieces());
                pieces.map(piece_bytes).sum::<usize>()
                    + size_of_val(files.as_slice())
                    + error.as_ref().map_or(0, error_bytes)
            }
            JobEvent::FilesWanted { wanted, .. } => payload_bytes(wanted),
            _ => 0,
        }
}

/// The size of a state in a message, without bytes that are elsewhere.
fn state_bytes(state: &State) -> usize {
    let manifest = match state {
        State::Chunks(manifest) => manifest,
        State::Memory(held) => {
            let enclosed = held.enclosed.as_ref();
            return 4 * OVERHEAD + enclosed.map_or(0, |enclosed| enclosed.file.len());
        }
    };
    let parts = manifest.segments.len() + manifest.dropped_segments.len();
    parts * OVERHEAD + manifest.pieces().map(piece_bytes).sum::<usize>()
}

fn error_bytes(error: &RemoteError) -> usize {
    let hint_bytes = error.hint.as_ref().map_or(0, String::len);
    error.name.len() + error.value.len() + text_bytes(&error.traceback) + hint_bytes
}

fn text_bytes(lines: &[String]) -> usize {
    lines.iter().map(|line| OVERHEAD + line.len()).sum()
}

fn payload_bytes(payload: &Payload) -> usize {
    payload.0.iter().map(piece_bytes).sum()
}

fn piece_bytes(piece: &Piece) -> usize {
    match piece {
        Piece::Inline(bytes) => OVERHEAD + bytes.len(),
        Piece::Stored { .. } => OVERHEAD,
    }
}

/// Approximate size of an output.
#[must_use]
pub fn output_bytes(output: &Output) -> usize {
    let buffers = output.buffers.iter().map(|buffer| OVERHEAD + buffer.len());
    let texts = output.kind.len() + output.content.len() + output.metadata.len();
    OVERHEAD + texts + buffers.sum::<usize>()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{Manifest, Outcome, StateVersion, TableId};

    fn started() -> JobEvent {
        JobEvent::Started {
            worker: "cpu-0".to_owned(),
        }
    }

    fn finished() -> JobEvent {
        JobEvent::Finished(Finished::without_state(Outcome::Ok, None))
    }

    fn sent(outbox: &mut Outbox) -> Option<(u64, usize)> {
        outbox
            .next_batch()
            .map(|(first, events)| (first, events.len()))
    }

    #[test]
    fn events_are_numbered_from_one_without_gaps() {
        let mut outbox = Outbox::default();
        outbox.push(started());
        assert_eq!(sent(&mut outbox), Some((1, 1)));
        outbox.push(JobEvent::StateWanted { question: 1 });
        outbox.push(finished());
        assert_eq!(sent(&mut outbox), Some((2, 2)));
        assert_eq!(sent(&mut outbox), None);
    }

    #[test]
    fn what_was_not_acknowledged_is_repeated_under_its_number() {
        let mut outbox = Outbox::default();
        outbox.push(started());
        outbox.push(JobEvent::StateWanted { question: 1 });
        outbox.push(finished());
        assert_eq!(sent(&mut outbox), Some((1, 3)));
        outbox.acknowledge(1);
        outbox.rewind();
        assert_eq!(sent(&mut outbox), Some((2, 2)));
    }

    #[test]
    fn an_acknowledgement_may_overtake_the_repetition() {
        let mut outbox = Outbox::default();
        outbox.push(started());
        outbox.push(finished());
        outbox.acknowledge(2);
        assert_eq!(sent(&mut outbox), None);
        assert!(outbox.is_done());
    }

    #[test]
    fn a_wrong_number_does_no_harm() {
        let mut outbox = Outbox::default();
        outbox.push(started());
        outbox.acknowledge(7);
        outbox.push(finished());
        assert_eq!(sent(&mut outbox), Some((2, 1)));
        outbox.acknowledge(0);
        assert!(!outbox.is_done());
    }

    #[test]
    fn a_cell_may_start_once_its_start_is_stored() {
        let mut outbox = Outbox::default();
        outbox.push(JobEvent::StateWanted { question: 1 });
        outbox.acknowledge(1);
        assert!(!outbox.has_start());
        outbox.push(JobEvent::BytesWanted { question: 2 });
        outbox.push(started());
        outbox.acknowledge(2);
        assert!(outbox.has_start() && !outbox.start_is_stored());
        outbox.acknowledge(3);
        assert!(outbox.start_is_stored());
    }

    #[test]
    fn each_part_of_an_event_counts() {
        let mut outbox = Outbox::default();
        let output = JobEvent::Output(Output {
            buffers: vec![bytes::Bytes::new(); 1 << 14],
            ..Output::new("display_data", "{}")
        });
        let state = |dropped_segments| {
            State::Chunks(Manifest {
                base: StateVersion {
                    table: TableId::random(),
                    messages: 0,
                },
                stream: Vec::new(),
                segments: Vec::new(),
                dropped_segments,
            })
        };
        let deferred = JobEvent::DeferredState {
            state: Some(state(vec![0; 1 << 14])),
            error: None,
        };
        let of_long_kind = Output::new(&"x".repeat(BATCH_BYTES), "{}");
        outbox.push(output);
        outbox.push(JobEvent::Output(of_long_kind));
        outbox.push(deferred.clone());
        outbox.push(deferred);
        for number in 1..=4 {
            assert_eq!(sent(&mut outbox), Some((number, 1)));
        }
    }

    #[test]
    fn large_events_go_one_by_one() {
        let mut outbox = Outbox::default();
        let output = || {
            JobEvent::Output(Output {
                kind: "display_data".to_owned(),
                content: vec![b' '; BATCH_BYTES].into(),
                metadata: "{}".into(),
                buffers: vec![],
            })
        };
        outbox.push(output());
        outbox.push(output());
        assert_eq!(sent(&mut outbox), Some((1, 1)));
        assert_eq!(sent(&mut outbox), Some((2, 1)));
        assert!(outbox.acknowledge(2) > 2 * BATCH_BYTES);
    }
}
