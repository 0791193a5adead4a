//! A scripted broker and a scripted shim, for a proxy between them.
//!
//! In: what a test lets each of them send. Out: what the proxy sent to each.
//!
//! **Invariant:** nothing sleeps. A test waits for messages, and decides itself when chunks arrive.

use crate::{
    config::{Audience, BrokerChoice, TrashConfig},
    shim::*,
};
use axum::{
    Router,
    body::Bytes,
    extract::{
        self,
        ws::{Message, WebSocket, WebSocketUpgrade},
    },
    http::StatusCode,
    response::{IntoResponse as _, Response},
    routing::{any, post, put},
};
use baton_jupyter_wire::shim::of_peer;
use baton_protocol::{
    CallId, ChunkHash, Finished, JobEvent, JobId, JobKind, Manifest, NumberedEvent, Outcome, Piece,
    Priority, Refusal, RemoteError, State, Submission, decode, encode,
    proxy::{FromProxy, ToProxy},
    shim::{Run, SegmentView, Snapshot, ToNotebook},
};
use baton_transport::Dial;
use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};
use tokio::{
    net::{TcpListener, UnixStream},
    sync::{OwnedRwLockWriteGuard, RwLock, mpsc},
    time::timeout,
};

/// How long the proxy waits for its broker, and a test for a message: longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// A background cell that was submitted, and the shim that runs it.
pub(super) async fn submit_background_cell(broker: &mut Broker) -> (Shim, Submission) {
    submit_cell(broker, JobKind::Background).await
}

pub(super) async fn submit_cell(broker: &mut Broker, kind: JobKind) -> (Shim, Submission) {
    let mut shim = Shim::start(broker, kind);
    shim.run("train()").await;
    broker.welcome().await;
    (shim, broker.submission().await)
}

// ---- the broker

pub(super) struct Broker {
    address: String,
    served: Arc<Served>,
    /// Connections that the test has not accepted yet.
    connections: mpsc::UnboundedReceiver<WebSocket>,
    /// The connection that the test accepted last, unless it was dropped.
    connection: Option<WebSocket>,
    /// Requests for chunks.
    asks: mpsc::UnboundedReceiver<()>,
}

/// What the requests to the broker share with the test.
struct Served {
    /// How many more attempts to connect are refused.
    refusals: AtomicI64,
    connections: mpsc::UnboundedSender<WebSocket>,
    chunks: HashMap<ChunkHash, Bytes>,
    /// Chunks that were asked for. The first request for each fails.
    asked: Mutex<HashSet<ChunkHash>>,
    asks: mpsc::UnboundedSender<()>,
    /// While a test holds this for writing, chunks do not arrive.
    gate: Arc<RwLock<()>>,
}

impl Broker {
    /// Starts a broker that has these chunks, and accepts all others without keeping them.
    pub(super) async fn start(chunks: impl IntoIterator<Item = &'static [u8]>) -> Self {
        let (connection_sender, connections) = mpsc::unbounded_channel();
        let (ask_sender, asks) = mpsc::unbounded_channel();
        let chunks = chunks.into_iter();
        let served = Arc::new(Served {
            refusals: AtomicI64::default(),
            connections: connection_sender,
            chunks: chunks
                .map(|chunk| (baton_chunks::hash(chunk), Bytes::from_static(chunk)))
                .collect(),
            asked: Mutex::default(),
            asks: ask_sender,
            gate: Arc::default(),
        });
        let nothing = || async { encode(&Vec::<ChunkHash>::new()) };
        let router = Router::new()
            .route("/v1/proxy", any(upgrade))
            .route("/v1/chunks/missing", post(nothing))
            .route("/v1/chunks", put(|| async {}))
            .route("/v1/chunks/get", post(get_chunks))
            .with_state(served.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        Self {
            address,
            served,
            connections,
            connection: None,
            asks,
        }
    }

    /// Accepts the proxy's next connection, and greets the proxy.
    pub(super) async fn welcome(&mut self) {
        self.accept().await;
        self.greet().await;
    }

    pub(super) async fn accept(&mut self) {
        self.connection = Some(self.connections.recv().await.unwrap());
    }

    /// Answers the proxy's greeting.
    pub(super) async fn greet(&mut self) {
        let welcome = ToProxy::Welcome {
            broker_version: "test".to_owned(),
            autosave: false,
            course: None,
        };
        self.answer_greeting(&welcome).await;
    }

    /// Accepts the proxy's next connection, and refuses the notebook.
    pub(super) async fn refuse(&mut self, refusal: Refusal) {
        self.accept().await;
        self.answer_greeting(&ToProxy::Refused(refusal)).await;
    }

    async fn answer_greeting(&mut self, answer: &ToProxy) {
        assert!(matches!(self.receive().await, FromProxy::Hello { .. }));
        self.send(answer).await;
    }

    /// Ends the connection, like a broker that shuts down.
    pub(super) async fn close(&mut self) {
        self.send_frame(Message::Close(None)).await;
    }

    /// Drops the connection, like a broker that crashes, and then refuses this many connections.
    pub(super) fn drop_and_refuse(&mut self, refusals: i64) {
        self.served.refusals.store(refusals, Ordering::SeqCst);
        self.connection = None;
    }

    /// No chunk arrives before the returned guard is dropped.
    pub(super) async fn close_gate(&self) -> OwnedRwLockWriteGuard<()> {
        self.served.gate.clone().write_owned().await
    }

    /// Waits for a request for chunks.
    pub(super) async fn until_asked(&mut self) {
        self.asks.recv().await.unwrap();
    }

    /// Sends a job's events, numbered from `first`.
    pub(super) async fn send_events(
        &mut self,
        job: JobId,
        first: u64,
        events: impl IntoIterator<Item = JobEvent>,
    ) {
        let events = (first..).zip(events);
        let events = events
            .map(|(number, event)| NumberedEvent { number, event })
            .collect();
        self.send(&ToProxy::Events { job, events }).await;
    }

    pub(super) async fn send(&mut self, message: &ToProxy) {
        self.send_frame(Message::Binary(encode(message).into()))
            .await;
    }

    async fn send_frame(&mut self, frame: Message) {
        let connection = self.connection.as_mut().unwrap();
        connection.send(frame).await.unwrap();
    }

    pub(super) async fn submission(&mut self) -> Submission {
        match self.receive().await {
            FromProxy::Submit(submission) => submission,
            other => panic!("no submission: {other:?}"),
        }
    }

    pub(super) async fn receive(&mut self) -> FromProxy {
        let connection = self.connection.as_mut().unwrap();
        loop {
            if let Message::Binary(message) = connection.recv().await.unwrap().unwrap() {
                return decode(&message).unwrap();
            }
        }
    }
}

async fn upgrade(
    extract::State(served): extract::State<Arc<Served>>,
    upgrade: WebSocketUpgrade,
) -> Response {
    if served.refusals.fetch_sub(1, Ordering::SeqCst) > 0 {
        return StatusCode::UNAUTHORIZED.into_response();
    }
    upgrade.on_upgrade(async move |socket| served.connections.send(socket).unwrap())
}

async fn get_chunks(
    extract::State(served): extract::State<Arc<Served>>,
    wanted: Bytes,
) -> Response {
    served.asks.send(()).unwrap();
    drop(served.gate.read().await);
    let mut answer = Vec::new();
    for hash in decode::<Vec<ChunkHash>>(&wanted).unwrap() {
        if served.asked.lock().unwrap().insert(hash) {
            return StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
        let Some(chunk) = served.chunks.get(&hash) else {
            return StatusCode::NOT_FOUND.into_response();
        };
        answer.extend(u32::try_from(chunk.len()).unwrap().to_be_bytes());
        answer.extend_from_slice(chunk);
    }
    answer.into_response()
}

/// A job's first two events: a worker gets it, and it starts.
pub(super) fn started() -> [JobEvent; 2] {
    let worker = "gpu-0".to_owned();
    let assigned = JobEvent::Assigned {
        worker: worker.clone(),
        gpu: true,
        timeout_ms: None,
    };
    [assigned, JobEvent::Started { worker }]
}

/// The end of a submitted cell that returns this pickle stream.
pub(super) fn returning(submission: &Submission, stream: Piece) -> Finished {
    let manifest = Manifest {
        base: submission.state.base().after_message(),
        stream: vec![stream],
        segments: Vec::new(),
        dropped_segments: Vec::new(),
    };
    Finished {
        state: Some(State::Chunks(manifest)),
        ..Finished::without_state(Outcome::Ok, None)
    }
}

// ---- the shim

pub(super) struct Shim {
    reader: ShimReader,
    writer: ShimWriter,
    /// The last call.
    call: CallId,
}

impl Shim {
    /// Starts a proxy for jobs of this kind.
    pub(super) fn start(broker: &Broker, kind: JobKind) -> Self {
        let (own, other) = UnixStream::pair().unwrap();
        let pid = std::process::id();
        let (reader, writer) = of_peer(other, pid).unwrap();
        let config = config(broker, kind);
        tokio::spawn(serve_one(reader, writer, config, CancellationToken::new()));
        let (reader, writer) = of_peer(own, pid).unwrap();
        Self {
            reader,
            writer,
            call: 0,
        }
    }

    /// Runs a cell without variables.
    pub(super) async fn run(&mut self, code: &str) {
        self.run_with(code, Vec::new()).await;
    }

    /// Runs a cell whose variables are in these segments.
    pub(super) async fn run_with(&mut self, code: &str, segments: Vec<SegmentView>) {
        self.call += 1;
        self.send(FromNotebook::Run(run(self.call, code, segments)))
            .await;
    }

    pub(super) async fn send(&mut self, message: FromNotebook) {
        self.writer.send(&message).await.unwrap();
    }

    /// The next message that is not about the cell's progress.
    pub(super) async fn receive(&mut self) -> ToNotebook {
        self.until(|message| match message {
            ToNotebook::Released { .. }
            | ToNotebook::Status { .. }
            | ToNotebook::Started { .. } => None,
            message => Some(message),
        })
        .await
    }

    /// Waits for an output with this text.
    pub(super) async fn until_shown(&mut self, text: &str) {
        let shows = |content: &[u8]| String::from_utf8_lossy(content).contains(text);
        self.until(|message| match message {
            ToNotebook::Publish { output, .. } => shows(&output.content).then_some(()),
            ToNotebook::Failed { error, .. } => panic!("{error:?}"),
            _ => None,
        })
        .await;
    }

    pub(super) async fn until_started(&mut self) {
        self.until(|message| matches!(message, ToNotebook::Started { .. }).then_some(()))
            .await;
    }

    /// Waits until the cell has failed.
    pub(super) async fn failure(&mut self) -> RemoteError {
        self.until(|message| match message {
            ToNotebook::Failed { error, .. } => Some(error),
            _ => None,
        })
        .await
    }

    /// Waits for the result of the cell, and applies it.
    pub(super) async fn apply_result(&mut self) {
        let finished = self.until(|message| match message {
            ToNotebook::Finished { call, delta, .. } => Some((call, delta)),
            _ => None,
        });
        let (call, delta) = finished.await;
        assert!(delta.is_some());
        self.send(FromNotebook::Applied { call, error: None }).await;
    }

    /// Skips messages until `select` returns something.
    pub(super) async fn until<Found>(
        &mut self,
        select: impl Fn(ToNotebook) -> Option<Found>,
    ) -> Found {
        let found = async {
            loop {
                let message = self.reader.receive().await.unwrap().unwrap();
                if let Some(found) = select(message) {
                    return found;
                }
            }
        };
        timeout(PATIENCE, found).await.unwrap()
    }
}

fn config(broker: &Broker, kind: JobKind) -> RemoteConfig {
    RemoteConfig {
        audience: Audience::Program {
            name: "test".to_owned(),
            kind: Some(kind),
        },
        broker: BrokerChoice::Configured(Dial {
            address: broker.address.parse().unwrap(),
            token: None,
            ca_file: None,
        }),
        course: None,
        priority: Priority::Normal,
        trash: TrashConfig::default(),
        memory: None,
        kernel_pid: std::process::id(),
        patience: PATIENCE,
    }
}

fn run(call: CallId, code: &str, segments: Vec<SegmentView>) -> Run {
    Run {
        call,
        code: code.to_owned(),
        parent_header: b"{}".to_vec().into(),
        message_id: format!("cell-{call}"),
        kernel_session: "s".to_owned(),
        after: None,
        execution_count: 1,
        silent: false,
        allow_stdin: false,
        captured: false,
        kind: JobKind::Cell,
        quiet: true,
        folder: "/".to_owned(),
        timeout_ms: None,
        gpu_memory_bytes: None,
        gpu: None,
        environment: None,
        priority: Priority::Normal,
        state: whole_state(segments),
    }
}

/// A complete state, the first message of an object table.
pub(super) fn whole_state(segments: Vec<SegmentView>) -> Snapshot {
    Snapshot {
        messages: 0,
        stream: "{}".into(),
        segments,
        dropped_segments: Vec::new(),
    }
}
