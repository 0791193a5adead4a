//! A scripted broker: one WebSocket for the worker, and chunks in memory.

use crate::harness::within;
use axum::{
    Router,
    body::Bytes,
    extract::{
        State,
        ws::{Message, WebSocket, WebSocketUpgrade},
    },
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post, put},
    serve::ListenerExt,
};
use baton_protocol::{
    ChunkHash,
    api::Problem,
    decode, encode,
    worker::{FromWorker, ToWorker},
};
use baton_transport::Dial;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};
use tokio::sync::{RwLock, mpsc};

#[derive(Clone)]
pub(crate) struct Broker {
    pub(crate) chunks: Arc<Mutex<HashMap<ChunkHash, Bytes>>>,
    /// How many chunks were fetched from here.
    pub(crate) fetched: Arc<Mutex<usize>>,
    /// While a test holds this for writing, requests for chunks wait.
    pub(crate) gate: Arc<RwLock<()>>,
    pub(crate) address: String,
    lines: Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<WebSocket>>>,
}

#[derive(Clone)]
struct Shared {
    chunks: Arc<Mutex<HashMap<ChunkHash, Bytes>>>,
    fetched: Arc<Mutex<usize>>,
    gate: Arc<RwLock<()>>,
    lines: mpsc::UnboundedSender<WebSocket>,
}

impl Broker {
    pub(crate) async fn start() -> Self {
        let (sender, lines) = mpsc::unbounded_channel();
        let shared = Shared {
            chunks: Arc::default(),
            fetched: Arc::default(),
            gate: Arc::default(),
            lines: sender,
        };
        let router = Router::new()
            .route("/v1/worker", get(upgrade))
            .route("/v1/chunks/missing", post(missing))
            .route("/v1/chunks/get", post(get_chunks))
            .route("/v1/chunks", put(put_chunks))
            .layer(axum::extract::DefaultBodyLimit::disable())
            .with_state(shared.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let listener = listener.tap_io(|socket| socket.set_nodelay(true).unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            chunks: shared.chunks,
            fetched: shared.fetched,
            gate: shared.gate,
            address,
            lines: Arc::new(tokio::sync::Mutex::new(lines)),
        }
    }

    pub(crate) fn dial(&self) -> Dial {
        Dial {
            address: self.address.parse().unwrap(),
            token: None,
            ca_file: None,
        }
    }

    /// The worker's next connection, with its hello.
    pub(crate) async fn accept(&self) -> (Line, FromWorker) {
        let socket = within(async { self.lines.lock().await.recv().await })
            .await
            .unwrap();
        let mut line = Line { socket };
        let hello = line.receive().await;
        assert!(matches!(hello, FromWorker::Hello { .. }));
        (line, hello)
    }
}

impl Broker {
    /// The worker's next connection, welcomed.
    pub(crate) async fn welcome(&self) -> (Line, FromWorker) {
        let (mut line, hello) = self.accept().await;
        line.send(crate::harness::welcome()).await;
        (line, hello)
    }
}

/// One connection of the worker.
pub(crate) struct Line {
    socket: WebSocket,
}

impl Line {
    pub(crate) async fn send(&mut self, message: ToWorker) {
        self.socket
            .send(Message::Binary(encode(&message).into()))
            .await
            .unwrap();
    }

    /// Closes the connection without a message.
    pub(crate) async fn close(&mut self) {
        let _ = self.socket.send(Message::Close(None)).await;
    }

    pub(crate) async fn receive(&mut self) -> FromWorker {
        within(self.try_receive())
            .await
            .expect("the worker has closed the connection")
    }

    pub(crate) async fn try_receive(&mut self) -> Option<FromWorker> {
        loop {
            match self.socket.recv().await?.ok()? {
                Message::Binary(bytes) => return Some(decode(&bytes).unwrap()),
                Message::Close(_) => return None,
                _ => {}
            }
        }
    }
}

async fn upgrade(State(shared): State<Shared>, upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(async move |socket| shared.lines.send(socket).unwrap())
}

async fn missing(State(shared): State<Shared>, body: Bytes) -> Vec<u8> {
    let mut hashes: Vec<ChunkHash> = decode(&body).unwrap();
    let chunks = shared.chunks.lock().unwrap();
    hashes.retain(|hash| !chunks.contains_key(hash));
    encode(&hashes)
}

async fn get_chunks(State(shared): State<Shared>, body: Bytes) -> Response {
    let hashes: Vec<ChunkHash> = decode(&body).unwrap();
    *shared.fetched.lock().unwrap() += hashes.len();
    drop(shared.gate.read().await);
    let chunks = shared.chunks.lock().unwrap();
    let mut answer = Vec::new();
    for hash in hashes {
        let Some(bytes) = chunks.get(&hash) else {
            let problem = Problem {
                kind: Problem::UNKNOWN_CHUNK.to_owned(),
                title: "Not Found".to_owned(),
                status: 404,
                detail: format!("Chunk {hash} is missing here"),
                hint: None,
            };
            let kind = [(header::CONTENT_TYPE, "application/problem+json")];
            let problem = serde_json::to_string(&problem).unwrap();
            return (StatusCode::NOT_FOUND, kind, problem).into_response();
        };
        answer.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
        answer.extend_from_slice(bytes);
    }
    answer.into_response()
}

async fn put_chunks(State(shared): State<Shared>, mut body: Bytes) -> StatusCode {
    let mut chunks = shared.chunks.lock().unwrap();
    while !body.is_empty() {
        let length = u32::from_be_bytes(*body.first_chunk().unwrap()) as usize;
        let chunk = body.slice(4..4 + length);
        chunks.insert(baton_chunks::hash(&chunk), chunk);
        body = body.slice(4 + length..);
    }
    StatusCode::NO_CONTENT
}
