//! The output of a cell as plain text: for its owner, and for staff if the course permits it.
//!
//! **Invariant:** only this module of the broker looks into outputs.

use crate::web::ApiError;
use anstream::adapter::strip_str;
use baton_broker_store::{LastOutput, Store};
use baton_protocol::{JobId, Output};
use futures_util::TryStreamExt;
use tokio::task::spawn_blocking;

/// In bytes: of the text that a page shows, and of the text that is searched for it.
const LONGEST: usize = 32 << 10;
const SEARCHED: usize = 2 * LONGEST;
/// The most outputs that are searched for this text, and about how many bytes of them are read. A figure has many bytes
/// and little text.
const MOST_OUTPUTS: u32 = 200;
const MOST_READ_BYTES: u64 = 2 << 20;
const EARLIER: &str = "[baton] Earlier output is not shown here\n";

#[derive(serde::Deserialize)]
struct Content {
    text: Option<String>,
    data: Option<Data>,
    #[serde(default)]
    traceback: Vec<String>,
}

#[derive(serde::Deserialize)]
struct Data {
    #[serde(rename = "text/plain")]
    plain: Option<String>,
}

/// The end of the job's output, without colours and links.
pub(super) async fn text(store: &Store, job: JobId) -> Result<String, ApiError> {
    let mut outputs = store.events().last_outputs(job, MOST_OUTPUTS + 1);
    let mut pieces = Pieces::default();
    while let Some(output) = outputs.try_next().await? {
        if pieces.suffice() {
            pieces.lack_earlier = true;
            break;
        }
        let added = spawn_blocking(move || pieces.with(&output)).await;
        pieces = added.map_err(|_| ApiError::Ending)?;
    }
    let text = spawn_blocking(move || pieces.text()).await;
    text.map_err(|_| ApiError::Ending)
}

/// The texts of the last outputs.
#[derive(Default)]
struct Pieces {
    /// The last one first.
    texts: Vec<String>,
    text_bytes: usize,
    read_bytes: u64,
    /// There is earlier output.
    lack_earlier: bool,
}

impl Pieces {
    fn suffice(&self) -> bool {
        self.text_bytes >= SEARCHED
            || self.read_bytes >= MOST_READ_BYTES
            || self.texts.len() >= MOST_OUTPUTS as usize
    }

    /// Adds the output before the others.
    fn with(mut self, output: &LastOutput) -> Self {
        let text = match &output.content {
            Some(content) => {
                self.read_bytes += output.bytes;
                plain(content)
            }
            None => format!(
                "[baton] An output of {} is not shown here\n",
                baton_humanize::bytes(output.bytes)
            ),
        };
        self.text_bytes += text.len();
        self.texts.push(text);
        self
    }

    fn text(mut self) -> String {
        self.texts.reverse();
        let whole = self.texts.concat();
        let text = overwritten(&without_escapes(end(&whole, SEARCHED)));
        let shown = end(&text, LONGEST);
        let is_cut = self.lack_earlier || whole.len() > SEARCHED || shown.len() < text.len();
        match is_cut {
            true => format!("{EARLIER}{shown}"),
            false => shown.to_owned(),
        }
    }
}

fn plain(output: &Output) -> String {
    let Ok(content) = serde_json::from_slice::<Content>(&output.content) else {
        return String::new();
    };
    let plain = content.data.and_then(|data| data.plain);
    let lines = (!content.traceback.is_empty()).then(|| content.traceback.join("\n"));
    let pieces = [content.text, plain.map(|plain| plain + "\n"), lines];
    pieces.into_iter().flatten().collect()
}

/// The end of the text, of at most this many bytes.
fn end(text: &str, most_bytes: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(most_bytes))..]
}

/// Without the escape sequences of terminals: colours, links, movements of the cursor.
pub(super) fn without_escapes(text: &str) -> String {
    strip_str(text).to_string()
}

/// A carriage return moves to the start of the line, so only the text after the last one remains.
fn overwritten(text: &str) -> String {
    let lines = text.split('\n').map(|line| {
        let line = line.strip_suffix('\r').unwrap_or(line);
        line.rsplit('\r').next().unwrap_or(line)
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn what_a_terminal_would_show() {
        let output = |content: &str| LastOutput {
            bytes: content.len() as u64,
            content: Some(Output::new("", Bytes::copy_from_slice(content.as_bytes()))),
        };
        let text = |outputs: &[LastOutput]| {
            let mut outputs = outputs.iter().rev();
            outputs
                .by_ref()
                .fold(Pieces::default(), Pieces::with)
                .text()
        };
        let outputs = [
            output(r#"{"name": "stdout", "text": "one\n10%\r20%\n"}"#),
            output(r#"{"data": {"text/plain": "array([1])", "image/png": "x"}}"#),
            output(r#"{"ename": "E", "evalue": "", "traceback": ["\u001b[31mE\u001b[0m: no"]}"#),
            output("no JSON"),
            LastOutput {
                bytes: 3 << 20,
                content: None,
            },
        ];
        let shown = "one\n20%\narray([1])\nE: no[baton] An output of 3 MiB is not shown here\n";
        assert_eq!(text(&outputs), shown);
        let link =
            output(r#"{"text": "\u001b]8;;https://a.b\u001b\\here\u001b]8;;\u0007 \u001b7end"}"#);
        assert_eq!(text(&[link]), "here end");
        let long = output(&format!("{{\"text\": \"{}é\"}}", "é".repeat(LONGEST)));
        let shown = text(&[long]);
        assert!(shown.starts_with(EARLIER) && shown.len() <= EARLIER.len() + LONGEST);
    }
}
