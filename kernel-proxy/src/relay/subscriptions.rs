//! The subscriptions of one iopub client, read from the bytes that it sends the kernel.
//!
//! **Invariant:** pure; the kernel receives the same bytes and filters its own messages.

use baton_jupyter_wire::wire::Ended;

/// Prefixes of topics. A topic that was subscribed twice must be cancelled twice, as in ZeroMQ.
#[derive(Debug, Default)]
pub(super) struct Subscriptions {
    prefixes: Vec<Vec<u8>>,
}

impl Subscriptions {
    /// ZMTP 3.0 subscribes by messages that begin with 1 or 0, ZMTP 3.1 by commands. Returns true
    /// if a topic was added.
    pub(super) fn note(&mut self, said: &Ended<'_>) -> bool {
        match said {
            Ended::Message(message) => match message.first_frame() {
                Some([1, prefix @ ..]) => self.add(prefix),
                Some([0, prefix @ ..]) => self.remove(prefix),
                _ => false,
            },
            Ended::Command(command) => match command.split_first() {
                Some((9, rest)) => match rest.strip_prefix(b"SUBSCRIBE") {
                    Some(prefix) => self.add(prefix),
                    None => false,
                },
                Some((6, rest)) => match rest.strip_prefix(b"CANCEL") {
                    Some(prefix) => self.remove(prefix),
                    None => false,
                },
                _ => false,
            },
        }
    }

    pub(super) fn want(&self, topic: &str) -> bool {
        let mut prefixes = self.prefixes.iter();
        prefixes.any(|prefix| topic.as_bytes().starts_with(prefix))
    }

    /// Whether the client sees every message of a cell.
    pub(super) fn want_everything(&self) -> bool {
        self.prefixes.iter().any(Vec::is_empty)
    }

    fn add(&mut self, prefix: &[u8]) -> bool {
        self.prefixes.push(prefix.to_owned());
        true
    }

    fn remove(&mut self, prefix: &[u8]) -> bool {
        if let Some(index) = self.prefixes.iter().position(|known| known == prefix) {
            self.prefixes.swap_remove(index);
        }
        false
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use baton_jupyter_wire::wire::Tracker;

    /// `said`: the bytes that the client sends, with frame headers.
    fn check(said: &[&[u8]], topic: &str, expected: bool) {
        let mut subscriptions = Subscriptions::default();
        for bytes in said {
            let mut tracker = Tracker::after_greeting();
            let step = tracker.advance(bytes).unwrap();
            subscriptions.note(&step.ended.unwrap());
        }
        assert_eq!(subscriptions.want(topic), expected, "{said:?}");
    }

    #[test]
    fn both_dialects_are_understood() {
        check(&[], "stream.stdout", false);
        check(&[b"\0\x01\x01"], "stream.stdout", true);
        check(&[b"\0\x07\x01stream"], "stream.stdout", true);
        check(&[b"\0\x07\x01stream"], "display_data", false);
        check(&[b"\x04\x0a\x09SUBSCRIBE"], "display_data", true);
        check(
            &[b"\x04\x0a\x09SUBSCRIBE", b"\x04\x07\x06CANCEL"],
            "x",
            false,
        );
        check(&[b"\0\x01\x01", b"\0\x01\x01", b"\0\x01\0"], "x", true);
        check(&[b"\x04\x06\x05READY"], "x", false);
    }
}
