//! Reports of a job, as written by `baton_shim.session.programs.report`.

use baton_jupyter_client::{MediaType, Output, StreamName};
use serde::Deserialize;
use serde_json::Value;

/// The type of messages that carry a [`Message`].
const KIND: &str = "baton_run";

#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// The status line: the job's queue position, its worker and its time.
    Status(String),
    Stream {
        name: &'static str,
        text: String,
    },
    Program(Message),
}

/// A message of Jupyter's protocol from the notebook's own kernel, or one of these: `cell`
/// (`number`) before a cell runs, and `exit` (`status`) after a script.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Message {
    pub msg_type: String,
    pub content: Value,
    /// When the kernel sent it, as ISO 8601; empty for messages that are not from a kernel.
    pub date: String,
}

impl Report {
    pub(crate) fn of(output: Output) -> Option<Self> {
        let data = match output {
            Output::StreamContent(stream) => {
                let name = match stream.name {
                    StreamName::Stdout => "stdout",
                    StreamName::Stderr => "stderr",
                };
                let text = stream.text;
                return Some(Self::Stream { name, text });
            }
            Output::UnknownMessage(message) if message.msg_type == KIND => {
                return serde_json::from_value(message.content)
                    .ok()
                    .map(Self::Program);
            }
            Output::DisplayData(display) => display.data,
            Output::UpdateDisplayData(display) => display.data,
            _ => return None,
        };
        data.content.into_iter().find_map(|media| match media {
            MediaType::Plain(text) => Some(Self::Status(text)),
            _ => None,
        })
    }
}
