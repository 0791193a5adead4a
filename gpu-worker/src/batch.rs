//! When outputs are sent, and which are joined before.
//!
//! In: what a session publishes, in order. Out: batches of outputs, the first at once, then one every [`INTERVAL`]
//! or [`BATCH_BYTES`]. Consecutive texts of the same stream become one text, so a progress bar's `\r` stays where
//! it was. Nothing else changes its place.
//!
//! While no batches are taken, displays and streams beyond [`PENDING_BYTES`] are left out and counted, and the
//! student reads how many. Other messages beyond that make the batcher full: the session must wait before it sends
//! more. If nothing makes it wait, they are left out beyond twice that.
//!
//! **Invariant:** no I/O; the clock comes from the caller.

use baton_protocol::{Bound, Output, outbox::output_bytes};
use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

const INTERVAL: Duration = Duration::from_millis(60);
const BATCH_BYTES: usize = 64 << 10;
/// A joined text does not grow beyond this.
const TEXT_BYTES: usize = 1 << 20;
const PENDING_BYTES: usize = 32 << 20;
/// The most that fits into one message to the broker.
pub(crate) const LARGEST_OUTPUT_BYTES: u64 = PENDING_BYTES as u64;

/// What is left out first while outputs cannot be sent.
const DISPENSABLE: [&str; 3] = ["stream", "display_data", "update_display_data"];

#[derive(Default)]
pub(crate) struct Batcher {
    pending: VecDeque<Pending>,
    pending_bytes: usize,
    last_batch: Option<Instant>,
    left_out: u64,
}

enum Pending {
    Text(Stream),
    Other(Output),
}

/// The content of a `stream` message.
#[derive(Serialize, Deserialize)]
struct Stream {
    name: String,
    text: String,
}

impl Batcher {
    pub(crate) fn push(&mut self, output: Output) {
        let bytes = output_bytes(&output);
        let is_dispensable = DISPENSABLE.contains(&output.kind.as_str());
        let most_bytes = if is_dispensable {
            PENDING_BYTES
        } else {
            2 * PENDING_BYTES
        };
        let fits = bytes <= PENDING_BYTES && Bound::EVENT.allows(&output);
        if !fits || self.pending_bytes + bytes > most_bytes {
            self.left_out += 1;
            return;
        }
        self.pending_bytes += bytes;
        match as_stream(&output) {
            Some(stream) => self.push_text(stream),
            None => self.pending.push_back(Pending::Other(output)),
        }
    }

    fn push_text(&mut self, stream: Stream) {
        if let Some(Pending::Text(last)) = self.pending.back_mut()
            && last.name == stream.name
            && last.text.len() + stream.text.len() <= TEXT_BYTES
        {
            last.text.push_str(&stream.text);
        } else {
            self.pending.push_back(Pending::Text(stream));
        }
    }

    /// Whether the session must wait before it sends more, because no output may be left out for it.
    pub(crate) fn is_full(&self) -> bool {
        self.pending_bytes > PENDING_BYTES
    }

    /// When the next batch is due; `None` while there is nothing to send.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        if self.pending.is_empty() && self.left_out == 0 {
            None
        } else if self.pending_bytes >= BATCH_BYTES {
            Some(now)
        } else {
            Some(self.last_batch.map_or(now, |last| last + INTERVAL))
        }
    }

    /// Takes everything that is pending.
    pub(crate) fn take(&mut self, now: Instant) -> Vec<Output> {
        self.last_batch = Some(now);
        self.pending_bytes = 0;
        let mut outputs: Vec<Output> = self.pending.drain(..).map(into_output).collect();
        if self.left_out > 0 {
            outputs.push(left_out_message(std::mem::take(&mut self.left_out)));
        }
        outputs
    }
}

/// The stream message, if it can be joined with others without loss.
fn as_stream(output: &Output) -> Option<Stream> {
    let plain = output.kind == "stream" && output.buffers.is_empty() && output.metadata == "{}";
    if !plain {
        return None;
    }
    serde_json::from_slice(&output.content).ok()
}

fn into_output(pending: Pending) -> Output {
    match pending {
        Pending::Other(output) => output,
        Pending::Text(stream) => stream_output(&stream),
    }
}

fn stream_output(stream: &Stream) -> Output {
    Output::new("stream", serde_json::json!(stream).to_string())
}

fn left_out_message(left_out: u64) -> Output {
    stream_output(&Stream {
        name: "stderr".to_owned(),
        text: format!(
            "Baton left out {left_out} outputs here: too large, or faster than they could be sent\n"
        ),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn stream(name: &str, text: &str) -> Output {
        stream_output(&Stream {
            name: name.to_owned(),
            text: text.to_owned(),
        })
    }

    fn other(kind: &str, bytes: usize) -> Output {
        Output {
            kind: kind.to_owned(),
            content: vec![b' '; bytes].into(),
            metadata: "{}".into(),
            buffers: Vec::new(),
        }
    }

    fn check(input: Vec<Output>, expected: &[Output]) {
        let mut batcher = Batcher::default();
        for output in input {
            batcher.push(output);
        }
        assert_eq!(batcher.take(Instant::now()), expected);
    }

    #[test]
    fn texts_of_one_stream_are_joined() {
        check(
            vec![stream("stdout", "a"), stream("stdout", "b\n")],
            &[stream("stdout", "ab\n")],
        );
    }

    #[test]
    fn carriage_returns_stay_in_order() {
        check(
            vec![stream("stderr", "\r 1%"), stream("stderr", "\r 2%")],
            &[stream("stderr", "\r 1%\r 2%")],
        );
    }

    #[test]
    fn streams_are_not_joined_across_each_other() {
        let input = vec![
            stream("stdout", "a"),
            stream("stderr", "b"),
            stream("stdout", "c"),
        ];
        check(input.clone(), &input);
    }

    #[test]
    fn displays_keep_their_place() {
        let input = vec![
            stream("stdout", "a"),
            other("clear_output", 10),
            stream("stdout", "b"),
        ];
        check(input.clone(), &input);
    }

    #[test]
    fn what_cannot_be_read_passes_as_it_is() {
        let damaged = Output {
            content: "{\"name\": 1}".into(),
            ..stream("stdout", "")
        };
        check(
            vec![damaged.clone(), damaged.clone()],
            &[damaged.clone(), damaged],
        );
    }

    #[test]
    fn the_first_leaves_at_once_and_the_next_waits() {
        let mut batcher = Batcher::default();
        let now = Instant::now();
        assert_eq!(batcher.due(now), None);
        batcher.push(stream("stdout", "a"));
        assert_eq!(batcher.due(now), Some(now));
        batcher.take(now);
        assert_eq!(batcher.due(now), None);
        batcher.push(stream("stdout", "b"));
        assert_eq!(batcher.due(now), Some(now + INTERVAL));
        batcher.push(stream("stdout", &"c".repeat(BATCH_BYTES)));
        assert_eq!(batcher.due(now), Some(now));
    }

    #[test]
    fn beyond_the_limit_displays_give_way_to_a_notice_but_widgets_do_not() {
        let mut batcher = Batcher::default();
        batcher.push(other("display_data", PENDING_BYTES - 1000));
        batcher.push(other("update_display_data", 1000));
        batcher.push(stream("stdout", &"lost".repeat(250)));
        assert!(!batcher.is_full());
        batcher.push(other("comm_msg", 1000));
        assert!(batcher.is_full());
        let kinds: Vec<String> = batcher
            .take(Instant::now())
            .into_iter()
            .map(|output| output.kind)
            .collect();
        assert_eq!(kinds, ["display_data", "comm_msg", "stream"]);
        assert!(!batcher.is_full());
    }

    #[test]
    fn an_output_of_more_parts_than_the_broker_accepts_is_left_out() {
        let empty = Output {
            buffers: vec![bytes::Bytes::new(); Bound::EVENT.elements + 1],
            ..other("display_data", 10)
        };
        check(vec![empty], &[left_out_message(1)]);
    }

    #[test]
    fn each_part_of_an_output_counts() {
        let of_many_buffers = Output {
            buffers: vec![bytes::Bytes::new(); PENDING_BYTES / 128],
            ..other("comm_msg", 0)
        };
        for output in [other(&"x".repeat(PENDING_BYTES / 2), 0), of_many_buffers] {
            let mut batcher = Batcher::default();
            batcher.push(output.clone());
            assert!(!batcher.is_full());
            batcher.push(output);
            assert!(batcher.is_full());
        }
    }

    #[test]
    fn widgets_are_left_out_only_if_nothing_makes_them_wait() {
        let mut batcher = Batcher::default();
        for _ in 0..10 {
            batcher.push(other("comm_msg", PENDING_BYTES / 2 - 100));
        }
        assert_eq!((batcher.pending.len(), batcher.left_out), (4, 6));
        assert!(batcher.is_full());
    }
}
