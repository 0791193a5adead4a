//! What the last cells have shown, for a page that was not open meanwhile. The broker keeps no output of a cell whose
//! result is home.
//!
//! **Invariant:** pure, and bounded: the oldest output goes first.

use std::collections::{BTreeMap, VecDeque};

use baton_protocol::{CallId, Output};

/// In all, and of so many outputs: what a small one takes besides its content is not counted.
const MOST_BYTES: usize = 16 << 20;
const MOST_OUTPUTS: usize = 20_000;
/// Of so many calls it is known how many of their outputs went.
const MOST_CALLS: usize = 1000;

#[derive(Default)]
pub(super) struct Shown {
    outputs: VecDeque<(CallId, Output)>,
    bytes: usize,
    /// How many outputs of a call went.
    dropped: BTreeMap<CallId, u64>,
}

impl Shown {
    /// Widgets are the notebook kernel's own once their cell has ended.
    pub(super) fn note(&mut self, call: CallId, output: &Output) {
        if output.kind.starts_with("comm_") {
            return;
        }
        self.bytes += bytes_of(output);
        self.outputs.push_back((call, output.clone()));
        while (self.bytes > MOST_BYTES || self.outputs.len() > MOST_OUTPUTS)
            && let Some((call, oldest)) = self.outputs.pop_front()
        {
            self.bytes -= bytes_of(&oldest);
            *self.dropped.entry(call).or_default() += 1;
        }
        while self.dropped.len() > MOST_CALLS {
            self.dropped.pop_first();
        }
    }

    /// In order; and how many outputs before them are no longer here.
    pub(super) fn of(&self, call: CallId) -> (Vec<Output>, u64) {
        let its_own = self.outputs.iter().filter(|(of, _)| *of == call);
        let missing = self.dropped.get(&call).copied().unwrap_or_default();
        (its_own.map(|(_, output)| output.clone()).collect(), missing)
    }
}

fn bytes_of(output: &Output) -> usize {
    let buffers: usize = output.buffers.iter().map(bytes::Bytes::len).sum();
    output.content.len() + output.metadata.len() + buffers
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
        let mut shown = Shown::default();
        let quarter = MOST_BYTES / 8;
        let check = |shown: &Shown, call, there: usize, missing| {
            let (outputs, dropped) = shown.of(call);
            assert_eq!((outputs.len(), dropped), (there, missing), "{call}");
        };
        shown.note(1, &output("stream", quarter));
        shown.note(2, &output("comm_open", 1));
        check(&shown, 1, 1, 0);
        check(&shown, 2, 0, 0);
        for _ in 0..6 {
            shown.note(3, &output("display_data", quarter));
        }
        check(&shown, 1, 0, 1);
        check(&shown, 2, 0, 0);
        check(&shown, 3, 4, 2);
        shown.note(4, &output("stream", 0));
        check(&shown, 4, 1, 0);
        for _ in 0..MOST_OUTPUTS {
            shown.note(5, &output("stream", 1));
        }
        check(&shown, 1, 0, 1);
        check(&shown, 4, 0, 1);
        check(&shown, 5, MOST_OUTPUTS, 0);
    }
}
