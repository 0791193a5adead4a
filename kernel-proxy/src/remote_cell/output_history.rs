//! The output of the last cells, for a page that was not open when it appeared. The broker deletes
//! a cell's output once its result is applied.
//!
//! **Invariant:** pure, and bounded: the oldest output is dropped first.

use baton_protocol::{CallId, Output, outbox::output_bytes};
use std::collections::{BTreeMap, VecDeque};

/// Limits for all outputs together.
const MOST_BYTES: usize = 16 << 20;
const MOST_OUTPUTS: usize = 20_000;
/// The number of cells for which dropped outputs are counted.
const MOST_CALLS: usize = 1000;

#[derive(Default)]
pub(super) struct OutputHistory {
    outputs: VecDeque<(CallId, Output)>,
    bytes: usize,
    /// How many outputs of a cell were dropped.
    dropped: BTreeMap<CallId, u64>,
}

impl OutputHistory {
    /// Records an output, except a widget's: widgets belong to the notebook kernel once their cell has ended.
    pub(super) fn note(&mut self, call: CallId, output: &Output) {
        if output.kind.starts_with("comm_") {
            return;
        }
        self.bytes += output_bytes(output);
        self.outputs.push_back((call, output.clone()));
        while (self.bytes > MOST_BYTES || self.outputs.len() > MOST_OUTPUTS)
            && let Some((call, oldest)) = self.outputs.pop_front()
        {
            self.bytes -= output_bytes(&oldest);
            *self.dropped.entry(call).or_default() += 1;
        }
        while self.dropped.len() > MOST_CALLS {
            self.dropped.pop_first();
        }
    }

    /// Returns a cell's outputs in order, and the number of earlier ones that were dropped.
    pub(super) fn of(&self, call: CallId) -> (Vec<Output>, u64) {
        let its_own = self.outputs.iter().filter(|(of, _)| *of == call);
        let missing = self.dropped.get(&call).copied().unwrap_or_default();
        (its_own.map(|(_, output)| output.clone()).collect(), missing)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn output(kind: &str, bytes: usize) -> Output {
        Output {
            kind: kind.to_owned(),
            content: Bytes::from(vec![b' '; bytes]),
            metadata: Bytes::new(),
            buffers: vec![Bytes::from(vec![0; bytes])],
        }
    }

    #[test]
    fn the_oldest_outputs_go_first_and_are_counted() {
        let mut history = OutputHistory::default();
        // An output has two parts of this size, and four outputs fit with their overhead.
        let part = MOST_BYTES / 8 - 100;
        let check = |history: &OutputHistory, call, there: usize, missing| {
            let (outputs, dropped) = history.of(call);
            assert_eq!((outputs.len(), dropped), (there, missing), "{call}");
        };
        history.note(1, &output("stream", part));
        history.note(2, &output("comm_open", 1));
        check(&history, 1, 1, 0);
        check(&history, 2, 0, 0);
        for _ in 0..6 {
            history.note(3, &output("display_data", part));
        }
        check(&history, 1, 0, 1);
        check(&history, 2, 0, 0);
        check(&history, 3, 4, 2);
        history.note(4, &output("stream", 0));
        check(&history, 4, 1, 0);
        for _ in 0..MOST_OUTPUTS {
            history.note(5, &output("stream", 1));
        }
        check(&history, 1, 0, 1);
        check(&history, 4, 0, 1);
        check(&history, 5, MOST_OUTPUTS, 0);
    }
}
