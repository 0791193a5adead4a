//! Compacts the messages that wait for a client that reads too slowly.
//!
//! First it joins streams. If that is not enough, it replaces displays by one line for each cell. `status`,
//! `execute_input`, `error`, `clear_output`, comm messages and unknown messages always stay.
//!
//! **Invariant:** pure, except for the date and the id of the messages that it writes. Messages
//! that stay keep their bytes and their order within their cell.

use super::MessageWriter;
use baton_jupyter_wire::{
    message::{DELIMITER, Draft, message_id},
    wire::decode_message,
};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use std::collections::HashMap;

/// The end of a joined stream is kept, because that is what a reader looks for.
const LONGEST_TEXT_BYTES: usize = 1 << 20;

/// Returns the messages to send instead of `messages`, at most `enough_bytes` in total if that is possible.
pub(super) fn compact(
    messages: Vec<Bytes>,
    writer: &MessageWriter,
    enough_bytes: usize,
) -> Vec<Bytes> {
    let waiting = join_streams(messages.into_iter().map(read));
    let joined: Vec<Bytes> = waiting.iter().map(|one| one.write(writer)).collect();
    if joined.iter().map(Bytes::len).sum::<usize>() <= enough_bytes {
        return joined;
    }
    drop(joined);
    let waiting = join_streams(replace_displays(waiting).into_iter());
    waiting.iter().map(|one| one.write(writer)).collect()
}

#[derive(Debug)]
enum Waiting {
    Stream(Stream),
    Display { parent: Parent, wire: Bytes },
    Other { cell: Option<String>, wire: Bytes },
}

#[derive(Debug, Clone)]
struct Parent {
    cell: String,
    header: Bytes,
    kernel_session: String,
}

#[derive(Debug)]
struct Stream {
    parent: Parent,
    name: String,
    text: String,
    /// Bytes of text dropped before `text`.
    lost_bytes: usize,
    /// The message as it was read, unless the text has been joined with another.
    wire: Option<Bytes>,
}

fn read(wire: Bytes) -> Waiting {
    let Some((kind, parent, content)) = read_parts(&wire) else {
        return Waiting::Other { cell: None, wire };
    };
    match kind.as_str() {
        "stream" => match serde_json::from_slice::<StreamContent>(&content) {
            Ok(StreamContent { name, text }) => Waiting::Stream(Stream {
                parent,
                name,
                text,
                lost_bytes: 0,
                wire: Some(wire),
            }),
            Err(_) => Waiting::Other {
                cell: Some(parent.cell),
                wire,
            },
        },
        "display_data" | "update_display_data" | "execute_result" => {
            Waiting::Display { parent, wire }
        }
        _ => Waiting::Other {
            cell: Some(parent.cell),
            wire,
        },
    }
}

#[derive(Deserialize)]
struct StreamContent {
    name: String,
    text: String,
}

fn read_parts(wire: &Bytes) -> Option<(String, Parent, Bytes)> {
    #[derive(Deserialize)]
    struct Header {
        msg_type: String,
        session: String,
    }
    let frames = decode_message(wire.clone()).ok()?;
    let delimiter = frames.iter().position(|frame| frame == DELIMITER)?;
    let [_, header, parent_header, _, content, ..] = &frames[delimiter + 1..] else {
        return None;
    };
    let header: Header = serde_json::from_slice(header).ok()?;
    let parent = Parent {
        cell: message_id(parent_header)?,
        header: parent_header.clone(),
        kernel_session: header.session,
    };
    Some((header.msg_type, parent, content.clone()))
}

impl Waiting {
    fn cell(&self) -> Option<&str> {
        match self {
            Self::Stream(stream) => Some(&stream.parent.cell),
            Self::Display { parent, .. } => Some(&parent.cell),
            Self::Other { cell, .. } => cell.as_deref(),
        }
    }

    fn write(&self, writer: &MessageWriter) -> Bytes {
        match self {
            Self::Stream(stream) => stream.write(writer),
            Self::Display { wire, .. } | Self::Other { wire, .. } => wire.clone(),
        }
    }
}

/// Joins text to earlier text of the same cell and stream if nothing else of that cell is in between.
fn join_streams(waiting: impl Iterator<Item = Waiting>) -> Vec<Waiting> {
    let mut joined: Vec<Waiting> = Vec::new();
    let mut last_of_cell: HashMap<String, usize> = HashMap::new();
    for one in waiting {
        let last = one.cell().and_then(|cell| last_of_cell.get(cell).copied());
        if let (Waiting::Stream(next), Some(Waiting::Stream(previous))) =
            (&one, last.and_then(|last| joined.get_mut(last)))
            && next.name == previous.name
        {
            previous.append(next);
            continue;
        }
        if let Some(cell) = one.cell() {
            last_of_cell.insert(cell.to_owned(), joined.len());
        }
        joined.push(one);
    }
    joined
}

/// Replaces a cell's first display by a line with the number of displays, and drops the others.
fn replace_displays(waiting: Vec<Waiting>) -> Vec<Waiting> {
    let mut displays: HashMap<String, usize> = HashMap::new();
    for one in &waiting {
        if let Waiting::Display { parent, .. } = one {
            *displays.entry(parent.cell.clone()).or_default() += 1;
        }
    }
    let mut kept = Vec::with_capacity(waiting.len());
    for one in waiting {
        match one {
            Waiting::Display { parent, .. } => {
                if let Some(count) = displays.remove(&parent.cell) {
                    kept.push(Waiting::Stream(omission_line(parent, count)));
                }
            }
            other => kept.push(other),
        }
    }
    kept
}

fn omission_line(parent: Parent, count: usize) -> Stream {
    let displays = if count == 1 {
        "display was"
    } else {
        "displays were"
    };
    Stream {
        parent,
        name: "stderr".to_owned(),
        text: format!(
            "Baton: {count} {displays} left out here, because this client reads too slowly\n"
        ),
        lost_bytes: 0,
        wire: None,
    }
}

impl Stream {
    fn append(&mut self, next: &Self) {
        self.wire = None;
        self.text.push_str(&next.text);
        if self.text.len() > 2 * LONGEST_TEXT_BYTES {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let mut start = self.text.len().saturating_sub(LONGEST_TEXT_BYTES);
        while !self.text.is_char_boundary(start) {
            start += 1;
        }
        self.text.drain(..start);
        self.lost_bytes += start;
    }

    fn write(&self, writer: &MessageWriter) -> Bytes {
        if let Some(wire) = &self.wire {
            return wire.clone();
        }
        let text = match self.lost_bytes {
            0 => self.text.clone(),
            lost => format!(
                "Baton: {lost} bytes were left out here, because this client reads too slowly\n{}",
                self.text
            ),
        };
        let content = json!({"name": self.name, "text": text}).to_string();
        let draft = Draft {
            parent_header: self.parent.header.clone(),
            ..Draft::new("stream", content)
        };
        let topic = format!("stream.{}", self.name);
        writer.write(topic.into(), draft, &self.parent.kernel_session)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use baton_jupyter_wire::message::Signer;

    fn writer() -> MessageWriter {
        MessageWriter {
            signer: Signer::new(b"key", "hmac-sha256").unwrap(),
        }
    }

    fn message(cell: &str, kind: &str, content: &serde_json::Value) -> Bytes {
        let draft = Draft {
            parent_header: json!({"msg_id": cell}).to_string().into(),
            ..Draft::new(kind, content.to_string())
        };
        writer().write(kind.to_owned().into(), draft, "s")
    }

    /// Builds messages from lines of the form `cell kind text`.
    fn messages(lines: &[&str]) -> Vec<Bytes> {
        let read = |line: &&str| {
            let [cell, kind, text] = line.splitn(3, ' ').collect::<Vec<_>>()[..] else {
                panic!("three words");
            };
            match kind {
                "stdout" | "stderr" => {
                    message(cell, "stream", &json!({"name": kind, "text": text}))
                }
                _ => message(cell, kind, &json!({"text": text})),
            }
        };
        lines.iter().map(read).collect()
    }

    fn lines(messages: &[Bytes]) -> Vec<String> {
        let line = |wire: &Bytes| {
            let (kind, parent, content) = read_parts(wire).unwrap();
            let content: serde_json::Value = serde_json::from_slice(&content).unwrap();
            let kind = content["name"].as_str().unwrap_or(&kind);
            format!(
                "{} {kind} {}",
                parent.cell,
                content["text"].as_str().unwrap()
            )
        };
        messages.iter().map(line).collect()
    }

    fn check(before: &[&str], enough_bytes: usize, after: &[&str]) {
        let compacted = compact(messages(before), &writer(), enough_bytes);
        assert_eq!(lines(&compacted), after);
    }

    #[test]
    fn streams_are_joined_within_their_cell() {
        check(
            &[
                "a stdout 1",
                "b stdout x",
                "a stdout 2",
                "a stderr 3",
                "a stdout 4",
                "b stdout y",
            ],
            usize::MAX,
            &["a stdout 12", "b stdout xy", "a stderr 3", "a stdout 4"],
        );
        check(
            &[
                "a stdout 1",
                "a clear_output w",
                "a stdout 2",
                "a display_data d",
            ],
            usize::MAX,
            &[
                "a stdout 1",
                "a clear_output w",
                "a stdout 2",
                "a display_data d",
            ],
        );
    }

    #[test]
    fn displays_give_way_and_nothing_else_does() {
        check(
            &[
                "a status busy",
                "a execute_input code",
                "a display_data 1",
                "a update_display_data 2",
                "b display_data 3",
                "a clear_output w",
                "a comm_msg c",
                "a error e",
                "a something_new s",
                "a execute_result 4",
                "a status idle",
            ],
            0,
            &[
                "a status busy",
                "a execute_input code",
                "a stderr Baton: 3 displays were left out here, because this client reads too slowly\n",
                "b stderr Baton: 1 display was left out here, because this client reads too slowly\n",
                "a clear_output w",
                "a comm_msg c",
                "a error e",
                "a something_new s",
                "a status idle",
            ],
        );
    }

    #[test]
    fn what_stays_alone_keeps_its_bytes_and_what_is_not_understood_stays() {
        let mut before = messages(&["a stdout 1", "a status idle"]);
        before.insert(0, Bytes::from_static(b"\0\x01\xff"));
        before.push(Bytes::from_static(b"\xff\0\0"));
        assert_eq!(compact(before.clone(), &writer(), 0), before);
    }

    #[test]
    fn of_endless_text_the_end_stays() {
        let many = vec![
            message(
                "a",
                "stream",
                &json!({"name": "stdout", "text": "é".repeat(100_000)})
            );
            40
        ];
        let compacted = compact(many, &writer(), 0);
        assert_eq!(compacted.len(), 1);
        assert!(compacted[0].len() < 3 * LONGEST_TEXT_BYTES);
        assert_eq!(read_parts(&compacted[0]).unwrap().1.kernel_session, "s");
        assert!(lines(&compacted)[0].contains("bytes were left out here"));
    }
}
