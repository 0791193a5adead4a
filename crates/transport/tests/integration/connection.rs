//! Messages in both directions, and every way in which a server can fail to be a broker.

use crate::server::{Server, dial, nobody};
use axum::{
    Router,
    extract::ws::{Message, WebSocket, WebSocketUpgrade},
    http::{HeaderMap, StatusCode},
    routing::any,
};
use baton_protocol::{
    Answer, Bound, JobId, PROTOCOL_VERSION, Payload, Piece, Refusal,
    address::BrokerAddress,
    decode, encode,
    proxy::{FromProxy, ToProxy},
};
use baton_transport::{Connection, Dial, LinkError, connect};
use std::{path::PathBuf, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

type Proxy = Connection<ToProxy, FromProxy>;

fn router<Serve: Future<Output = ()> + Send + 'static>(
    serve: impl Fn(WebSocket) -> Serve + Clone + Send + Sync + 'static,
) -> Router {
    let upgrade = |upgrade: WebSocketUpgrade, headers: HeaderMap| async move {
        assert_eq!(headers["authorization"], "Bearer open sesame");
        upgrade.on_upgrade(serve)
    };
    Router::new().route("/v1/proxy", any(upgrade))
}

/// Answers a message with what was decoded from it.
async fn echo(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        let Message::Binary(bytes) = message else {
            continue;
        };
        let FromProxy::Cancel { job } = decode(&bytes).unwrap() else {
            panic!("a cancel was sent")
        };
        let answer = encode(&ToProxy::UnknownJob { job });
        socket
            .send(Message::Ping("are you there".into()))
            .await
            .unwrap();
        socket.send(Message::binary(answer)).await.unwrap();
    }
}

async fn check_echo(server: Server) {
    let mut connection: Proxy = connect(&server.dial, "/v1/proxy").await.unwrap();
    for _ in 0..3 {
        let job = JobId::random();
        connection.send(&FromProxy::Cancel { job }).await.unwrap();
        let answer = connection.receive().await.unwrap();
        assert_eq!(answer, Some(ToProxy::UnknownJob { job }));
    }
}

#[tokio::test]
async fn messages_go_both_ways_over_tcp() {
    check_echo(Server::tcp(router(echo)).await).await;
}

#[tokio::test]
async fn messages_go_both_ways_over_a_unix_socket() {
    check_echo(Server::unix(router(echo))).await;
}

#[tokio::test]
async fn a_large_message_arrives() {
    const BYTES: usize = 40 << 20;
    async fn measure(mut socket: WebSocket) {
        let message = socket.recv().await.unwrap().unwrap();
        let broker_version = message.into_data().len().to_string();
        let text = " ".repeat(BYTES) + &broker_version;
        let welcome = ToProxy::Welcome {
            broker_version: text,
            autosave: false,
            course: None,
        };
        socket
            .send(Message::binary(encode(&welcome)))
            .await
            .unwrap();
    }
    let upgrade = |upgrade: WebSocketUpgrade| async move {
        upgrade
            .max_message_size(64 << 20)
            .max_frame_size(64 << 20)
            .on_upgrade(measure)
    };
    let server = Server::tcp(Router::new().route("/v1/proxy", any(upgrade))).await;
    let mut connection: Proxy = connect(&server.dial, "/v1/proxy").await.unwrap();
    let value = Some("x".repeat(BYTES));
    let job = JobId::random();
    connection
        .send(&FromProxy::Answer {
            job,
            question: 1,
            answer: Answer::Input(value),
        })
        .await
        .unwrap();
    let Some(ToProxy::Welcome { broker_version, .. }) = connection.receive().await.unwrap() else {
        panic!("a welcome was sent")
    };
    assert!(broker_version.trim().parse::<usize>().unwrap() > BYTES);
}

#[tokio::test]
async fn what_the_broker_would_not_accept_is_not_sent() {
    let server = Server::tcp(router(echo)).await;
    let mut connection: Proxy = connect(&server.dial, "/v1/proxy").await.unwrap();
    let job = JobId::random();
    let piece = Piece::Inline("".into());
    let Bound { bytes, elements } = Bound::MESSAGE;
    for (answer, expected) in [
        (Answer::Input(Some("x".repeat(bytes))), " bytes is"),
        (
            Answer::Files(Payload(vec![piece; elements + 1])),
            " elements is",
        ),
    ] {
        let message = FromProxy::Answer {
            job,
            question: 1,
            answer,
        };
        let error = connection.send(&message).await.unwrap_err();
        assert!(matches!(error, LinkError::TooLarge { .. }));
        assert!(error.to_string().contains(expected), "{error}");
    }
    connection.send(&FromProxy::Cancel { job }).await.unwrap();
    let answer = connection.receive().await.unwrap();
    assert_eq!(answer, Some(ToProxy::UnknownJob { job }));
}

#[tokio::test]
async fn the_end_of_the_broker_is_the_end_of_messages() {
    async fn leave(mut socket: WebSocket) {
        let refusal = Refusal::ProtocolVersion {
            broker: PROTOCOL_VERSION,
            peer: 0,
        };
        let message = encode(&ToProxy::Refused(refusal));
        socket.send(Message::binary(message)).await.unwrap();
    }
    let server = Server::tcp(router(leave)).await;
    let mut connection: Proxy = connect(&server.dial, "/v1/proxy").await.unwrap();
    let first = connection.receive().await.unwrap();
    assert!(matches!(first, Some(ToProxy::Refused(_))));
    assert_eq!(connection.receive().await.unwrap(), None);
    assert_eq!(connection.receive().await.unwrap(), None);
}

#[tokio::test]
async fn nonsense_is_an_error_and_the_next_message_is_read() {
    async fn babble(mut socket: WebSocket) {
        socket.send(Message::binary(&b"\xc1"[..])).await.unwrap();
        socket.send(Message::text("hello")).await.unwrap();
        let welcome = ToProxy::Welcome {
            broker_version: "1".into(),
            autosave: false,
            course: None,
        };
        socket
            .send(Message::binary(encode(&welcome)))
            .await
            .unwrap();
    }
    let server = Server::tcp(router(babble)).await;
    let mut connection: Proxy = connect(&server.dial, "/v1/proxy").await.unwrap();
    assert!(matches!(
        connection.receive().await,
        Err(LinkError::Decode(_))
    ));
    assert!(matches!(
        connection.receive().await,
        Err(LinkError::Answer(_))
    ));
    assert!(connection.receive().await.unwrap().is_some());
}

/// A dead broker is detected by its silence. Time is paused once the connection is open, so the
/// test does not wait.
#[tokio::test]
async fn a_broker_that_does_not_answer_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let handshake = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(socket.read_u8().await.unwrap());
        }
        let request = String::from_utf8(request).unwrap();
        let key = request
            .lines()
            .find_map(|line| {
                line.strip_prefix("Sec-WebSocket-Key: ")
                    .or(line.strip_prefix("sec-websocket-key: "))
            })
            .unwrap();
        let accept = tokio_tungstenite::tungstenite::handshake::derive_accept_key(key.as_bytes());
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        socket.write_all(answer.as_bytes()).await.unwrap();
        socket
    });
    let dial = dial(BrokerAddress::Http(address));
    let mut connection: Proxy = connect(&dial, "/v1/proxy").await.unwrap();
    let mut socket = handshake.await.unwrap();
    tokio::time::pause();
    let error = connection.receive().await;
    assert!(
        matches!(error, Err(LinkError::NoAnswer { .. })),
        "{error:?}"
    );
    assert_eq!(socket.read_u8().await.unwrap(), 0x89, "it was pinged");
}

#[tokio::test]
async fn an_interrupted_receive_loses_nothing() {
    async fn slow(mut socket: WebSocket) {
        while let Some(Ok(Message::Binary(bytes))) = socket.recv().await {
            let FromProxy::Cancel { job } = decode(&bytes).unwrap() else {
                panic!("a cancel was sent")
            };
            let answer = encode(&ToProxy::UnknownJob { job });
            socket.send(Message::binary(answer)).await.unwrap();
        }
    }
    let server = Server::tcp(router(slow)).await;
    let mut connection: Proxy = connect(&server.dial, "/v1/proxy").await.unwrap();
    let jobs: Vec<JobId> = (0..50).map(|_| JobId::random()).collect();
    for job in &jobs {
        connection
            .send(&FromProxy::Cancel { job: *job })
            .await
            .unwrap();
    }
    let mut received = Vec::new();
    while received.len() < jobs.len() {
        let next = tokio::time::timeout(Duration::from_micros(50), connection.receive());
        if let Ok(message) = next.await {
            received.push(message.unwrap().unwrap());
        }
    }
    let expected = jobs.into_iter().map(|job| ToProxy::UnknownJob { job });
    assert!(received.into_iter().eq(expected));
}

async fn refusal(dial: &Dial) -> LinkError {
    connect::<ToProxy, FromProxy>(dial, "/v1/proxy")
        .await
        .err()
        .unwrap()
}

#[tokio::test]
async fn each_refusal_has_a_name() {
    let answering = |status| async move {
        let router = Router::new().route("/v1/proxy", any(move || async move { status }));
        let server = Server::tcp(router).await;
        refusal(&server.dial).await
    };
    let unauthorized = answering(StatusCode::UNAUTHORIZED).await;
    assert!(matches!(unauthorized, LinkError::Unauthorized { .. }));
    assert!(!unauthorized.is_transient());
    let unavailable = answering(StatusCode::SERVICE_UNAVAILABLE).await;
    assert!(matches!(unavailable, LinkError::Status { status: 503, .. }));
    assert!(unavailable.is_transient());
    // This text is not the broker's.
    let too_many = answering(StatusCode::TOO_MANY_REQUESTS).await;
    assert!(matches!(too_many, LinkError::Status { status: 429, .. }));
    let server = Server::tcp(Router::new()).await;
    let not_found = refusal(&server.dial).await;
    assert!(matches!(not_found, LinkError::NotFound { .. }));
    let (without, _nobody) = nobody();
    let unreachable = refusal(&without).await;
    assert!(matches!(unreachable, LinkError::Unreachable { .. }));
    assert!(unreachable.is_transient());
    let no_socket = dial(BrokerAddress::Unix(PathBuf::from("/nowhere/broker.sock")));
    let unreachable = refusal(&no_socket).await;
    assert_eq!(
        unreachable.to_string(),
        "The broker at unix:/nowhere/broker.sock cannot be reached"
    );
}
