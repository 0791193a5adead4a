//! The *object_store* transport, with a real store.

use crate::{
    chunks::{chunk, class, fetched},
    harness::{Broker, Rules},
};
use baton_broker::ObjectOptions;
use baton_chunks::hash;
use baton_object_store_tests::Server;
use baton_protocol::{CHUNK_BYTES, ChunkHash, Grant, Grants, decode, encode};
use baton_transport::{ChunkClient, LinkError};
use bytes::Bytes;
use reqwest::{Method, StatusCode};

/// A class whose chunks are in an object store.
struct Class {
    broker: Broker,
    server: Server,
    /// Without Baton's own client.
    plain: reqwest::Client,
}

impl Class {
    async fn start() -> Self {
        Self::with(Server::start(), |_| {}).await
    }

    async fn with(server: Server, change: impl FnOnce(&mut Rules)) -> Self {
        let mut rules = Rules {
            token: Some("sesame"),
            tcp: true,
            people: Some(class()),
            objects: Some((server.address(), ObjectOptions::of(server.variables()))),
            ..Rules::default()
        };
        change(&mut rules);
        Self {
            broker: Broker::start_with(rules).await,
            server,
            plain: reqwest::Client::builder().no_proxy().build().unwrap(),
        }
    }

    fn client(&self, person: &str) -> ChunkClient {
        ChunkClient::new(&self.broker.dial_as(person)).unwrap()
    }

    /// What the broker answers to a person's request.
    async fn ask(&self, person: &str, path: &str, body: Vec<u8>) -> (StatusCode, Bytes) {
        let url = format!("{}{path}", self.broker.dial.address);
        let request = self.plain.post(url).bearer_auth(person).body(body);
        let answer = request.send().await.unwrap();
        (answer.status(), answer.bytes().await.unwrap())
    }

    async fn upload_grant(&self, person: &str, named: (ChunkHash, u64)) -> Grant {
        let path = "/v1/chunks/grants/upload";
        let (status, body) = self.ask(person, path, encode(&vec![named])).await;
        assert_eq!(status, 200, "{body:?}");
        match decode(&body).unwrap() {
            Grants::Store { mut grants } => grants.pop().unwrap(),
            Grants::Broker {} => panic!("the broker takes the bytes"),
        }
    }

    /// Uses a grant as it stands. Returns the store's answer.
    async fn use_grant(&self, method: Method, grant: &Grant, bytes: &Bytes) -> StatusCode {
        let mut request = self.plain.request(method, &grant.url).body(bytes.clone());
        for (name, value) in &grant.headers {
            request = request.header(name, value);
        }
        request.send().await.unwrap().status()
    }

    async fn report(&self, person: &str, hash: ChunkHash) -> Vec<ChunkHash> {
        let (status, body) = self
            .ask(person, "/v1/chunks/uploaded", encode(&vec![hash]))
            .await;
        assert_eq!(status, 200);
        decode(&body).unwrap()
    }
}

fn is_unknown<T: std::fmt::Debug>(result: Result<T, LinkError>) {
    assert!(matches!(result, Err(LinkError::UnknownChunk)), "{result:?}");
}

#[tokio::test]
async fn what_is_uploaded_comes_back_and_is_its_persons_alone() {
    let class = Class::start().await;
    let ada = class.client("ada");
    let chunks: Vec<_> = (0..40)
        .map(|seed| chunk(seed, if seed == 7 { 3 } else { CHUNK_BYTES }))
        .collect();
    let hashes: Vec<ChunkHash> = chunks.iter().map(|(hash, _)| *hash).collect();
    assert_eq!(ada.missing(&hashes).await.unwrap(), hashes);
    ada.put(&chunks).await.unwrap();
    assert!(ada.missing(&hashes).await.unwrap().is_empty());
    assert_eq!(fetched(&ada, &hashes).await.unwrap(), chunks);

    // Nothing went through the broker.
    let files = std::fs::read_dir(class.broker.folder.path().join("blobs"));
    assert!(files.is_err(), "{files:?}");

    for other in ["bob", "vic"] {
        let other = class.client(other);
        assert_eq!(other.missing(&hashes).await.unwrap(), hashes);
        is_unknown(fetched(&other, &hashes[..1]).await);
    }
    // Also when many of the course have it: none of them has shown what they uploaded.
    for person in ["bob", "cy", "dee", "eve"] {
        class.client(person).put(&chunks[..1]).await.unwrap();
    }
    is_unknown(fetched(&class.client("fay"), &hashes[..1]).await);
}

#[tokio::test]
async fn a_grant_is_good_for_one_chunk_of_its_length_and_once() {
    let class = Class::start().await;
    let (hash, bytes) = chunk(1, 1000);
    let grant = class.upload_grant("ada", (hash, 1000)).await;

    let longer = Bytes::from(vec![0; 1001]);
    let answer = class.use_grant(Method::PUT, &grant, &longer).await;
    assert_eq!(answer, StatusCode::FORBIDDEN);
    let answer = class.use_grant(Method::GET, &grant, &Bytes::new()).await;
    assert_eq!(answer, StatusCode::FORBIDDEN);
    let elsewhere = Grant {
        url: grant.url.replace(&hash.to_string(), &"0".repeat(64)),
        ..grant.clone()
    };
    let answer = class.use_grant(Method::PUT, &elsewhere, &bytes).await;
    assert_eq!(answer, StatusCode::FORBIDDEN);
    let without_condition = Grant {
        headers: Vec::new(),
        ..grant.clone()
    };
    let answer = class
        .use_grant(Method::PUT, &without_condition, &bytes)
        .await;
    assert_eq!(answer, StatusCode::FORBIDDEN);

    // A grant gives nothing, and neither does a report of what is not there.
    assert_eq!(class.report("ada", hash).await, [hash]);
    is_unknown(fetched(&class.client("ada"), &[hash]).await);

    assert!(
        class
            .use_grant(Method::PUT, &grant, &bytes)
            .await
            .is_success()
    );
    is_unknown(fetched(&class.client("ada"), &[hash]).await);
    assert_eq!(class.report("bob", hash).await, [hash]);
    assert!(class.report("ada", hash).await.is_empty());
    let ada = class.client("ada");
    assert_eq!(fetched(&ada, &[hash]).await.unwrap(), [(hash, bytes)]);

    let other = Bytes::from(vec![9; 1000]);
    let answer = class.use_grant(Method::PUT, &grant, &other).await;
    assert_eq!(answer, StatusCode::PRECONDITION_FAILED);
}

#[tokio::test]
async fn whoever_uploads_other_bytes_harms_only_themselves() {
    let class = Class::start().await;
    let (hash, bytes) = chunk(1, 1000);
    let grant = class.upload_grant("ada", (hash, 1000)).await;
    let false_bytes = Bytes::from(vec![9; 1000]);
    let answer = class.use_grant(Method::PUT, &grant, &false_bytes).await;
    assert!(answer.is_success());
    assert!(class.report("ada", hash).await.is_empty());

    let (ada, bob) = (class.client("ada"), class.client("bob"));
    assert_eq!(bob.missing(&[hash]).await.unwrap(), [hash]);
    bob.put(&[(hash, bytes.clone())]).await.unwrap();
    assert_eq!(
        fetched(&bob, &[hash]).await.unwrap(),
        [(hash, bytes.clone())]
    );

    assert!(ada.missing(&[hash]).await.unwrap().is_empty());
    is_unknown(fetched(&ada, &[hash]).await);
    // The broker has seen it and wants the chunk again.
    assert_eq!(ada.missing(&[hash]).await.unwrap(), [hash]);
    ada.put(&[(hash, bytes.clone())]).await.unwrap();
    assert_eq!(
        fetched(&ada, &[hash]).await.unwrap(),
        [(hash, bytes.clone())]
    );

    // A report of damage where there is none changes nothing.
    let (status, _) = class
        .ask("ada", "/v1/chunks/damaged", encode(&vec![hash]))
        .await;
    assert_eq!(status, 200);
    assert_eq!(fetched(&ada, &[hash]).await.unwrap(), [(hash, bytes)]);
}

#[tokio::test]
async fn what_may_be_uploaded_counts_as_if_it_were_there() {
    let class = Class::with(Server::start(), |rules| {
        rules.person_limit_bytes = Some(2 << 20);
        rules.blob_limit_bytes = 3 << 20;
    })
    .await;
    let chunks: Vec<_> = (0..3).map(|seed| chunk(seed, CHUNK_BYTES)).collect();
    for (hash, bytes) in &chunks[..2] {
        class.upload_grant("ada", (*hash, bytes.len() as u64)).await;
    }
    let ada = class.client("ada");
    match ada.put(&chunks[2..]).await {
        Err(LinkError::StoreFull { text }) => assert!(text.contains("Quota exceeded"), "{text}"),
        other => panic!("{other:?}"),
    }
    // What she has a grant for is counted once.
    ada.put(&chunks[..2]).await.unwrap();
    match class.client("bob").put(&chunks[..2]).await {
        Err(LinkError::StoreFull { text }) => assert!(text.contains("no room"), "{text}"),
        other => panic!("{other:?}"),
    }
    class.client("bob").put(&chunks[..1]).await.unwrap();

    let path = "/v1/chunks/grants/upload";
    let larger = encode(&vec![(chunks[0].0, 1 + CHUNK_BYTES as u64)]);
    let (status, body) = class.ask("cy", path, larger).await;
    assert_eq!(status, 400);
    assert!(
        String::from_utf8_lossy(&body).contains("at most 1048576"),
        "{body:?}"
    );
    let many: Vec<(ChunkHash, u64)> = (0..=255)
        .chain([0])
        .map(|seed| (hash(&[seed]), 0))
        .collect();
    let names: Vec<(ChunkHash, u64)> = many.into_iter().chain([(hash(b"x"), 0)]).collect();
    assert_eq!(class.ask("cy", path, encode(&names)).await.0, 400);
}

#[tokio::test]
async fn a_store_that_is_killed_and_comes_back_is_waited_for() {
    let mut class = Class::start().await;
    let ada = class.client("ada");
    let chunks: Vec<_> = (0..40).map(|seed| chunk(seed, CHUNK_BYTES)).collect();
    let hashes: Vec<ChunkHash> = chunks.iter().map(|(hash, _)| *hash).collect();
    ada.put(&chunks[..20]).await.unwrap();
    class.server.kill();

    let impatient = class.client("ada").with_patience(std::time::Duration::ZERO);
    for result in [
        impatient.put(&chunks[20..]).await,
        fetched(&impatient, &hashes[..20]).await.map(drop),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, LinkError::ObjectStore { .. }), "{error:?}");
        assert!(
            error.to_string().contains("The object store at 127.0.0.1:"),
            "{error}"
        );
    }
    let (patient, rest) = (ada.clone(), chunks[20..].to_vec());
    let putting = tokio::spawn(async move { patient.put(&rest).await });
    let (reader, wanted) = (ada.clone(), hashes[..20].to_vec());
    let getting = tokio::spawn(async move { fetched(&reader, &wanted).await });
    let server = tokio::task::spawn_blocking(move || {
        class.server.start_again();
        class
    });
    let _class = server.await.unwrap();
    putting.await.unwrap().unwrap();
    assert_eq!(getting.await.unwrap().unwrap(), chunks[..20]);
    assert_eq!(fetched(&ada, &hashes).await.unwrap(), chunks);
}

#[tokio::test]
async fn a_store_that_is_full_still_gives_what_it_has() {
    let class = Class::with(Server::start_small(), |_| {}).await;
    let ada = class.client("ada").with_patience(std::time::Duration::ZERO);
    let chunks: Vec<_> = (0..100).map(|seed| chunk(seed, CHUNK_BYTES)).collect();
    let hashes: Vec<ChunkHash> = chunks.iter().map(|(hash, _)| *hash).collect();
    let error = ada.put(&chunks).await.unwrap_err();
    // This one has no other words for it.
    let text = error.to_string();
    assert!(text.ends_with("it answered 500 InternalError"), "{text}");
    let missing = ada.missing(&hashes).await.unwrap();
    let stored = chunks.len() - missing.len();
    assert!(stored > 0 && !missing.is_empty());
    assert_eq!(missing, hashes[stored..]);
    assert_eq!(
        fetched(&ada, &hashes[..stored]).await.unwrap(),
        chunks[..stored]
    );
}

#[tokio::test]
async fn a_broker_with_an_object_store_takes_no_bytes() {
    let class = Class::start().await;
    let (hash, bytes) = chunk(1, 10);
    let url = format!("{}/v1/chunks", class.broker.dial.address);
    let mut body = 10_u32.to_be_bytes().to_vec();
    body.extend_from_slice(&bytes);
    let put = class
        .plain
        .put(url)
        .bearer_auth("ada")
        .body(body)
        .send()
        .await;
    assert_eq!(put.unwrap().status(), StatusCode::CONFLICT);
    let (status, text) = class
        .ask("ada", "/v1/chunks/get", encode(&vec![hash]))
        .await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert!(
        String::from_utf8_lossy(&text).contains("object store"),
        "{text:?}"
    );
}
