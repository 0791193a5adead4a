//! A WebSocket to the broker, with MessagePack documents in both directions.

use crate::{
    Dial, LinkError, TokenProblem,
    api::{self, authorization},
    dial::{CONNECT_TIMEOUT, Duplex},
};
use baton_protocol::{Bound, address::BrokerAddress, decode, encode};
use futures_util::{SinkExt, StreamExt};
use serde::{Serialize, de::DeserializeOwned};
use std::{marker::PhantomData, time::Duration};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_tungstenite::{
    WebSocketStream, client_async_with_config,
    tungstenite::{
        self, ClientRequestBuilder, Message,
        error::ProtocolError,
        http::{StatusCode, header::RETRY_AFTER},
        protocol::WebSocketConfig,
    },
};

/// The broker sends no larger messages. What it accepts is [`Bound::MESSAGE`].
pub const LARGEST_MESSAGE_BYTES: usize = 64 << 20;

/// After this silence the client pings the broker …
const QUIET: Duration = Duration::from_secs(20);

/// … which has this long to answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long the broker may accept no byte of a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// A connection that receives `Incoming` from the broker and sends `Outgoing`.
pub struct Connection<Incoming, Outgoing> {
    socket: WebSocketStream<Box<dyn Duplex>>,
    dial: Dial,
    last_received: Instant,
    pinged: Option<Instant>,
    messages: PhantomData<fn(Outgoing) -> Incoming>,
}

/// Connects to a path of the broker, for example `/v1/proxy`.
pub async fn connect<Incoming, Outgoing>(
    dial: &Dial,
    path: &str,
) -> Result<Connection<Incoming, Outgoing>, LinkError> {
    match connect_once(dial, path).await {
        Err(LinkError::Unauthorized { .. }) if dial.was_exchanged() => {
            connect_once(dial, path).await
        }
        connected => connected,
    }
}

async fn connect_once<Incoming, Outgoing>(
    dial: &Dial,
    path: &str,
) -> Result<Connection<Incoming, Outgoing>, LinkError> {
    let authorization = authorization(dial).await?;
    let socket = dial.open().await?;
    let url = dial.url(path).replacen("http", "ws", 1);
    let uri = url
        .parse()
        .map_err(|_| LinkError::Answer("its address is not a URL"))?;
    let mut request = ClientRequestBuilder::new(uri);
    if let Some(authorization) = authorization {
        request = request.with_header("Authorization", authorization);
    }
    let mut config = WebSocketConfig::default();
    config.max_message_size = Some(LARGEST_MESSAGE_BYTES);
    config.max_frame_size = Some(LARGEST_MESSAGE_BYTES);
    let handshake = client_async_with_config(request, socket, Some(config));
    match timeout(CONNECT_TIMEOUT, handshake).await {
        Ok(Ok((socket, _))) => Ok(Connection {
            socket,
            dial: dial.clone(),
            last_received: Instant::now(),
            pinged: None,
            messages: PhantomData,
        }),
        Ok(Err(error)) => Err(handshake_failed(dial, path, error)),
        Err(_) => Err(dial.no_answer()),
    }
}

impl<Incoming: DeserializeOwned, Outgoing: Serialize> Connection<Incoming, Outgoing> {
    /// Sends a message.
    ///
    /// # Errors
    /// [`LinkError::TooLarge`] if the broker would not accept the message. Nothing is sent then, and the connection can
    /// still be used.
    pub async fn send(&mut self, message: &Outgoing) -> Result<(), LinkError> {
        let bytes = encode(message);
        Bound::MESSAGE
            .check_encoded(&bytes)
            .map_err(|excess| LinkError::TooLarge { excess })?;
        let sending = self.socket.send(Message::binary(bytes));
        match timeout(SEND_TIMEOUT, sending).await {
            Ok(result) => result.map_err(|error| unreachable(&self.dial.address, error)),
            Err(_) => Err(self.dial.no_answer()),
        }
    }

    /// Returns the next message; `None` once the connection has ended. Cancel safe.
    ///
    /// Answers the broker's pings, and pings the broker after a long silence.
    pub async fn receive(&mut self) -> Result<Option<Incoming>, LinkError> {
        loop {
            let deadline = self
                .pinged
                .map_or(self.last_received + QUIET, |pinged| pinged + PATIENCE);
            let Ok(next) = timeout_at(deadline, self.socket.next()).await else {
                self.ping().await?;
                continue;
            };
            self.last_received = Instant::now();
            self.pinged = None;
            match next {
                Some(Ok(Message::Binary(bytes))) => return Ok(Some(decode(&bytes)?)),
                Some(Ok(Message::Text(_))) => {
                    return Err(LinkError::Answer("a message is text"));
                }
                Some(Ok(Message::Close(_))) | None => return Ok(None),
                Some(Ok(_)) => {}
                Some(Err(error)) if is_end(&error) => return Ok(None),
                Some(Err(error)) => return Err(unreachable(&self.dial.address, error)),
            }
        }
    }

    /// Closes the connection, so that the broker does not have to wait for a timeout.
    pub async fn close(mut self) {
        let _ = timeout(Duration::from_secs(1), self.socket.close(None)).await;
    }

    async fn ping(&mut self) -> Result<(), LinkError> {
        if self.pinged.is_some() {
            return Err(self.dial.no_answer());
        }
        self.pinged = Some(Instant::now());
        let ping = self.socket.send(Message::Ping(Vec::new().into()));
        match timeout(PATIENCE, ping).await {
            Ok(result) => result.map_err(|error| unreachable(&self.dial.address, error)),
            Err(_) => Err(self.dial.no_answer()),
        }
    }
}

fn handshake_failed(dial: &Dial, path: &str, error: tungstenite::Error) -> LinkError {
    let address = dial.address.clone();
    let response = match error {
        tungstenite::Error::Http(response) => response,
        tungstenite::Error::Io(error) => return dial.failed(error),
        error => return unreachable(&address, error),
    };
    if response.status() == StatusCode::BAD_REQUEST
        && let Some(error) = response.body().as_ref().and_then(|body| api::refused(body))
    {
        return error;
    }
    let too_much = |body: &Vec<u8>| api::too_much(body, response.headers().get(RETRY_AFTER));
    if response.status() == StatusCode::TOO_MANY_REQUESTS
        && let Some(error) = response.body().as_ref().and_then(too_much)
    {
        return error;
    }
    if response.status() == StatusCode::SERVICE_UNAVAILABLE
        && let Some(error) = response.body().as_ref().and_then(|body| api::unable(body))
    {
        return error;
    }
    match response.status() {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            let body = response.body().as_ref();
            let refusal = body.and_then(|body| serde_json::from_slice(body).ok());
            LinkError::Unauthorized {
                address,
                problem: TokenProblem::of(dial.token.as_ref(), refusal.as_ref()),
            }
        }
        StatusCode::NOT_FOUND => LinkError::NotFound {
            address,
            path: path.to_owned(),
        },
        status => LinkError::Status {
            status: status.as_u16(),
            text: response
                .into_body()
                .map(|body| String::from_utf8_lossy(&body).into_owned())
                .unwrap_or_default(),
        },
    }
}

fn unreachable(address: &BrokerAddress, error: tungstenite::Error) -> LinkError {
    LinkError::Unreachable {
        address: address.clone(),
        source: Box::new(error),
    }
}

/// Whether the connection has ended. A broker that was killed does not close it; the caller sees no difference.
fn is_end(error: &tungstenite::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match error {
        tungstenite::Error::ConnectionClosed
        | tungstenite::Error::AlreadyClosed
        | tungstenite::Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => true,
        tungstenite::Error::Io(error) => {
            matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
        }
        _ => false,
    }
}
