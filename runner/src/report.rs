//! What a job says, as `baton_shim.session.programs.report` writes it.

use baton_jupyter_client::{Media, MediaType, Output};
use serde::Deserialize;
use serde_json::Value;

const MEDIA_TYPE: &str = "application/vnd.baton.run+json";

#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// The line about the job's place in the queue, its worker and its time.
    Status(String),
    Stream {
        name: &'static str,
        text: String,
    },
    Program(Message),
}

/// A message of Jupyter's protocol, from the notebook's own kernel, or one of these: `cell` (`number`) before a cell
/// runs, and `exit` (`status`) after a script.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Message {
    pub msg_type: String,
    pub content: Value,
    /// When the kernel sent it, as ISO 8601; empty for messages that are not a kernel's.
    pub date: String,
}

impl Report {
    pub(crate) fn of(output: Output) -> Option<Self> {
        let data = match output {
            Output::StreamContent(stream) => {
                let name = stream_name(&stream.name)?;
                let text = stream.text;
                return Some(Self::Stream { name, text });
            }
            Output::DisplayData(display) => display.data,
            Output::UpdateDisplayData(display) => display.data,
            _ => return None,
        };
        Self::of_media(data)
    }

    fn of_media(data: Media) -> Option<Self> {
        let mut status = None;
        for media in data.content {
            match media {
                MediaType::Other((kind, value)) if kind == MEDIA_TYPE => {
                    return serde_json::from_value(value).ok().map(Self::Program);
                }
                MediaType::Plain(text) => status = Some(Self::Status(text)),
                _ => {}
            }
        }
        status
    }
}

fn stream_name(name: &impl serde::Serialize) -> Option<&'static str> {
    match serde_json::to_value(name).ok()?.as_str()? {
        "stdout" => Some("stdout"),
        "stderr" => Some("stderr"),
        _ => None,
    }
}
