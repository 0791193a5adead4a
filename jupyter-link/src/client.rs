//! A client of one kernel, over `ipc`.
//!
//! In: the requests of whoever owns the kernel. Out: what the kernel says on shell, control and iopub, one message
//! after the other. Content, metadata and buffers stay the bytes that the kernel wrote.
//!
//! Signatures of the kernel are not checked: its sockets lie in a folder that only this user can enter.
//!
//! **Invariant:** iopub is read whenever [`KernelStream::next`] is polled, and nothing is dropped here. Who stops
//! polling makes the kernel's own queue overflow, so a kernel is always listened to.

use std::path::PathBuf;
use std::time::Duration;

use baton_protocol::shim::END_OF_OUTPUT;
use bytes::Bytes;
use jupyter_protocol::{ExecuteRequest, KernelInfoRequest, ShutdownRequest};
use serde::{Deserialize, Serialize};
use tokio::net::UnixStream;
use zeromq::{
    DealerRecvHalf, DealerSendHalf, DealerSocket, Socket, SocketRecv, SocketSend, SubSocket,
    ZmqError, ZmqMessage,
};

use crate::connection::{Channel, ConnectionError, ConnectionFile, Endpoint};
use crate::message::{DELIMITER, Draft, Signer, UnknownScheme};

/// How often a socket that is not there yet is tried.
const SOCKET_POLL: Duration = Duration::from_millis(3);

/// How long an answer to `kernel_info_request` may take before it is asked again.
const INFO_PATIENCE: Duration = Duration::from_millis(200);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    #[error("The connection to the kernel's socket {path} failed")]
    Connect {
        path: PathBuf,
        #[source]
        source: ZmqError,
    },
    #[error("The connection to the kernel broke")]
    Socket(#[from] ZmqError),
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Scheme(#[from] UnknownScheme),
    #[error("A kernel that is not on ipc is not one of ours")]
    NotIpc,
    #[error("A request could not be written as JSON")]
    Encode(#[from] serde_json::Error),
    #[error("A message with {frames} frames of the kernel could not be read: {problem}")]
    Malformed {
        frames: usize,
        problem: &'static str,
    },
}

/// Sends requests to one kernel.
pub struct KernelClient {
    shell: DealerSendHalf,
    control: DealerSendHalf,
    signer: Signer,
    /// As every client of a kernel has one.
    session: String,
}

/// Hears what one kernel says.
pub struct KernelStream {
    shell: DealerRecvHalf,
    control: DealerRecvHalf,
    iopub: SubSocket,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Shell,
    Control,
    Iopub,
}

/// One message of a kernel.
#[derive(Debug, Clone)]
pub struct KernelMessage {
    pub source: Source,
    /// The Jupyter message type, for example `stream`.
    pub kind: String,
    /// The `msg_id` of the request that this belongs to; empty when there is none.
    pub parent_id: String,
    pub content: Bytes,
    pub metadata: Bytes,
    pub buffers: Vec<Bytes>,
}

impl KernelMessage {
    #[must_use]
    pub fn is_idle_of(&self, message_id: &str) -> bool {
        self.source == Source::Iopub
            && self.kind == "status"
            && self.parent_id == message_id
            && memchr::memmem::find(&self.content, b"\"idle\"").is_some()
    }

    /// Nothing more is published for this request.
    #[must_use]
    pub fn is_end_of_output_of(&self, message_id: &str) -> bool {
        self.source == Source::Iopub && self.kind == END_OF_OUTPUT && self.parent_id == message_id
    }
}

/// Connects as soon as the kernel listens, and returns when it answers on shell and iopub. Waits for ever for a
/// kernel that never comes: the caller watches the process and the clock.
pub async fn connect(
    connection: &ConnectionFile,
) -> Result<(KernelClient, KernelStream), ClientError> {
    let mut iopub = SubSocket::new();
    iopub.subscribe("").await?;
    connect_socket(&mut iopub, connection, Channel::Iopub).await?;
    let mut shell = DealerSocket::new();
    connect_socket(&mut shell, connection, Channel::Shell).await?;
    let mut control = DealerSocket::new();
    connect_socket(&mut control, connection, Channel::Control).await?;

    let (shell_sender, shell_receiver) = shell.split();
    let (control_sender, control_receiver) = control.split();
    let mut client = KernelClient {
        shell: shell_sender,
        control: control_sender,
        signer: Signer::new(&connection.key(), connection.signature_scheme())?,
        session: uuid::Uuid::new_v4().simple().to_string(),
    };
    let mut stream = KernelStream {
        shell: shell_receiver,
        control: control_receiver,
        iopub,
    };
    await_answers(&mut client, &mut stream).await?;
    Ok((client, stream))
}

/// The crate's own way to wait for a socket costs up to 200 ms more than looking often.
async fn connect_socket<S: Socket>(
    socket: &mut S,
    connection: &ConnectionFile,
    channel: Channel,
) -> Result<(), ClientError> {
    let endpoint = connection.endpoint(channel)?;
    let Endpoint::Ipc(path) = &endpoint else {
        return Err(ClientError::NotIpc);
    };
    while UnixStream::connect(path).await.is_err() {
        tokio::time::sleep(SOCKET_POLL).await;
    }
    socket
        .connect(&endpoint.to_string())
        .await
        .map_err(|source| ClientError::Connect {
            path: path.clone(),
            source,
        })
}

/// A subscription takes effect some time after the connection: what is published before is lost.
async fn await_answers(
    client: &mut KernelClient,
    stream: &mut KernelStream,
) -> Result<(), ClientError> {
    let (mut shell_answered, mut iopub_answered) = (false, false);
    while !(shell_answered && iopub_answered) {
        client.request_info().await?;
        let patience = tokio::time::sleep(INFO_PATIENCE);
        tokio::pin!(patience);
        while !(shell_answered && iopub_answered) {
            tokio::select! {
                message = stream.next() => match message?.source {
                    Source::Shell => shell_answered = true,
                    Source::Iopub => iopub_answered = true,
                    Source::Control => {}
                },
                () = &mut patience => break,
            }
        }
    }
    Ok(())
}

impl KernelClient {
    /// A request whose `msg_id` the caller chose.
    pub async fn execute(
        &mut self,
        message_id: &str,
        request: &ExecuteRequest,
    ) -> Result<(), ClientError> {
        let mut draft = draft("execute_request", request)?;
        message_id.clone_into(&mut draft.message_id);
        let message = self.sign(draft);
        Ok(self.shell.send(message).await?)
    }

    /// Asks the kernel to end.
    pub async fn shut_down(&mut self) -> Result<(), ClientError> {
        let message = self.sign(draft(
            "shutdown_request",
            &ShutdownRequest { restart: false },
        )?);
        Ok(self.control.send(message).await?)
    }

    async fn request_info(&mut self) -> Result<(), ClientError> {
        let message = self.sign(draft("kernel_info_request", &KernelInfoRequest {})?);
        Ok(self.shell.send(message).await?)
    }

    fn sign(&self, draft: Draft) -> ZmqMessage {
        let mut frames = draft.sign(&self.signer, &self.session).into_iter();
        let mut message = ZmqMessage::from(frames.next().unwrap_or_default());
        frames.for_each(|frame| message.push_back(frame));
        message
    }
}

fn draft(kind: &str, content: &impl Serialize) -> Result<Draft, ClientError> {
    Ok(Draft::new(kind, serde_json::to_vec(content)?))
}

impl KernelStream {
    /// The next message, whichever socket it comes from. Cancel safe.
    pub async fn next(&mut self) -> Result<KernelMessage, ClientError> {
        tokio::select! {
            message = self.shell.recv() => decode(Source::Shell, message?),
            message = self.control.recv() => decode(Source::Control, message?),
            message = self.iopub.recv() => decode(Source::Iopub, message?),
        }
    }
}

#[derive(Deserialize)]
struct HeaderPart {
    msg_type: String,
}

#[derive(Deserialize)]
struct ParentPart {
    #[serde(default)]
    msg_id: String,
}

fn decode(source: Source, message: ZmqMessage) -> Result<KernelMessage, ClientError> {
    let frames = message.into_vec();
    let malformed = |problem| ClientError::Malformed {
        frames: frames.len(),
        problem,
    };
    let delimiter = frames
        .iter()
        .position(|frame| frame.as_ref() == DELIMITER)
        .ok_or_else(|| malformed("no <IDS|MSG> delimiter"))?;
    // The frame behind the delimiter is the signature.
    let [header, parent, metadata, content, buffers @ ..] = frames
        .get(delimiter + 2..)
        .ok_or_else(|| malformed("no signature"))?
    else {
        return Err(malformed("fewer than four parts"));
    };
    let header: HeaderPart =
        serde_json::from_slice(header).map_err(|_| malformed("the header has no msg_type"))?;
    let parent: ParentPart = serde_json::from_slice(parent)
        .map_err(|_| malformed("the parent header is not an object"))?;
    Ok(KernelMessage {
        source,
        kind: header.msg_type,
        parent_id: parent.msg_id,
        content: content.clone(),
        metadata: metadata.clone(),
        buffers: buffers.to_vec(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn message(frames: &[&'static [u8]]) -> ZmqMessage {
        let frames: Vec<Bytes> = frames.iter().copied().map(Bytes::from_static).collect();
        ZmqMessage::try_from(frames).unwrap()
    }

    #[test]
    fn content_stays_the_bytes_that_the_kernel_wrote() {
        let read = decode(
            Source::Iopub,
            message(&[
                b"stream.stdout",
                DELIMITER,
                b"signature",
                br#"{"msg_type": "stream", "unknown": 1}"#,
                br#"{"msg_id": "m1", "subshell_id": null}"#,
                b"{}",
                br#"{"name":  "stdout", "text": "a\u00e9"}"#,
                b"\x00\xff",
            ]),
        )
        .unwrap();
        assert_eq!(read.kind, "stream");
        assert_eq!(read.parent_id, "m1");
        assert_eq!(
            read.content.as_ref(),
            br#"{"name":  "stdout", "text": "a\u00e9"}"#
        );
        assert_eq!(read.buffers, [Bytes::from_static(b"\x00\xff")]);
    }

    #[test]
    fn a_message_without_parent_is_read() {
        let frames: [&[u8]; 6] = [
            DELIMITER,
            b"",
            br#"{"msg_type":"status"}"#,
            b"{}",
            b"{}",
            b"{}",
        ];
        assert_eq!(
            decode(Source::Iopub, message(&frames)).unwrap().parent_id,
            ""
        );
    }

    #[test]
    fn idle_is_known_by_its_parent() {
        let frames: [&[u8]; 6] = [
            DELIMITER,
            b"",
            br#"{"msg_type":"status"}"#,
            br#"{"msg_id":"m1"}"#,
            b"{}",
            br#"{"execution_state": "idle"}"#,
        ];
        let status = decode(Source::Iopub, message(&frames)).unwrap();
        assert!(status.is_idle_of("m1"));
        assert!(!status.is_idle_of("m2"));
    }

    #[test]
    fn damaged_messages_are_refused() {
        for frames in [
            &[b"no delimiter".as_slice()][..],
            &[DELIMITER],
            &[DELIMITER, b"", b"{}", b"{}", b"{}"],
            &[DELIMITER, b"", b"not json", b"{}", b"{}", b"{}"],
        ] {
            assert!(matches!(
                decode(Source::Shell, message(frames)),
                Err(ClientError::Malformed { .. })
            ));
        }
    }
}
