//! Iopub messages of the proxy itself.

use baton_protocol::Output;
use jupyter_protocol::{
    DisplayData, JupyterMessageContent, Media, MediaType, Transient, UpdateDisplayData,
};
use serde_json::json;

pub(super) fn output(content: impl Into<JupyterMessageContent>) -> Output {
    let content = content.into();
    Output::new(content.message_type(), json!(content).to_string())
}

/// A line of small, pale text. If it has an id, [`updated_line`] can change it.
pub(super) fn line(text: &str, display_id: Option<&str>) -> Output {
    output(DisplayData {
        transient: Some(Transient {
            display_id: display_id.map(str::to_owned),
        }),
        ..DisplayData::new(pale(text))
    })
}

pub(super) fn updated_line(text: &str, display_id: &str) -> Output {
    output(UpdateDisplayData::new(pale(text), display_id))
}

fn pale(text: &str) -> Media {
    let html = escaped(text).replace('\n', "<br>");
    Media::new(vec![
        MediaType::Plain(text.to_owned()),
        MediaType::Html(format!("<small style=\"opacity:0.7\">{html}</small>")),
    ])
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
