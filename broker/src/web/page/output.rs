//! The output of a cell as plain text: for its owner, and for staff if the course permits it.
//!
//! **Invariant:** only this module of the broker looks into outputs.

use anstream::adapter::strip_str;
use baton_protocol::Output;

const LONGEST: usize = 32 << 10;

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
pub(super) fn text(outputs: &[Output]) -> String {
    let mut text = String::new();
    for output in outputs {
        let Ok(content) = serde_json::from_slice::<Content>(&output.content) else {
            continue;
        };
        let plain = content.data.and_then(|data| data.plain);
        let lines = (!content.traceback.is_empty()).then(|| content.traceback.join("\n"));
        for piece in [content.text, plain.map(|plain| plain + "\n"), lines]
            .into_iter()
            .flatten()
        {
            text.push_str(&piece);
        }
    }
    let text = overwritten(&without_escapes(&text));
    let start = text.len().saturating_sub(LONGEST);
    let start = (start..text.len()).find(|at| text.is_char_boundary(*at));
    text[start.unwrap_or(0)..].to_owned()
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
        let output = |content: &str| Output {
            kind: String::new(),
            content: Bytes::copy_from_slice(content.as_bytes()),
            metadata: Bytes::new(),
            buffers: Vec::new(),
        };
        let outputs = [
            output(r#"{"name": "stdout", "text": "one\n10%\r20%\n"}"#),
            output(r#"{"data": {"text/plain": "array([1])", "image/png": "x"}}"#),
            output(r#"{"ename": "E", "evalue": "", "traceback": ["\u001b[31mE\u001b[0m: no"]}"#),
            output("no JSON"),
        ];
        assert_eq!(text(&outputs), "one\n20%\narray([1])\nE: no");
        let link =
            output(r#"{"text": "\u001b]8;;https://a.b\u001b\\here\u001b]8;;\u0007 \u001b7end"}"#);
        assert_eq!(text(&[link]), "here end");
        let long = output(&format!("{{\"text\": \"{}é\"}}", "é".repeat(LONGEST)));
        assert!(text(&[long]).len() <= LONGEST);
    }
}
