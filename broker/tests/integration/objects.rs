//! The *object_store* transport, with real stores of every kind.

use crate::{
    chunks::{chunk, class, fetched},
    harness::{Broker, Rules},
};
use baton_broker::ObjectOptions;
use baton_chunks::hash;
use baton_object_store_tests::{Kind, Server};
use baton_protocol::{CHUNK_BYTES, ChunkHash, Grant, Grants, decode, encode};
use baton_transport::{ChunkClient, LinkError};
use bytes::Bytes;
use reqwest::{Method, StatusCode};

const KINDS: [Kind; 3] = [Kind::S3, Kind::Azure, Kind::Google];

/// A class whose chunks are in an object store.
struct Class {
    broker: Broker,
    server: Server,
    /// A client without Baton's own logic.
    plain: reqwest::Client,
}

impl Class {
    async fn of(kind: Kind) -> Self {
        Self::with(Server::of(kind), |_| {}).await
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

    /// The broker's response to a person's request.
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

    /// Uses a grant as it is. Returns the store's response.
    async fn use_grant(&self, method: Method, grant: &Grant, bytes: &Bytes) -> StatusCode {
        let mut request = self.plain.request(method, &grant.url).body(bytes.clone());
        for (name, value) in &grant.headers {
            request = request.header(name, value);
        }
        request.send().await.unwrap().status()
    }

    /// A grant is valid only for the key of its chunk.
    async fn refuses_another_key(&self, grant: &Grant, hash: ChunkHash, bytes: &Bytes) {
        let elsewhere = Grant {
            url: grant.url.replace(&hash.to_string(), &"0".repeat(64)),
            ..grant.clone()
        };
        let answer = self.use_grant(Method::PUT, &elsewhere, bytes).await;
        assert_eq!(answer, StatusCode::FORBIDDEN);
    }

    async fn download_grant(&self, person: &str, hash: ChunkHash) -> Grant {
        let path = "/v1/chunks/grants/download";
        let (status, body) = self.ask(person, path, encode(&vec![hash])).await;
        assert_eq!(status, 200, "{body:?}");
        match decode(&body).unwrap() {
            Grants::Store { mut grants } => grants.pop().unwrap(),
            Grants::Broker {} => panic!("the broker gives the bytes"),
        }
    }

    async fn report(&self, person: &str, hash: ChunkHash) -> Vec<ChunkHash> {
        let (status, body) = self
            .ask(person, "/v1/chunks/uploaded", encode(&vec![hash]))
            .await;
        assert_eq!(status, 200);
        decode(&body).unwrap()
    }
}

/// The URL without its signature.
fn path(grant: &Grant) -> &str {
    grant.url.split('?').next().unwrap()
}

fn is_unknown<T: std::fmt::Debug>(result: Result<T, LinkError>) {
    assert!(matches!(result, Err(LinkError::UnknownChunk)), "{result:?}");
}

#[tokio::test]
async fn what_is_uploaded_comes_back_and_is_its_persons_alone() {
    for kind in KINDS {
        check_uploads(kind).await;
    }
}

async fn check_uploads(kind: Kind) {
    let class = Class::of(kind).await;
    let ada = class.client("ada");
    let chunks: Vec<_> = (0..40)
        .map(|seed| chunk(seed, if seed == 7 { 3 } else { CHUNK_BYTES }))
        .collect();
    let hashes: Vec<ChunkHash> = chunks.iter().map(|(hash, _)| *hash).collect();
    assert_eq!(ada.missing(&hashes).await.unwrap(), hashes);
    ada.put(&chunks).await.unwrap();
    assert!(ada.missing(&hashes).await.unwrap().is_empty());
    assert_eq!(fetched(&ada, &hashes).await.unwrap(), chunks);

    // No bytes went through the broker.
    let files = std::fs::read_dir(class.broker.folder.path().join("chunks"));
    assert!(files.is_err(), "{files:?}");

    for other in ["bob", "vic"] {
        let other = class.client(other);
        assert_eq!(other.missing(&hashes).await.unwrap(), hashes);
        is_unknown(fetched(&other, &hashes[..1]).await);
    }
    // Even if many people of the course have uploaded it: no one has proved its contents.
    for person in ["bob", "cy", "dee", "eve"] {
        class.client(person).put(&chunks[..1]).await.unwrap();
    }
    is_unknown(fetched(&class.client("fay"), &hashes[..1]).await);
}

#[tokio::test]
async fn a_grant_is_good_for_one_chunk_of_its_length_and_once() {
    let class = Class::of(Kind::S3).await;
    let (hash, bytes) = chunk(1, 1000);
    let grant = class.upload_grant("ada", (hash, 1000)).await;

    let longer = Bytes::from(vec![0; 1001]);
    let answer = class.use_grant(Method::PUT, &grant, &longer).await;
    assert_eq!(answer, StatusCode::FORBIDDEN);
    let answer = class.use_grant(Method::GET, &grant, &Bytes::new()).await;
    assert_eq!(answer, StatusCode::FORBIDDEN);
    class.refuses_another_key(&grant, hash, &bytes).await;
    let without_condition = Grant {
        headers: Vec::new(),
        ..grant.clone()
    };
    let answer = class
        .use_grant(Method::PUT, &without_condition, &bytes)
        .await;
    assert_eq!(answer, StatusCode::FORBIDDEN);

    // A grant gives no access, and neither does a report of a missing object.
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

/// An Azure grant permits creating a blob of any length. So the broker checks it.
#[tokio::test]
async fn what_is_longer_than_its_grant_says_is_not_kept() {
    let class = Class::of(Kind::Azure).await;
    let (hash, bytes) = chunk(1, 1000);
    let grant = class.upload_grant("ada", (hash, 1000)).await;
    let answer = class.use_grant(Method::GET, &grant, &Bytes::new()).await;
    assert_eq!(answer, StatusCode::FORBIDDEN);
    let answer = class.use_grant(Method::DELETE, &grant, &Bytes::new()).await;
    assert_eq!(answer, StatusCode::FORBIDDEN);
    class.refuses_another_key(&grant, hash, &bytes).await;
    for more in [
        "&comp=block&blockid=AAAA",
        "&comp=blocklist",
        "&comp=metadata",
    ] {
        let block = Grant {
            url: format!("{}{more}", grant.url),
            headers: Vec::new(),
            ..grant.clone()
        };
        let answer = class.use_grant(Method::PUT, &block, &bytes).await;
        assert_eq!(answer, StatusCode::FORBIDDEN, "{more}");
    }
    let listing = Grant {
        url: grant.url.replace(
            &format!("/class/baton/{}", &hash.to_string()[..2]),
            "/class",
        ),
        ..grant.clone()
    };
    let answer = class.use_grant(Method::GET, &listing, &Bytes::new()).await;
    assert_eq!(answer, StatusCode::FORBIDDEN);

    // This also holds for a copy that the service itself makes from another place.
    let (other, other_bytes) = chunk(2, 2000);
    let source = class.upload_grant("ada", (other, 2000)).await;
    let answer = class.use_grant(Method::PUT, &source, &other_bytes).await;
    assert_eq!(answer, StatusCode::CREATED);
    assert!(class.report("ada", other).await.is_empty());
    let source = class.download_grant("ada", other).await;
    let copying = Grant {
        headers: vec![("x-ms-copy-source".to_owned(), source.url)],
        ..grant.clone()
    };
    let answer = class.use_grant(Method::PUT, &copying, &Bytes::new()).await;
    assert!(answer.is_success(), "{answer}");
    assert_eq!(class.report("ada", hash).await, [hash]);

    let longer = Bytes::from(vec![0; 9 << 20]);
    for wrong in [longer, Bytes::from_static(b"short")] {
        let answer = class.use_grant(Method::PUT, &grant, &wrong).await;
        assert_eq!(answer, StatusCode::CREATED);
        assert_eq!(class.report("ada", hash).await, [hash]);
        is_unknown(fetched(&class.client("ada"), &[hash]).await);
    }
    // It was deleted. There is still only one object for the same quota.
    let again = class.upload_grant("ada", (hash, 1000)).await;
    assert_eq!(path(&again), path(&grant));
    let answer = class.use_grant(Method::PUT, &again, &bytes).await;
    assert_eq!(answer, StatusCode::CREATED);
    assert!(class.report("ada", hash).await.is_empty());
    let ada = class.client("ada");
    assert_eq!(
        fetched(&ada, &[hash]).await.unwrap(),
        [(hash, bytes.clone())]
    );
    let answer = class.use_grant(Method::PUT, &again, &bytes).await;
    assert_eq!(answer, StatusCode::FORBIDDEN);
    let reading = match ada.missing(&[hash]).await {
        Ok(missing) if missing.is_empty() => class.download_grant("ada", hash).await,
        other => panic!("{other:?}"),
    };
    let writing = Grant {
        headers: again.headers,
        ..reading
    };
    let answer = class.use_grant(Method::PUT, &writing, &bytes).await;
    assert_eq!(answer, StatusCode::FORBIDDEN);
}

/// The response to the first upload was lost, and no store overwrites.
#[tokio::test]
async fn what_has_arrived_before_is_not_sent_in_vain() {
    for kind in [Kind::S3, Kind::Azure] {
        let class = Class::of(kind).await;
        let chunks: Vec<_> = (0..8).map(|seed| chunk(seed, 1000)).collect();
        for (hash, bytes) in &chunks[..6] {
            let grant = class.upload_grant("ada", (*hash, 1000)).await;
            let answer = class.use_grant(Method::PUT, &grant, bytes).await;
            assert!(answer.is_success());
        }
        let hashes: Vec<ChunkHash> = chunks.iter().map(|(hash, _)| *hash).collect();
        let ada = class.client("ada");
        ada.put(&chunks).await.unwrap();
        assert_eq!(fetched(&ada, &hashes).await.unwrap(), chunks);
    }
}

/// Each pending upload might be longer than its grant, until the broker checks it.
#[tokio::test]
async fn uploads_that_are_under_way_are_bounded_where_their_length_is_not_fixed() {
    let class = Class::of(Kind::Azure).await;
    let names = |from: u32, to: u32| -> Vec<(ChunkHash, u64)> {
        let name = |number: u32| (hash(&number.to_be_bytes()), 4);
        (from..to).map(name).collect()
    };
    let path = "/v1/chunks/grants/upload";
    let mut given = Vec::new();
    for batch in 0..4 {
        let names = encode(&names(256 * batch, 256 * (batch + 1)));
        let (status, body) = class.ask("ada", path, names).await;
        assert_eq!(status, 200);
        if let Grants::Store { grants } = decode(&body).unwrap() {
            given.extend(grants);
        }
    }
    assert_eq!(given.len(), 1024);
    let one_more = encode(&names(1024, 1025));
    let (status, body) = class.ask("ada", path, one_more.clone()).await;
    let text = String::from_utf8_lossy(&body);
    assert_eq!(status, 503);
    assert!(text.contains("at most 1024 uploads under way"), "{text}");
    // Pending uploads can be started again.
    let again = encode(&names(0, 256));
    assert_eq!(class.ask("ada", path, again).await.0, 200);
    // Other people are not affected, and each completed upload makes room.
    assert_eq!(class.ask("bob", path, one_more.clone()).await.0, 200);
    let bytes = Bytes::copy_from_slice(&7_u32.to_be_bytes());
    let hash = hash(&bytes);
    let grant = given.iter().find(|grant| grant.chunk == hash).unwrap();
    let answer = class.use_grant(Method::PUT, grant, &bytes).await;
    assert!(answer.is_success());
    assert!(class.report("ada", hash).await.is_empty());
    assert_eq!(class.ask("ada", path, one_more).await.0, 200);
}

/// Otherwise each length would be another object within the same quota.
#[tokio::test]
async fn a_chunk_has_one_length() {
    let class = Class::of(Kind::Azure).await;
    let (hash, bytes) = chunk(1, 1000);
    let grant = class.upload_grant("ada", (hash, 1000)).await;
    for length in [999, 1001] {
        let path = "/v1/chunks/grants/upload";
        let (status, body) = class.ask("ada", path, encode(&vec![(hash, length)])).await;
        let text = String::from_utf8_lossy(&body);
        assert_eq!(status, 400);
        assert!(text.contains("was announced with 1000 bytes"), "{text}");
    }
    // Other people are not affected.
    class.upload_grant("bob", (hash, 999)).await;
    let answer = class.use_grant(Method::PUT, &grant, &bytes).await;
    assert!(answer.is_success());
    assert!(class.report("ada", hash).await.is_empty());
}

#[tokio::test]
async fn whoever_uploads_other_bytes_harms_only_themselves() {
    for kind in KINDS {
        check_other_bytes(kind).await;
    }
}

async fn check_other_bytes(kind: Kind) {
    let class = Class::of(kind).await;
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
    // The broker has seen the damage and wants the chunk again under the same key. The first grant
    // is still valid for it.
    assert_eq!(ada.missing(&[hash]).await.unwrap(), [hash]);
    let again = class.upload_grant("ada", (hash, 1000)).await;
    assert_eq!(path(&again), path(&grant));
    ada.put(&[(hash, bytes.clone())]).await.unwrap();
    assert_eq!(
        fetched(&ada, &[hash]).await.unwrap(),
        [(hash, bytes.clone())]
    );

    // A report of damage to a sound object changes nothing.
    let (status, _) = class
        .ask("ada", "/v1/chunks/damaged", encode(&vec![hash]))
        .await;
    assert_eq!(status, 200);
    assert_eq!(fetched(&ada, &[hash]).await.unwrap(), [(hash, bytes)]);
}

#[tokio::test]
async fn what_may_be_uploaded_counts_as_if_it_were_there() {
    for kind in KINDS {
        check_quotas(kind).await;
    }
}

async fn check_quotas(kind: Kind) {
    let class = Class::with(Server::of(kind), |rules| {
        rules.person_limit_bytes = Some(2 << 20);
        rules.chunks_limit_bytes = 3 << 20;
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
    // A chunk with a pending grant is counted only once.
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
    for kind in KINDS {
        check_return(kind).await;
    }
}

async fn check_return(kind: Kind) {
    let mut class = Class::of(kind).await;
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
    // This store's error has no text of its own.
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
async fn a_container_that_is_full_still_gives_what_it_has() {
    let class = Class::with(Server::start_small_azure(8), |_| {}).await;
    let ada = class.client("ada").with_patience(std::time::Duration::ZERO);
    let chunks: Vec<_> = (0..40).map(|seed| chunk(seed, CHUNK_BYTES)).collect();
    let hashes: Vec<ChunkHash> = chunks.iter().map(|(hash, _)| *hash).collect();
    ada.put(&chunks[..4]).await.unwrap();
    let error = ada.put(&chunks[4..]).await.unwrap_err();
    // This store's error has its own text.
    let text = error.to_string();
    assert!(text.contains("MemoryExtentStoreAtSizeLimit"), "{text}");
    assert_eq!(fetched(&ada, &hashes[..4]).await.unwrap(), chunks[..4]);
}

#[tokio::test]
async fn a_broker_with_an_object_store_takes_no_bytes() {
    let class = Class::of(Kind::S3).await;
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
