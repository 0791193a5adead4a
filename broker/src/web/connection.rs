//! One WebSocket of a proxy or a worker: hello, then messages both ways until one side ends.
//!
//! In: binary frames. Out: [`Event`]s, in order, the last one `Closed`.
//! Reading and writing go on side by side, so that two peers that both write cannot block each other.

use crate::{
    engine::{Event, Outgoing},
    pace::Pace,
    people::worker_id,
    screen::Screen,
    web::{Meter, Watch},
};
use axum::{
    body::Bytes,
    extract::ws::{CloseFrame, Message, WebSocket, close_code},
};
use baton_broker_queue::{Account, ConnectionId, Ending, Identity, WorkerHello, check_hello};
use baton_protocol::{
    Machine, PROTOCOL_VERSION, Refusal, decode, encode,
    proxy::{FromProxy, ToProxy},
    worker::{Device, DeviceKind, FromWorker, ToWorker},
};
use baton_scheduling::queue::Offer;
use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use serde::de::DeserializeOwned;
use std::{
    future::ready,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use tokio::{
    sync::mpsc,
    time::{Instant, MissedTickBehavior, interval, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;

/// Frames that wait for a peer to read them.
const OUTGOING: usize = 128;
/// Proxies in front close connections on which nothing happens, often after a minute.
const PING_EVERY: Duration = Duration::from_secs(15);
/// A peer answers pings, so one that says nothing for so long is gone.
const SILENCE: Duration = Duration::from_secs(45);
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// How often a message that is not whole is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// A connection on which nothing was said yet.
pub(crate) struct Opened {
    pub(crate) socket: WebSocket,
    pub(crate) meter: Meter,
    pub(crate) inbox: mpsc::Sender<Event>,
    pub(crate) stop: CancellationToken,
}

pub(crate) async fn serve_proxy(
    mut opened: Opened,
    identity: &Identity,
    screen: impl FnOnce(Account) -> Screen,
) {
    match hello(&mut opened).await {
        Some(FromProxy::Hello {
            protocol_version: PROTOCOL_VERSION,
            notebook,
            owner,
            course,
        }) => match identity.account(owner, course) {
            Ok(account) => {
                let of = account.clone();
                let came = |connection, outgoing| {
                    Event::ProxyConnected(connection, outgoing, notebook, of)
                };
                let screen = screen(account);
                let mut pace = Pace::new(Instant::now());
                let event = move |connection, message| {
                    let verdict = pace.count(Instant::now());
                    screen.clone().event(connection, message, verdict)
                };
                serve(opened, came, event).await;
            }
            Err(refusal) => refuse(opened.socket, &ToProxy::Refused(refusal)).await,
        },
        Some(FromProxy::Hello {
            protocol_version: peer,
            ..
        }) => refuse(opened.socket, &ToProxy::Refused(other_version(peer))).await,
        _ => refuse(opened.socket, &ToProxy::Refused(Refusal::NoHello {})).await,
    }
}

pub(crate) async fn serve_worker(mut opened: Opened, identity: &Identity, most_slots: u32) {
    match hello(&mut opened).await {
        Some(FromWorker::Hello {
            protocol_version: PROTOCOL_VERSION,
            worker: life,
            name,
            devices,
            machine,
            slots,
            sessions,
            keeping,
            assignments,
            acknowledged,
            failing,
        }) => {
            let own = identity.worker();
            let hello = WorkerHello {
                worker: own.map_or(life, worker_id),
                life,
                name: called(own, name, &devices),
                offer: Offer { devices, machine },
                slots,
                sessions,
                keeping,
                assignments,
                acknowledged,
                failing,
            };
            if let Err(refusal) = may_enter(own, &hello, most_slots) {
                tracing::warn!(
                    "Refused the worker {}: {refusal}",
                    own.unwrap_or("without a token of its own")
                );
                return refuse(opened.socket, &ToWorker::Refused(refusal)).await;
            }
            let came = |connection, outgoing| Event::WorkerConnected(connection, outgoing, hello);
            let event = |connection, message| ready(Some(Event::FromWorker(connection, message)));
            serve(opened, came, event).await;
        }
        Some(FromWorker::Hello {
            protocol_version: peer,
            ..
        }) => refuse(opened.socket, &ToWorker::Refused(other_version(peer))).await,
        _ => refuse(opened.socket, &ToWorker::Refused(Refusal::NoHello {})).await,
    }
}

/// A worker that says nothing has the name of its token, or else of its kind of device.
fn called(own: Option<&str>, said: String, devices: &[Device]) -> String {
    match (own, devices.first().map(|device| device.kind)) {
        _ if !said.is_empty() => said,
        (Some(own), _) => own.to_owned(),
        (None, Some(DeviceKind::Cuda)) => "gpu-0".to_owned(),
        (None, _) => "cpu-0".to_owned(),
    }
}

fn may_enter(own: Option<&str>, hello: &WorkerHello, most_slots: u32) -> Result<(), Refusal> {
    check_hello(hello, most_slots)?;
    match own {
        Some(own) if own != hello.name => Err(Refusal::NotYourName {
            token: own.to_owned(),
            said: hello.name.clone(),
        }),
        _ => Ok(()),
    }
}

fn other_version(peer: u32) -> Refusal {
    Refusal::ProtocolVersion {
        broker: PROTOCOL_VERSION,
        peer,
    }
}

/// The first message. A peer of another version may say a hello with other fields, which still names its version.
async fn hello<Incoming: DeserializeOwned + Versioned>(opened: &mut Opened) -> Option<Incoming> {
    let by = Instant::now() + HELLO_WITHIN;
    loop {
        let message = timeout_at(by, opened.socket.recv()).await.ok()??.ok()?;
        match message {
            Message::Binary(frame) => {
                opened.meter.finished();
                return decode(&frame)
                    .ok()
                    .or_else(|| Some(Incoming::of_version(version_of(&frame)?)));
            }
            Message::Ping(payload) | Message::Pong(payload) => {
                opened.meter.control(payload.len());
            }
            Message::Text(_) | Message::Close(_) => return None,
        }
    }
}

fn version_of(frame: &[u8]) -> Option<u32> {
    #[derive(serde::Deserialize)]
    struct AnyHello {
        protocol_version: u32,
    }
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum AnyMessage {
        Hello(AnyHello),
    }
    let AnyMessage::Hello(hello) = decode(frame).ok()?;
    (hello.protocol_version != PROTOCOL_VERSION).then_some(hello.protocol_version)
}

/// A hello of which nothing but the version could be read.
trait Versioned {
    fn of_version(protocol_version: u32) -> Self;
}

impl Versioned for FromProxy {
    fn of_version(protocol_version: u32) -> Self {
        Self::Hello {
            protocol_version,
            notebook: baton_protocol::NotebookId(uuid::Uuid::nil()),
            owner: String::new(),
            course: None,
        }
    }
}

impl Versioned for FromWorker {
    fn of_version(protocol_version: u32) -> Self {
        Self::Hello {
            protocol_version,
            worker: baton_protocol::WorkerId(uuid::Uuid::nil()),
            name: String::new(),
            devices: Vec::new(),
            machine: Machine::default(),
            slots: 0,
            sessions: Vec::new(),
            keeping: Vec::new(),
            assignments: Vec::new(),
            acknowledged: Vec::new(),
            failing: None,
        }
    }
}

/// The peer reads the reason, then the end. It is given some time to answer the end.
async fn refuse(mut socket: WebSocket, reason: &impl serde::Serialize) {
    let goodbye = async {
        socket
            .send(Message::Binary(Bytes::from(encode(reason))))
            .await?;
        socket
            .send(Message::Close(Some(CloseFrame {
                code: close_code::POLICY,
                reason: "refused".into(),
            })))
            .await?;
        while let Some(Ok(_)) = socket.recv().await {}
        Ok::<(), axum::Error>(())
    };
    // A peer that is gone has nothing to read.
    drop(timeout(HELLO_WITHIN, goodbye).await);
}

async fn serve<Incoming: DeserializeOwned, Coming: Future<Output = Option<Event>>>(
    opened: Opened,
    came: impl FnOnce(ConnectionId, Outgoing) -> Event,
    mut event: impl FnMut(ConnectionId, Incoming) -> Coming,
) {
    let connection = ConnectionId(NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed));
    let Opened {
        socket,
        meter,
        inbox,
        stop,
    } = opened;
    let (frames, queue) = mpsc::channel(OUTGOING);
    let close = stop.child_token();
    let outgoing = Outgoing {
        frames,
        close: close.clone(),
    };
    if inbox.send(came(connection, outgoing)).await.is_err() {
        return;
    }
    let (writer, reader) = socket.split();
    let ending = tokio::select! {
        ending = read(reader, &meter, &inbox, |message| event(connection, message)) => ending,
        ending = write(writer, queue, &close) => ending,
    };
    // An engine that ended needs no goodbye.
    drop(inbox.send(Event::Closed(connection, ending)).await);
}

async fn read<Incoming: DeserializeOwned, Coming: Future<Output = Option<Event>>>(
    mut reader: SplitStream<WebSocket>,
    meter: &Meter,
    inbox: &mpsc::Sender<Event>,
    mut event: impl FnMut(Incoming) -> Coming,
) -> Ending {
    let mut watch = Watch::default();
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    loop {
        let message = tokio::select! {
            message = reader.next() => match message {
                Some(Ok(message)) => message,
                Some(Err(_)) | None => return Ending::Closed,
            },
            () = sleep_until(heard + SILENCE) => return Ending::Silent,
            // A ping in the middle of a message comes here anew; without one, the silence ends it.
            _ = looks.tick(), if meter.is_in_message() => {
                if watch.is_too_slow(meter, Instant::now()) {
                    tracing::warn!("Disconnected a client: its message took too long");
                    return Ending::Silent;
                }
                continue;
            }
        };
        match message {
            Message::Binary(frame) => match decode(&frame) {
                Ok(message) => {
                    let Some(event) = event(message).await else {
                        return Ending::Silent;
                    };
                    if inbox.send(event).await.is_err() {
                        return Ending::Silent;
                    }
                    meter.finished();
                    watch.finished();
                }
                Err(error) => {
                    tracing::warn!("Disconnected a client: {error}");
                    return Ending::Silent;
                }
            },
            Message::Ping(payload) | Message::Pong(payload) => meter.control(payload.len()),
            Message::Text(_) | Message::Close(_) => return Ending::Closed,
        }
        heard = Instant::now();
    }
}

async fn write(
    mut writer: SplitSink<WebSocket, Message>,
    mut queue: mpsc::Receiver<Bytes>,
    close: &CancellationToken,
) -> Ending {
    let mut pings = interval(PING_EVERY);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let send_next = async {
            tokio::select! {
                frame = queue.recv() => match frame {
                    Some(frame) => send_with_followers(&mut writer, frame, &mut queue).await,
                    // The engine ended, and `close` with it.
                    None => std::future::pending().await,
                },
                _ = pings.tick() => writer.send(Message::Ping(Bytes::new())).await,
            }
        };
        tokio::select! {
            // Also when the peer does not read what is sent to it.
            () = close.cancelled() => break,
            sent = send_next => if sent.is_err() { return Ending::Closed },
        }
    }
    let goodbye = async {
        // A refusal may be the last that waits.
        while let Ok(frame) = queue.try_recv() {
            writer.feed(Message::Binary(frame)).await?;
        }
        let come_back = CloseFrame {
            code: close_code::AWAY,
            reason: "come back".into(),
        };
        writer.send(Message::Close(Some(come_back))).await
    };
    drop(timeout(Duration::from_secs(1), goodbye).await);
    Ending::Silent
}

/// What waits goes out in one write.
async fn send_with_followers(
    writer: &mut SplitSink<WebSocket, Message>,
    frame: Bytes,
    queue: &mut mpsc::Receiver<Bytes>,
) -> Result<(), axum::Error> {
    writer.feed(Message::Binary(frame)).await?;
    while let Ok(frame) = queue.try_recv() {
        writer.feed(Message::Binary(frame)).await?;
    }
    writer.flush().await
}
