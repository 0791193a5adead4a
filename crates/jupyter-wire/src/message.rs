//! Baton's own Jupyter messages, signed and ready to be sent.
//!
//! In: type, content and the parent's header as received. Out: frames.
//!
//! **Invariant:** messages of other programs are never written here. The parent header keeps the
//! sender's bytes, so fields unknown to this program (`subshell_id`) survive.

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Sha256, Sha512};
use uuid::Uuid;

pub const DELIMITER: &[u8] = b"<IDS|MSG>";
const PROTOCOL_VERSION: &str = "5.3";
const EMPTY_OBJECT: Bytes = Bytes::from_static(b"{}");

#[derive(Debug, thiserror::Error)]
#[error("The signature scheme {0:?} is not supported; hmac-sha256 and hmac-sha512 are")]
pub struct UnknownScheme(String);

/// Signs with one kernel's key.
#[derive(Clone)]
pub struct Signer {
    /// `None`: messages are not signed.
    mac: Option<Code>,
}

#[derive(Clone)]
enum Code {
    Sha256(Hmac<Sha256>),
    Sha512(Hmac<Sha512>),
}

impl Code {
    #[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
    fn new(key: &[u8], scheme: &str) -> Option<Self> {
        let any_key = "HMAC takes keys of any length";
        match scheme {
            "hmac-sha256" => Some(Self::Sha256(Hmac::new_from_slice(key).expect(any_key))),
            "hmac-sha512" => Some(Self::Sha512(Hmac::new_from_slice(key).expect(any_key))),
            _ => None,
        }
    }

    fn of(&self, parts: [&[u8]; 4]) -> String {
        match self {
            Self::Sha256(mac) => digest(mac.clone(), parts),
            Self::Sha512(mac) => digest(mac.clone(), parts),
        }
    }
}

fn digest(mut mac: impl Mac, parts: [&[u8]; 4]) -> String {
    for part in parts {
        mac.update(part);
    }
    let digest = mac.finalize().into_bytes();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Signer {
    /// An empty key means that messages are not signed, whatever the scheme.
    pub fn new(key: &[u8], scheme: &str) -> Result<Self, UnknownScheme> {
        if key.is_empty() {
            return Ok(Self { mac: None });
        }
        let mac = Code::new(key, scheme).ok_or_else(|| UnknownScheme(scheme.to_owned()))?;
        Ok(Self { mac: Some(mac) })
    }

    /// Signs header, parent header, metadata and content. Buffers are not signed.
    fn sign(&self, parts: [&[u8]; 4]) -> String {
        self.mac
            .as_ref()
            .map_or_else(String::new, |mac| mac.of(parts))
    }
}

/// The content of a message. Header and signature are made when it is sent.
#[derive(Debug, Clone)]
pub struct Draft {
    pub message_id: String,
    pub kind: String,
    /// The header of the message that this one answers, as received. `{}` if there is none.
    pub parent_header: Bytes,
    pub metadata: Bytes,
    pub content: Bytes,
    pub buffers: Vec<Bytes>,
}

impl Draft {
    /// A message with a fresh id and no parent.
    #[must_use]
    pub fn new(kind: &str, content: impl Into<Bytes>) -> Self {
        Self {
            message_id: Uuid::new_v4().simple().to_string(),
            kind: kind.to_owned(),
            parent_header: EMPTY_OBJECT,
            metadata: EMPTY_OBJECT,
            content: content.into(),
            buffers: Vec::new(),
        }
    }

    /// Returns the frames from the delimiter on. Never send the result twice: clients refuse a
    /// signature that they have seen.
    #[must_use]
    pub fn sign(self, signer: &Signer, session: &str) -> Vec<Bytes> {
        let header = Header {
            msg_id: &self.message_id,
            msg_type: &self.kind,
            username: "baton",
            session,
            date: &format!("{:.6}", Timestamp::now()),
            version: PROTOCOL_VERSION,
        };
        let header = Bytes::from(serde_json::json!(header).to_string());
        let signature = signer.sign([&header, &self.parent_header, &self.metadata, &self.content]);
        let mut frames = vec![
            Bytes::from_static(DELIMITER),
            signature.into(),
            header,
            self.parent_header,
            self.metadata,
            self.content,
        ];
        frames.extend(self.buffers);
        frames
    }
}

#[derive(Serialize)]
struct Header<'a> {
    msg_id: &'a str,
    msg_type: &'a str,
    username: &'a str,
    session: &'a str,
    date: &'a str,
    version: &'a str,
}

/// The first frame of an iopub message, which subscribers filter by. Matches ipykernel's.
#[must_use]
pub fn iopub_topic(kind: &str, content: &[u8]) -> String {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Content {
        name: String,
        comm_id: String,
    }
    let content = || serde_json::from_slice::<Content>(content).unwrap_or_default();
    match kind {
        "stream" => format!("stream.{}", content().name),
        "display_data" | "update_display_data" | "clear_output" => "display_data".to_owned(),
        "comm_open" | "comm_msg" | "comm_close" => format!("comm-{}", content().comm_id),
        other => other.to_owned(),
    }
}

/// The `msg_id` of a header, which may contain any other fields.
#[must_use]
pub fn message_id(header: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Header {
        msg_id: String,
    }
    let header: Header = serde_json::from_slice(header).ok()?;
    Some(header.msg_id)
}

/// The `msg_type` of a header.
#[must_use]
pub fn message_type(header: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Header {
        msg_type: String,
    }
    let header: Header = serde_json::from_slice(header).ok()?;
    Some(header.msg_type)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_signature_is_that_of_jupyter_client() {
        let signer = Signer::new(b"secret", "hmac-sha256").unwrap();
        // hmac.new(b"secret", b'{"a":1}{}{}{"b":2}', "sha256").hexdigest()
        assert_eq!(
            signer.sign([b"{\"a\":1}", b"{}", b"{}", b"{\"b\":2}"]),
            "9b14d94617bffb278285cea390d9dc17e01ec3188dba313f9548021906557a7b"
        );
    }

    #[test]
    fn an_empty_key_means_unsigned() {
        let frames = Draft::new("stream", "{}").sign(&Signer::new(b"", "whatever").unwrap(), "s");
        assert_eq!(frames[0], DELIMITER);
        assert!(frames[1].is_empty());
        assert!(Signer::new(b"key", "hmac-md5").is_err());
    }

    #[test]
    fn the_header_is_what_clients_expect_and_the_parent_stays_as_it_came() {
        let parent = Bytes::from_static(br#"{ "msg_id" : "m", "subshell_id": null }"#);
        let draft = Draft {
            parent_header: parent.clone(),
            buffers: vec![Bytes::from_static(b"buffer")],
            ..Draft::new("stream", r#"{"name":"stdout","text":"x"}"#)
        };
        let frames = draft.sign(&Signer::new(b"k", "hmac-sha256").unwrap(), "session");
        assert_eq!(frames[3], parent);
        assert_eq!(frames[6], "buffer");
        let header: jupyter_protocol::Header = serde_json::from_slice(&frames[2]).unwrap();
        assert_eq!(header.msg_type, "stream");
        assert_eq!(message_id(&frames[2]).unwrap(), header.msg_id);
        assert_eq!(message_type(&frames[2]).as_deref(), Some("stream"));
        assert_eq!(message_id(&parent).as_deref(), Some("m"));
    }

    #[test]
    fn topics_are_those_of_ipykernel() {
        let check = |kind, content: &str, expected| {
            assert_eq!(iopub_topic(kind, content.as_bytes()), expected);
        };
        check("stream", r#"{"name":"stderr"}"#, "stream.stderr");
        check("update_display_data", "{}", "display_data");
        check("clear_output", "{}", "display_data");
        check("comm_msg", r#"{"comm_id":"7"}"#, "comm-7");
        check("error", "{}", "error");
    }
}
