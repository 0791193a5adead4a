//! Who may connect, and the errors for others.

use crate::harness::{Broker, FakeProxy, Rules, within};
use baton_broker::{Config, Listen};
use baton_protocol::{
    Machine, NotebookId, PROTOCOL_VERSION, Refusal, WorkerId,
    proxy::{FromProxy, ToProxy},
    worker::{FromWorker, ToWorker},
};
use baton_transport::{Api, Connection, Dial, LinkError, Token};
use std::os::unix::fs::PermissionsExt;

fn locked() -> Rules {
    Rules {
        token: Some("sesame"),
        tcp: true,
        ..Rules::default()
    }
}

#[tokio::test]
async fn a_wrong_token_opens_nothing() {
    let broker = Broker::start_with(locked()).await;
    FakeProxy::new(&broker.dial).await;
    for token in [
        None,
        Some(Token::new("sesame2")),
        Some(Token::new("sesamf")),
    ] {
        let dial = Dial {
            token,
            ..broker.dial.clone()
        };
        for path in ["/v1/proxy", "/v1/worker"] {
            let refused = baton_transport::connect::<ToProxy, FromProxy>(&dial, path).await;
            assert!(matches!(refused, Err(LinkError::Unauthorized { .. })));
        }
        let chunk_client = baton_transport::ChunkClient::new(&dial).unwrap();
        let refused = chunk_client.missing(&[baton_chunks::hash(b"x")]).await;
        assert!(matches!(refused, Err(LinkError::Unauthorized { .. })));
        let refused = Api::new(&dial).unwrap().get("/").await;
        assert!(matches!(refused, Err(LinkError::Unauthorized { .. })));
        assert_eq!(
            Api::new(&dial).unwrap().get("/health/live").await.unwrap(),
            "live\n"
        );
    }
}

#[tokio::test]
async fn a_foreign_web_page_cannot_speak_for_a_program() {
    let broker = Broker::start_with(locked()).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client
        .get(format!("{}/v1/worker", broker.dial.address))
        .header("authorization", "Bearer sesame")
        .header("origin", "http://elsewhere.example")
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status(), 403);
}

#[tokio::test]
async fn the_socket_and_the_database_are_private() {
    let broker = Broker::start().await;
    for name in ["broker.sock", "broker.db", "broker.db-wal"] {
        let path = broker.folder.path().join(name);
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let left: Vec<_> = std::fs::read_dir(broker.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with('.'))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn an_open_address_needs_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = Config::new(
        Listen::Tcp("0.0.0.0:0".parse().unwrap()),
        folder.path().join("broker.db"),
        folder.path().join("chunks"),
    );
    config.behind_tls_proxy = true;
    let error = baton_broker::run(config, drop, std::future::pending())
        .await
        .unwrap_err();
    assert!(error.to_string().contains("set a token"), "{error}");
}

#[tokio::test]
async fn a_busy_port_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let config = Config::new(
        Listen::Tcp(address),
        folder.path().join("broker.db"),
        folder.path().join("chunks"),
    );
    let error = baton_broker::run(config, drop, std::future::pending())
        .await
        .unwrap_err();
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[tokio::test]
async fn another_version_is_refused_with_both_numbers() {
    let broker = Broker::start().await;
    let refusal = Refusal::ProtocolVersion {
        broker: PROTOCOL_VERSION,
        peer: 77,
    };
    let mut proxy: Connection<ToProxy, FromProxy> =
        baton_transport::connect(&broker.dial, "/v1/proxy")
            .await
            .unwrap();
    let hello = FromProxy::Hello {
        protocol_version: 77,
        notebook: NotebookId::random(),
        owner: String::new(),
        course: None,
    };
    proxy.send(&hello).await.unwrap();
    let answer = within("a refusal", proxy.receive()).await.unwrap();
    assert_eq!(answer, Some(ToProxy::Refused(refusal.clone())));
    assert!(matches!(within("the end", proxy.receive()).await, Ok(None)));

    let mut worker: Connection<ToWorker, FromWorker> =
        baton_transport::connect(&broker.dial, "/v1/worker")
            .await
            .unwrap();
    let hello = FromWorker::Hello {
        protocol_version: 77,
        worker: WorkerId::random(),
        name: String::new(),
        devices: Vec::new(),
        machine: Machine::default(),
        slots: 1,
        sessions: Vec::new(),
        keeping: Vec::new(),
        assignments: Vec::new(),
        acknowledged: Vec::new(),
        failing: None,
    };
    worker.send(&hello).await.unwrap();
    let answer = within("a refusal", worker.receive()).await.unwrap();
    assert_eq!(answer, Some(ToWorker::Refused(refusal)));
}

/// A later protocol may have another hello. Its version can still be read.
#[tokio::test]
async fn another_hello_is_refused_with_its_version() {
    #[derive(serde::Serialize)]
    #[serde(rename_all = "snake_case")]
    enum LaterMessage {
        Hello { protocol_version: u32, mood: String },
    }
    let broker = Broker::start().await;
    let mut peer: Connection<ToProxy, LaterMessage> =
        baton_transport::connect(&broker.dial, "/v1/proxy")
            .await
            .unwrap();
    let hello = LaterMessage::Hello {
        protocol_version: 78,
        mood: "good".to_owned(),
    };
    peer.send(&hello).await.unwrap();
    let refusal = Refusal::ProtocolVersion {
        broker: PROTOCOL_VERSION,
        peer: 78,
    };
    let answer = within("a refusal", peer.receive()).await.unwrap();
    assert_eq!(answer, Some(ToProxy::Refused(refusal)));
}

#[tokio::test]
async fn who_does_not_say_hello_is_refused() {
    let broker = Broker::start().await;
    let mut proxy: Connection<ToProxy, FromProxy> =
        baton_transport::connect(&broker.dial, "/v1/proxy")
            .await
            .unwrap();
    let job = baton_protocol::JobId::random();
    proxy.send(&FromProxy::Cancel { job }).await.unwrap();
    let answer = within("a refusal", proxy.receive()).await.unwrap();
    assert_eq!(answer, Some(ToProxy::Refused(Refusal::NoHello {})));
}

#[tokio::test]
async fn nonsense_ends_the_connection_and_nothing_else() {
    let broker = Broker::start().await;
    let mut mad: Connection<ToProxy, Vec<u8>> = baton_transport::connect(&broker.dial, "/v1/proxy")
        .await
        .unwrap();
    mad.send(&vec![1, 2, 3]).await.unwrap();
    let answer = within("a refusal", mad.receive()).await.unwrap();
    assert_eq!(answer, Some(ToProxy::Refused(Refusal::NoHello {})));
    FakeProxy::new(&broker.dial).await;
}
