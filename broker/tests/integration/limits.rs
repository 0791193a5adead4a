//! How often a person's notebooks may send requests about chunks, and how many of them may be connected.

use crate::{
    chunk_listener,
    chunks::{chunk, class, fetched},
    harness::{Broker, FakeProxy, FakeWorker, Rules, wait_until, within},
};
use baton_protocol::{
    ChunkHash,
    api::Problem,
    encode,
    proxy::{FromProxy, ToProxy},
};
use baton_transport::{ChunkClient, Dial, LinkError, Token, connect};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

async fn broker_that(limits: impl FnOnce(&mut Rules)) -> Broker {
    let mut rules = Rules {
        token: Some("sesame"),
        tcp: true,
        people: Some(class()),
        ..Rules::default()
    };
    limits(&mut rules);
    Broker::start_with(rules).await
}

pub(crate) fn dialled_as(dial: &Dial, token: &str) -> Dial {
    Dial {
        address: dial.address.clone(),
        token: Some(Token::new(token)),
        ca_file: None,
    }
}

struct Asker {
    client: reqwest::Client,
    address: String,
}

impl Asker {
    fn at(dial: &Dial) -> Self {
        Self {
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
            address: dial.address.to_string(),
        }
    }

    async fn asks(&self, token: &str, of: &str, chunks: &[ChunkHash]) -> reqwest::Response {
        let url = format!("{}/v1/chunks/{of}", self.address);
        let request = self.client.post(url).bearer_auth(token);
        within("an answer", request.body(encode(&chunks)).send())
            .await
            .unwrap()
    }

    /// Sends requests until the broker refuses one.
    async fn exhausts(&self, token: &str, of: &str) {
        for _ in 0..1000 {
            let answer = self.asks(token, of, &[]).await;
            if answer.status() == 200 {
                continue;
            }
            assert_eq!(answer.status(), 429);
            assert_eq!(answer.headers()["retry-after"], "1");
            let body = answer.bytes().await.unwrap();
            let problem: Problem = serde_json::from_slice(&body).unwrap();
            assert_eq!(problem.kind, "urn:baton:too-often");
            assert_eq!(problem.hint.unwrap(), "try again in a second");
            return;
        }
        panic!("nothing was refused");
    }
}

#[tokio::test]
async fn who_asks_for_chunks_too_often_waits_and_nobody_else() {
    let broker = broker_that(|rules| rules.chunk_requests_a_second = 20).await;
    let listener = chunk_listener::beside(&broker).await;
    for dial in [&broker.dial, &listener.dial] {
        let chunk_client = |token: &str| ChunkClient::new(&dialled_as(dial, token)).unwrap();
        let asker = Asker::at(dial);
        asker.exhausts("ada", "get").await;
        // Other people from the same address, and the operator, are not limited.
        assert_eq!(asker.asks("bob", "get", &[]).await.status(), 200);
        let operator = format!("{}/v1/chunks/get?owner=ada", dial.address);
        for _ in 0..20 {
            let request = asker.client.post(&operator).bearer_auth("sesame");
            let none: [ChunkHash; 0] = [];
            let answer = request.body(encode(&none)).send().await.unwrap();
            assert_eq!(answer.status(), 200);
        }
        // A notebook can continue when there is room again, with everything that it uploads.
        let brought: Vec<_> = (0..40).map(|seed| chunk(seed, 100_000)).collect();
        let hashes: Vec<ChunkHash> = brought.iter().map(|(hash, _)| *hash).collect();
        within("a put", chunk_client("ada").put(&brought))
            .await
            .unwrap();
        let came = within("a get", fetched(&chunk_client("ada"), &hashes)).await;
        assert_eq!(came.unwrap(), brought);
    }
    let metrics = broker.get_as("sesame", "/metrics").await;
    assert!(
        !metrics.contains("baton_requests_limited_total 0"),
        "{metrics}"
    );
}

#[tokio::test]
async fn a_request_that_names_many_chunks_counts_as_many() {
    let broker = broker_that(|rules| rules.chunk_requests_a_second = 20).await;
    let listener = chunk_listener::beside(&broker).await;
    let many = vec![chunk(1, 10).0; 20_000];
    let at_broker = Asker::at(&broker.dial);
    assert_eq!(at_broker.asks("bob", "missing", &many).await.status(), 200);
    assert_eq!(at_broker.asks("bob", "missing", &[]).await.status(), 429);
    let at_listener = Asker::at(&listener.dial);
    assert_eq!(at_listener.asks("cy", "get", &many).await.status(), 404);
    assert_eq!(at_listener.asks("cy", "get", &[]).await.status(), 429);
    assert_eq!(at_broker.asks("cy", "missing", &[]).await.status(), 429);

    // Very small chunks are limited when they are uploaded.
    let tiny = [0, 0, 0, 0].repeat(1024);
    for (token, dial) in [("dee", &broker.dial), ("eve", &listener.dial)] {
        let refused = within("a refusal", async {
            loop {
                let url = format!("{}/v1/chunks", dial.address);
                let put = at_broker.client.put(url).bearer_auth(token);
                let answer = put.body(tiny.clone()).send().await.unwrap();
                if answer.status() != 204 {
                    return answer.status();
                }
            }
        });
        assert_eq!(refused.await, 429);
    }
}

#[tokio::test]
async fn a_person_has_so_many_connections_and_no_more() {
    let broker = broker_that(|rules| rules.connections_a_person = 2).await;
    let ada = broker.dial_as("ada");
    let notebook = FakeProxy::new(&ada).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let live = async || {
        let page = client.get(format!("{}/live", broker.dial.address));
        page.bearer_auth("ada").send().await.unwrap()
    };
    let page = live().await;
    assert_eq!(page.status(), 200);

    assert_eq!(live().await.status(), 429);
    match connect::<ToProxy, FromProxy>(&ada, "/v1/proxy").await.err() {
        Some(error @ LinkError::TooMuch { .. }) => {
            let said = error.to_string();
            assert!(said.starts_with(
                "You have reached this broker's limit of connected notebooks and live pages"
            ));
            assert!(said.contains("hint: shut down notebooks"), "{said}");
        }
        other => panic!("{other:?}"),
    }
    // Other people, the operator and workers are not limited.
    FakeProxy::new(&broker.dial_as("bob")).await;
    let mut of_service = Vec::new();
    for _ in 0..4 {
        of_service.push(FakeProxy::new(&broker.dial).await);
    }
    FakeWorker::new(&broker.dial).await;

    // Closing either kind makes room.
    drop(notebook);
    drop(page);
    wait_until("room for two", async || {
        let connected = connected_twice(&ada).await;
        if let Err(error) = &connected {
            assert!(matches!(error, LinkError::TooMuch { .. }), "{error}");
        }
        connected.is_ok()
    })
    .await;
}

/// Sends a request, and returns the open connection with the head of the response.
async fn requested(dial: &Dial, token: &str) -> (TcpStream, String) {
    let address = dial.address.to_string().replacen("http://", "", 1);
    let mut stream = TcpStream::connect(address).await.unwrap();
    let request =
        format!("GET /v1/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(within("a response", stream.read_u8()).await.unwrap());
    }
    (stream, String::from_utf8(head).unwrap())
}

#[tokio::test]
async fn idle_connections_of_a_person_count_and_leave_room_for_others() {
    let broker = broker_that(|rules| rules.connections_a_person = 1).await;
    let mut idle = Vec::new();
    for _ in 0..3 {
        let (stream, head) = requested(&broker.dial, "ada").await;
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        idle.push(stream);
    }
    let (mut refused, head) = requested(&broker.dial, "ada").await;
    assert!(head.starts_with("HTTP/1.1 429"), "{head}");
    let mut body = String::new();
    let read = refused.read_to_string(&mut body);
    within("the end of the connection", read).await.unwrap();
    assert!(
        body.contains("limit of open connections for one person (3)"),
        "{body}"
    );
    let (_, head) = requested(&broker.dial, "bob").await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    drop(idle.pop());
    wait_until("room", async || {
        let (_, head) = requested(&broker.dial, "ada").await;
        head.starts_with("HTTP/1.1 200")
    })
    .await;
}

async fn connected_twice(dial: &Dial) -> Result<(), LinkError> {
    let _first = connect::<ToProxy, FromProxy>(dial, "/v1/proxy").await?;
    connect::<ToProxy, FromProxy>(dial, "/v1/proxy")
        .await
        .map(drop)
}
