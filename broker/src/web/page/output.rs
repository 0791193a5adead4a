//! The output of a cell as plain text: for its owner, and for staff if the course permits it.
//!
//! **Invariant:** only this module of the broker looks into outputs.

use anstream::adapter::strip_str;
use baton_broker_store::LastOutput;
use baton_protocol::Output;

/// In bytes: of the text that a page shows, and of the text that is searched for it.
const LONGEST: usize = 32 << 10;
const SEARCHED: usize = 2 * LONGEST;

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

/// The end of the output, without colours and links.
pub(super) fn text(outputs: &[LastOutput]) -> String {
    let mut pieces = Vec::new();
    let mut bytes = 0;
    for output in outputs.iter().rev() {
        if bytes >= SEARCHED {
            break;
        }
        let piece = match output {
            LastOutput::Read(output) => plain(output),
            LastOutput::TooLong { bytes } => format!(
                "[baton] An output of {} is not shown here\n",
                baton_humanize::bytes(*bytes)
            ),
        };
        bytes += piece.len();
        pieces.push(piece);
    }
    pieces.reverse();
    let text = pieces.concat();
    let text = overwritten(&without_escapes(end(&text, SEARCHED)));
    end(&text, LONGEST).to_owned()
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
        let output = |content: &str| {
            let content = Bytes::copy_from_slice(content.as_bytes());
            LastOutput::Read(Output::new("", content))
        };
        let outputs = [
            output(r#"{"name": "stdout", "text": "one\n10%\r20%\n"}"#),
            output(r#"{"data": {"text/plain": "array([1])", "image/png": "x"}}"#),
            output(r#"{"ename": "E", "evalue": "", "traceback": ["\u001b[31mE\u001b[0m: no"]}"#),
            output("no JSON"),
            LastOutput::TooLong { bytes: 3 << 20 },
        ];
        let shown = "one\n20%\narray([1])\nE: no[baton] An output of 3 MiB is not shown here\n";
        assert_eq!(text(&outputs), shown);
        let link =
            output(r#"{"text": "\u001b]8;;https://a.b\u001b\\here\u001b]8;;\u0007 \u001b7end"}"#);
        assert_eq!(text(&[link]), "here end");
        let long = output(&format!("{{\"text\": \"{}é\"}}", "é".repeat(LONGEST)));
        assert!(text(&[long]).len() <= LONGEST);
    }
}
