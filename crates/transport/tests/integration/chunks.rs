//! Storing and fetching chunks, with a broker that restarts, is full, or sends invalid answers.

use crate::server::{Server, nobody, problem};
use axum::{
    Router,
    body::{Body, Bytes, to_bytes},
    extract::{Request, State},
    http::{StatusCode, header::AUTHORIZATION},
    response::{IntoResponse, Response},
    routing::{post, put},
};
use baton_protocol::{CHUNK_BYTES, ChunkHash, api::Problem, decode, encode};
use baton_transport::{Api, ChunkClient, LinkError};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::time::Instant;

/// A store that names chunks by their first bytes: the client does not check names.
#[derive(Default)]
struct Store {
    chunks: HashMap<ChunkHash, Bytes>,
    requests: usize,
    /// How many of the next answers are cut short.
    broken_answers: usize,
    unavailable: usize,
}

type Shared = Arc<Mutex<Store>>;

fn lock(store: &Shared) -> MutexGuard<'_, Store> {
    store.lock().unwrap()
}

fn name(bytes: &[u8]) -> ChunkHash {
    let mut name = [0; 32];
    let length = bytes.len().min(32);
    name[..length].copy_from_slice(&bytes[..length]);
    ChunkHash(name)
}

fn chunk(number: u32, bytes: usize) -> (ChunkHash, Bytes) {
    let mut chunk = vec![7; bytes.max(4)];
    chunk[..4].copy_from_slice(&number.to_be_bytes());
    (name(&chunk), Bytes::from(chunk))
}

async fn missing(State(store): State<Shared>, body: Bytes) -> Vec<u8> {
    let mut store = lock(&store);
    store.requests += 1;
    let mut asked: Vec<ChunkHash> = decode(&body).unwrap();
    asked.retain(|hash| !store.chunks.contains_key(hash));
    encode(&asked)
}

async fn store_chunks(State(store): State<Shared>, request: Request) -> StatusCode {
    assert_eq!(request.headers()[AUTHORIZATION], "Bearer open sesame");
    let body = to_bytes(request.into_body(), usize::MAX).await.unwrap();
    let mut store = lock(&store);
    store.requests += 1;
    if store.unavailable > 0 {
        store.unavailable -= 1;
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let mut rest = &body[..];
    while let Some((length, tail)) = rest.split_first_chunk() {
        let (chunk, tail) = tail.split_at(u32::from_be_bytes(*length) as usize);
        store
            .chunks
            .insert(name(chunk), Bytes::copy_from_slice(chunk));
        rest = tail;
    }
    StatusCode::NO_CONTENT
}

async fn fetch(State(store): State<Shared>, body: Bytes) -> Response {
    let mut store = lock(&store);
    store.requests += 1;
    let mut answer: Vec<std::io::Result<Bytes>> = Vec::new();
    for hash in decode::<Vec<ChunkHash>>(&body).unwrap() {
        let Some(chunk) = store.chunks.get(&hash) else {
            return problem(StatusCode::NOT_FOUND, Problem::UNKNOWN_CHUNK);
        };
        let length = u32::try_from(chunk.len()).unwrap();
        answer.push(Ok(Bytes::copy_from_slice(&length.to_be_bytes())));
        answer.push(Ok(chunk.clone()));
    }
    if store.broken_answers > 0 {
        store.broken_answers -= 1;
        answer.truncate(3);
        answer.push(Err(std::io::ErrorKind::Other.into()));
    }
    Body::from_stream(futures_util::stream::iter(answer)).into_response()
}

fn router(store: &Shared) -> Router {
    Router::new()
        .route("/v1/chunks/missing", post(missing))
        .route("/v1/chunks", put(store_chunks))
        .route("/v1/chunks/get", post(fetch))
        .with_state(Arc::clone(store))
}

async fn fetch_all(
    chunk_client: &ChunkClient,
    hashes: &[ChunkHash],
) -> Result<Vec<(ChunkHash, Bytes)>, LinkError> {
    let mut received = Vec::new();
    let each = |hash, bytes| {
        received.push((hash, bytes));
        Ok(())
    };
    chunk_client.get(hashes, each).await?;
    Ok(received)
}

fn hashes(chunks: &[(ChunkHash, Bytes)]) -> Vec<ChunkHash> {
    chunks.iter().map(|(hash, _)| *hash).collect()
}

async fn check_there_and_back(server: Server, store: Shared) {
    let chunk_client = ChunkClient::new(&server.dial).unwrap();
    let sizes = [4, 5, 100_000, CHUNK_BYTES];
    let chunks: Vec<_> = (0..70)
        .map(|number| chunk(number, sizes[number as usize % 4]))
        .collect();
    let names = hashes(&chunks);
    assert_eq!(chunk_client.missing(&names).await.unwrap(), names);
    chunk_client.put(&chunks[..69]).await.unwrap();
    assert_eq!(chunk_client.missing(&names).await.unwrap(), [names[69]]);
    assert_eq!(
        fetch_all(&chunk_client, &names[..69]).await.unwrap(),
        chunks[..69]
    );
    let unknown = fetch_all(&chunk_client, &names).await;
    assert!(matches!(unknown, Err(LinkError::UnknownChunk)));

    let requests = lock(&store).requests;
    assert!(chunk_client.missing(&[]).await.unwrap().is_empty());
    chunk_client.put(&[]).await.unwrap();
    assert!(fetch_all(&chunk_client, &[]).await.unwrap().is_empty());
    assert_eq!(
        lock(&store).requests,
        requests,
        "nothing is asked for nothing"
    );
}

#[tokio::test]
async fn chunks_go_there_and_back_over_tcp() {
    let store = Shared::default();
    check_there_and_back(Server::tcp(router(&store)).await, store).await;
}

#[tokio::test]
async fn chunks_go_there_and_back_over_a_unix_socket() {
    let store = Shared::default();
    check_there_and_back(Server::unix(router(&store)), store).await;
}

#[tokio::test]
async fn an_answer_that_breaks_off_is_asked_for_again_from_there() {
    let store = Shared::default();
    let server = Server::tcp(router(&store)).await;
    let chunk_client = ChunkClient::new(&server.dial).unwrap();
    let chunks: Vec<_> = (0..10).map(|number| chunk(number, 1000)).collect();
    chunk_client.put(&chunks).await.unwrap();
    lock(&store).broken_answers = 2;
    let received = fetch_all(&chunk_client, &hashes(&chunks)).await.unwrap();
    assert_eq!(received, chunks, "each once and in order");
}

#[tokio::test]
async fn a_broker_that_is_away_for_a_moment_is_waited_for() {
    let store = Shared::default();
    let server = Server::tcp(router(&store)).await;
    let chunk_client = ChunkClient::new(&server.dial).unwrap();
    lock(&store).unavailable = 2;
    chunk_client.put(&[chunk(1, 10)]).await.unwrap();
    assert_eq!(lock(&store).requests, 3);
}

#[tokio::test]
async fn a_broker_that_is_away_for_good_is_said() {
    let patience = Duration::from_secs(100);
    let (dial, _nobody) = nobody();
    let chunk_client = ChunkClient::new(&dial).unwrap();
    let chunk_client = chunk_client.with_patience(patience);
    tokio::time::pause();
    let began = Instant::now();
    let error = chunk_client.missing(&[name(b"a")]).await.unwrap_err();
    assert!(began.elapsed() >= patience);
    assert!(matches!(error, LinkError::Unreachable { .. }), "{error:?}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "Connection refused (os error 111)");
}

#[tokio::test]
async fn a_full_store_says_so_in_its_own_words() {
    async fn full() -> (StatusCode, &'static str) {
        (StatusCode::INSUFFICIENT_STORAGE, "The disk is full\n")
    }
    let router = Router::new().route("/v1/chunks", put(full));
    for server in [Server::tcp(router.clone()).await, Server::unix(router)] {
        let chunk_client = ChunkClient::new(&server.dial).unwrap();
        let chunks: Vec<_> = (0..64).map(|number| chunk(number, CHUNK_BYTES)).collect();
        let error = chunk_client.put(&chunks).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "The broker cannot store more: The disk is full"
        );
    }
}

#[tokio::test]
async fn nonsense_is_not_believed() {
    for (body, expected) in [
        (&b"\0\0\0\x05abc"[..], "missing at its end"),
        (b"\x7f\0\0\0abc", "too large"),
        (b"", "missing at its end"),
    ] {
        let router = Router::new().route("/v1/chunks/get", post(move || async move { body }));
        let server = Server::tcp(router).await;
        let chunk_client = ChunkClient::new(&server.dial).unwrap();
        let error = fetch_all(&chunk_client, &[name(b"a")]).await.unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn an_error_of_the_receiver_comes_back() {
    let store = Shared::default();
    let server = Server::tcp(router(&store)).await;
    let chunk_client = ChunkClient::new(&server.dial).unwrap();
    let chunk = chunk(1, 10);
    chunk_client
        .put(std::slice::from_ref(&chunk))
        .await
        .unwrap();
    let each = |_, _| Err(LinkError::Receiver("no room".into()));
    let error = chunk_client.get(&[chunk.0], each).await;
    assert!(matches!(error, Err(LinkError::Receiver(_))));
}

#[tokio::test]
async fn a_page_can_be_read() {
    let router = Router::new().route("/health/live", axum::routing::get(|| async { "ok" }));
    let server = Server::unix(router);
    let api = Api::new(&server.dial).unwrap();
    assert_eq!(api.get("/health/live").await.unwrap(), "ok");
    let error = api.get("/other").await;
    assert!(matches!(error, Err(LinkError::NotFound { .. })));
}

#[test]
fn transfers_may_run_on_any_thread() {
    fn check(_: impl Send) {}
    let _ = |chunk_client: &ChunkClient, hashes: &[ChunkHash], chunks: &[(ChunkHash, Bytes)]| {
        check(chunk_client.missing(hashes));
        check(chunk_client.put(chunks));
        check(chunk_client.get(hashes, |_, _| Ok(())));
    };
}
