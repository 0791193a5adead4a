//! One WebSocket of a proxy or a worker: a hello, then messages in both directions until one side ends it.
//!
//! In: binary frames. Out: [`Event`]s in order; the last one is `Closed`. Reading and writing run
//! concurrently, so two peers that both write cannot block each other.

use crate::{
    engine::{Event, Frame, Outgoing},
    in_flight::Booking,
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
    Bound, Machine, PROTOCOL_VERSION, Refusal, decode, decode_bounded, encode, encoded_bytes,
    proxy::{FromProxy, ToProxy},
    worker::{FromWorker, ToWorker},
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

/// Reverse proxies close idle connections, often after a minute.
const PING_EVERY: Duration = Duration::from_secs(15);
/// Peers answer pings, so a peer that is silent for this long is gone.
const SILENCE: Duration = Duration::from_secs(45);
const HELLO_WITHIN: Duration = Duration::from_secs(5);
/// How often the broker checks the progress of an incomplete message.
const LOOK_EVERY: Duration = Duration::from_secs(1);

static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// A connection before its first message.
pub(crate) struct Opened {
    pub(crate) socket: WebSocket,
    pub(crate) meter: Meter,
    pub(crate) inbox: mpsc::Sender<Event>,
    pub(crate) stop: CancellationToken,
    /// Cancelled before `stop` if the connection's person was removed.
    pub(crate) removed: CancellationToken,
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
                let event = move |connection, message, booking| {
                    screen.clone().event(connection, message, booking)
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
                name: match own {
                    Some(own) if name.is_empty() => own.to_owned(),
                    _ => name,
                },
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
            // A notebook would not accept it from the broker.
            let fits = |message: &FromWorker| encoded_bytes(message) <= Bound::MESSAGE.bytes;
            let event = |connection, message, _| {
                let fits = fits(&message);
                if !fits {
                    tracing::warn!("Disconnected a worker: its message is too large");
                }
                ready(fits.then_some(Event::FromWorker(connection, message)))
            };
            serve(opened, came, event).await;
        }
        Some(FromWorker::Hello {
            protocol_version: peer,
            ..
        }) => refuse(opened.socket, &ToWorker::Refused(other_version(peer))).await,
        _ => refuse(opened.socket, &ToWorker::Refused(Refusal::NoHello {})).await,
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

/// Reads the first message. A peer of another version may send a hello with other fields; its
/// version can still be read.
async fn hello<Incoming: DeserializeOwned + Versioned>(opened: &mut Opened) -> Option<Incoming> {
    let by = Instant::now() + HELLO_WITHIN;
    loop {
        let message = timeout_at(by, opened.socket.recv()).await.ok()??.ok()?;
        match message {
            Message::Binary(frame) => {
                drop(opened.meter.finished());
                return decode_bounded(&frame, Bound::MESSAGE.elements)
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

/// A hello with nothing but the version, because the rest could not be read.
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

/// Sends the reason, then closes. The peer has some time to answer the close.
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
    // If the peer is gone, it does not matter whether this succeeds.
    drop(timeout(HELLO_WITHIN, goodbye).await);
}

async fn serve<Incoming: DeserializeOwned, Coming: Future<Output = Option<Event>>>(
    opened: Opened,
    came: impl FnOnce(ConnectionId, Outgoing) -> Event,
    mut event: impl FnMut(ConnectionId, Incoming, Booking) -> Coming,
) {
    let connection = ConnectionId(NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed));
    let Opened {
        socket,
        meter,
        inbox,
        stop,
        removed,
    } = opened;
    let close = stop.child_token();
    let (outgoing, queue) = Outgoing::create(close.clone());
    if inbox.send(came(connection, outgoing)).await.is_err() {
        return;
    }
    let (writer, reader) = socket.split();
    let ending = tokio::select! {
        ending = read(reader, &meter, &inbox, |message, booking| event(connection, message, booking)) => ending,
        ending = write(writer, queue, &close) => ending,
    };
    let ending = match removed.is_cancelled() {
        true => Ending::PersonRemoved,
        false => ending,
    };
    // If the engine has ended, it does not need this event.
    drop(inbox.send(Event::Closed(connection, ending)).await);
}

async fn read<Incoming: DeserializeOwned, Coming: Future<Output = Option<Event>>>(
    mut reader: SplitStream<WebSocket>,
    meter: &Meter,
    inbox: &mpsc::Sender<Event>,
    mut event: impl FnMut(Incoming, Booking) -> Coming,
) -> Ending {
    let mut watch = Watch::default();
    let mut looks = interval(LOOK_EVERY);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut heard = Instant::now();
    loop {
        let message = tokio::select! {
            message = reader.next() => match message {
                Some(Ok(message)) => message,
                Some(Err(_)) | None => return Ending::PeerClosed,
            },
            () = sleep_until(heard + SILENCE) => return Ending::BrokerClosed,
            // A ping in the middle of a message restarts this wait; without one, the silence ends it.
            _ = looks.tick(), if meter.is_in_message() => {
                if watch.is_too_slow(meter, Instant::now()) {
                    tracing::warn!("Disconnected a client: its message took too long");
                    return Ending::BrokerClosed;
                }
                continue;
            }
        };
        match message {
            Message::Binary(frame) => match decode_bounded(&frame, Bound::MESSAGE.elements) {
                Ok(message) => {
                    let booking = meter.finished();
                    watch.finished();
                    let Some(event) = event(message, booking).await else {
                        return Ending::BrokerClosed;
                    };
                    if inbox.send(event).await.is_err() {
                        return Ending::BrokerClosed;
                    }
                }
                Err(error) => {
                    tracing::warn!("Disconnected a client: {error}");
                    return Ending::BrokerClosed;
                }
            },
            Message::Ping(payload) | Message::Pong(payload) => meter.control(payload.len()),
            Message::Text(_) | Message::Close(_) => return Ending::PeerClosed,
        }
        heard = Instant::now();
    }
}

async fn write(
    mut writer: SplitSink<WebSocket, Message>,
    mut queue: mpsc::Receiver<Frame>,
    close: &CancellationToken,
) -> Ending {
    let mut pings = interval(PING_EVERY);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let send_next = async {
            tokio::select! {
                frame = queue.recv() => match frame {
                    Some(frame) => send_with_followers(&mut writer, frame, &mut queue).await,
                    // The engine has ended, and has cancelled `close`.
                    None => std::future::pending().await,
                },
                _ = pings.tick() => writer.send(Message::Ping(Bytes::new())).await,
            }
        };
        tokio::select! {
            // This ends the connection even if the peer does not read.
            () = close.cancelled() => break,
            sent = send_next => if sent.is_err() { return Ending::PeerClosed },
        }
    }
    let goodbye = async {
        // The last waiting frame may be a refusal.
        while let Ok(frame) = queue.try_recv() {
            writer.feed(Message::Binary(frame.bytes)).await?;
        }
        let come_back = CloseFrame {
            code: close_code::AWAY,
            reason: "come back".into(),
        };
        writer.send(Message::Close(Some(come_back))).await
    };
    drop(timeout(Duration::from_secs(1), goodbye).await);
    Ending::BrokerClosed
}

/// Sends all waiting frames in one write.
async fn send_with_followers(
    writer: &mut SplitSink<WebSocket, Message>,
    frame: Frame,
    queue: &mut mpsc::Receiver<Frame>,
) -> Result<(), axum::Error> {
    writer.feed(Message::Binary(frame.bytes)).await?;
    while let Ok(frame) = queue.try_recv() {
        writer.feed(Message::Binary(frame.bytes)).await?;
    }
    writer.flush().await
}
