//! Grants, and an object store that refuses, disconnects, is slow or full, or redirects.

use crate::server::{Server, problem};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header::AUTHORIZATION},
    response::{IntoResponse, Response},
    routing::{post, put},
};
use baton_protocol::{ChunkHash, Grant, Grants, api::Problem, decode, encode};
use baton_transport::{ChunkClient, LinkError};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

/// What the store does instead of answering the request.
enum Fault {
    Answer(u16, &'static str),
    Elsewhere,
    Silent,
    /// A chunk with one byte changed.
    Wrong,
    Longer,
}

#[derive(Default)]
struct World {
    objects: HashMap<String, Bytes>,
    /// Faults for the next requests to the store, in order.
    faults: VecDeque<Fault>,
    /// Requests to the broker, by address.
    asked: HashMap<&'static str, usize>,
    confirmed: Vec<ChunkHash>,
    address: String,
    /// Whether the broker accepts bytes itself for one more request.
    by_broker: bool,
    /// The number of grants so far; each has another address.
    grants: usize,
}

type Shared = Arc<Mutex<World>>;

fn lock(world: &Shared) -> MutexGuard<'_, World> {
    world.lock().unwrap()
}

fn chunk(number: u8, bytes: usize) -> (ChunkHash, Bytes) {
    let bytes = Bytes::from(vec![number; bytes]);
    (baton_chunks::hash(&bytes), bytes)
}

fn grant(world: &mut World, chunk: ChunkHash, bytes: u64) -> Grant {
    world.grants += 1;
    Grant {
        chunk,
        bytes,
        url: format!("{}/store/{chunk}?grant={}", world.address, world.grants),
        headers: vec![("if-none-match".to_owned(), "*".to_owned())],
    }
}

async fn uploads(State(world): State<Shared>, body: Bytes) -> Vec<u8> {
    let mut world = lock(&world);
    *world.asked.entry("uploads").or_default() += 1;
    if world.by_broker {
        return encode(&Grants::Broker {});
    }
    let wanted: Vec<(ChunkHash, u64)> = decode(&body).unwrap();
    let grants = wanted
        .into_iter()
        .map(|(chunk, bytes)| grant(&mut world, chunk, bytes));
    let grants = grants.collect();
    encode(&Grants::Store { grants })
}

async fn downloads(State(world): State<Shared>, body: Bytes) -> Vec<u8> {
    let mut world = lock(&world);
    *world.asked.entry("downloads").or_default() += 1;
    let mut grants = Vec::new();
    for chunk in decode::<Vec<ChunkHash>>(&body).unwrap() {
        let bytes = world.objects.get(&chunk.to_string()).map(Bytes::len);
        grants.extend(bytes.map(|bytes| grant(&mut world, chunk, bytes as u64)));
    }
    encode(&Grants::Store { grants })
}

async fn uploaded(State(world): State<Shared>, body: Bytes) -> Vec<u8> {
    let mut world = lock(&world);
    let hashes: Vec<ChunkHash> = decode(&body).unwrap();
    let (here, missing): (Vec<_>, Vec<_>) = hashes
        .into_iter()
        .partition(|hash| world.objects.contains_key(&hash.to_string()));
    world.confirmed.extend(here);
    encode(&missing)
}

async fn damaged(State(world): State<Shared>, body: Bytes) -> Vec<u8> {
    let mut world = lock(&world);
    *world.asked.entry("damaged").or_default() += 1;
    for hash in decode::<Vec<ChunkHash>>(&body).unwrap() {
        let name = hash.to_string();
        if world
            .objects
            .get(&name)
            .is_some_and(|bytes| baton_chunks::hash(bytes) != hash)
        {
            world.objects.remove(&name);
        }
    }
    encode(&())
}

/// Accepts bytes once if `by_broker` is set; otherwise answers like a broker that was restarted
/// with an object store.
async fn bytes(State(world): State<Shared>) -> Response {
    let mut world = lock(&world);
    *world.asked.entry("bytes").or_default() += 1;
    match std::mem::take(&mut world.by_broker) {
        true => StatusCode::NO_CONTENT.into_response(),
        false => problem(StatusCode::CONFLICT, Problem::IN_OBJECT_STORE),
    }
}

async fn object(
    State(world): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    method: axum::http::Method,
    body: Bytes,
) -> Response {
    // The store must not get the broker's token.
    assert!(!headers.contains_key(AUTHORIZATION));
    assert_eq!(headers["if-none-match"], "*");
    let fault = lock(&world).faults.pop_front();
    match fault {
        Some(Fault::Answer(status, code)) => {
            let status = StatusCode::from_u16(status).unwrap();
            let body = format!("<Error><Code>{code}</Code><Key>secret</Key></Error>");
            return (status, body).into_response();
        }
        Some(Fault::Elsewhere) => {
            let elsewhere = [("location", format!("/store/{name}"))];
            return (StatusCode::TEMPORARY_REDIRECT, elsewhere).into_response();
        }
        Some(Fault::Silent) => return std::future::pending().await,
        Some(Fault::Wrong) => return vec![0_u8; 100].into_response(),
        Some(Fault::Longer) => {
            let endless = futures_util::stream::repeat(Ok::<_, std::fmt::Error>(
                Bytes::from_static(&[0; 65536]),
            ));
            return Body::from_stream(endless).into_response();
        }
        None => {}
    }
    let mut world = lock(&world);
    if method == "PUT" {
        if world.objects.contains_key(&name) {
            return StatusCode::PRECONDITION_FAILED.into_response();
        }
        world.objects.insert(name, body);
        return StatusCode::OK.into_response();
    }
    match world.objects.get(&name) {
        Some(bytes) => bytes.clone().into_response(),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// A broker whose store has the same address; no test relies on that.
async fn start() -> (Server, ChunkClient, Shared) {
    let world = Shared::default();
    let router = Router::new()
        .route("/v1/chunks/grants/upload", post(uploads))
        .route("/v1/chunks/grants/download", post(downloads))
        .route("/v1/chunks/uploaded", post(uploaded))
        .route("/v1/chunks/damaged", post(damaged))
        .route("/v1/chunks", put(bytes))
        .route("/v1/chunks/get", post(bytes))
        .route("/store/{name}", put(object).get(object))
        .with_state(Arc::clone(&world));
    let server = Server::tcp(router).await;
    lock(&world).address = server.dial.address.to_string();
    let client = ChunkClient::new(&server.dial).unwrap();
    (server, client, world)
}

async fn fetched(client: &ChunkClient, hashes: &[ChunkHash]) -> Result<Vec<Bytes>, LinkError> {
    let mut chunks = Vec::new();
    let each = |_, chunk| {
        chunks.push(chunk);
        Ok(())
    };
    client.get(hashes, each).await?;
    Ok(chunks)
}

#[tokio::test]
async fn expired_grants_and_busy_stores_are_tried_again() {
    let (_server, client, world) = start().await;
    let chunk = chunk(1, 100);
    let faults = [
        Fault::Answer(403, "AccessDenied"),
        Fault::Answer(503, "SlowDown"),
        Fault::Answer(500, "InternalError"),
        Fault::Answer(400, "ExpiredToken"),
    ];
    lock(&world).faults = faults.into();
    client.put(std::slice::from_ref(&chunk)).await.unwrap();
    // Each attempt has a new grant.
    assert_eq!(lock(&world).asked["uploads"], 5);
    assert_eq!(lock(&world).confirmed, [chunk.0]);
    // The chunk is there already, which is no failure.
    client.put(std::slice::from_ref(&chunk)).await.unwrap();

    let faults = [
        Fault::Answer(403, "AccessDenied"),
        Fault::Answer(503, "SlowDown"),
    ];
    lock(&world).faults = faults.into();
    assert_eq!(fetched(&client, &[chunk.0]).await.unwrap(), [chunk.1]);
}

#[tokio::test]
async fn a_store_that_goes_on_refusing_is_named() {
    let (_server, client, world) = start().await;
    let chunk = chunk(1, 100);
    let refusals = || (0..10).map(|_| Fault::Answer(403, "AccessDenied"));
    lock(&world).faults = refusals().collect();
    let error = client.put(std::slice::from_ref(&chunk)).await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("The object store at 127.0.0.1:"), "{text}");
    assert!(
        text.ends_with("refused the broker's grant (403 AccessDenied)"),
        "{text}"
    );
    assert_eq!(lock(&world).asked["uploads"], 4);

    // Redirects are not followed.
    lock(&world).faults = (0..10).map(|_| Fault::Elsewhere).collect();
    let error = client.put(std::slice::from_ref(&chunk)).await.unwrap_err();
    assert!(
        matches!(error, LinkError::ObjectRefused { status: 307, .. }),
        "{error:?}"
    );
    assert!(lock(&world).objects.is_empty());
}

#[tokio::test]
async fn a_full_store_says_so() {
    let (_server, client, world) = start().await;
    let chunk = chunk(1, 100);
    for (status, code) in [
        (507, "XMinioStorageFull"),
        (400, "XMinioAdminBucketQuotaExceeded"),
        (403, "QuotaExceeded"),
    ] {
        lock(&world).faults = [Fault::Answer(status, code)].into();
        match client.put(std::slice::from_ref(&chunk)).await {
            Err(LinkError::StoreFull { text }) => assert!(text.contains(code), "{text}"),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn other_bytes_are_reported_and_never_given_out() {
    let (_server, client, world) = start().await;
    let chunks = [chunk(1, 100), chunk(2, 100)];
    client.put(&chunks).await.unwrap();
    let hashes = chunks.clone().map(|(hash, _)| hash);
    // The damage happened on the network.
    lock(&world).faults = [Fault::Wrong, Fault::Longer].into();
    let right = chunks.clone().map(|(_, bytes)| bytes);
    assert_eq!(fetched(&client, &hashes).await.unwrap(), right);
    let reports = lock(&world).asked["damaged"];
    assert!(reports > 0);
    // The store itself has other bytes.
    lock(&world)
        .objects
        .insert(hashes[1].to_string(), Bytes::from_static(b"false"));
    let mut received = Vec::new();
    let each = |_, chunk| {
        received.push(chunk);
        Ok(())
    };
    let error = client.get(&hashes, each).await.unwrap_err();
    assert!(matches!(error, LinkError::UnknownChunk), "{error:?}");
    assert_eq!(received, &right[..1]);
    assert_eq!(lock(&world).asked["damaged"], reports + 1);
}

/// Time is paused once the store has the request, which it does not answer.
#[tokio::test]
async fn a_silent_store_is_given_up_in_time() {
    let (_server, client, world) = start().await;
    let chunk = chunk(1, 100);
    lock(&world).faults = [Fault::Silent].into();
    let client = client.with_patience(Duration::ZERO);
    let put = tokio::spawn(async move { client.put(std::slice::from_ref(&chunk)).await });
    let asked = async {
        while !lock(&world).faults.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asked)
        .await
        .unwrap();
    tokio::time::pause();
    let error = put.await.unwrap().unwrap_err();
    match error {
        LinkError::ObjectStore { reason, .. } => assert_eq!(reason, "it does not answer"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_broker_that_gets_an_object_store_is_followed() {
    let (_server, client, world) = start().await;
    let chunks = [chunk(1, 100), chunk(2, 100)];
    lock(&world).by_broker = true;
    client.put(&chunks[..1]).await.unwrap();
    assert_eq!(lock(&world).asked["uploads"], 1);
    // From here on, the broker uses a store.
    client.put(&chunks[1..]).await.unwrap();
    assert_eq!(lock(&world).asked["bytes"], 2);
    assert_eq!(lock(&world).confirmed, [chunks[1].0]);
    let right = chunks[1].1.clone();
    assert_eq!(fetched(&client, &[chunks[1].0]).await.unwrap(), [right]);
}
