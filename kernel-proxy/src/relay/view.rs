//! Carries iopub from the kernel to one client.
//!
//! In: the kernel's bytes, and inserted messages. Out: the same bytes in the same order, with the
//! inserted messages between them once their cell has begun. What the client does not take at once
//! waits in its queue. When the queue is full, the kernel is not read for a moment, which is enough
//! for a client that reads at all; then compaction makes room.
//!
//! **Invariant:** a message that was injected before some bytes were read from the kernel is
//! written before those bytes.

use super::{
    Injection, MessageNumber, Relay,
    cells::{CellEvent, CellLog},
    compaction::compact,
    queue::OutputQueue,
    subscriptions::Subscriptions,
};
use baton_jupyter_wire::{
    message::message_id,
    wire::{Ended, MessageView, Tracker, WireError},
};
use bytes::{Buf as _, Bytes, BytesMut};
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::mpsc::UnboundedReceiver,
    time::Instant,
};

const BUFFER_BYTES: usize = 256 << 10;
/// With less space left, a new buffer is cheaper than many small reads.
const LEAST_READ_BYTES: usize = 16 << 10;

/// The limit for messages that wait for their cell to begin. More only accumulates for a cell that
/// this client never sees.
const MOST_HELD_BYTES: usize = 16 << 20;

/// The most messages that may be queued while the kernel is not read. An unread kernel keeps 1000 messages for
/// a client and drops any that follow, so reading may pause only while messages are large and therefore few.
const FEW_MESSAGES: usize = 256;

/// How much may wait for one client, and for how long.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Above this, the kernel is not read, and the queue is about to be compacted.
    pub(super) compact_above_bytes: usize,
    /// How long a client may take to make room by reading.
    pub(super) patience: Duration,
    /// The most bytes in a queue that cannot be compacted.
    pub(super) queued_bytes: usize,
    /// When a client with such a queue is disconnected if it reads nothing.
    pub(super) stall_limit: Duration,
    /// A client is disconnected if more waits for it, inserted messages included: those arrive also while the kernel is
    /// not read.
    pub(super) most_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            compact_above_bytes: 12 << 20,
            patience: Duration::from_secs(1),
            queued_bytes: 24 << 20,
            stall_limit: Duration::from_secs(10),
            most_bytes: 96 << 20,
        }
    }
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum ViewError {
    #[error("The connection broke")]
    Io(#[from] std::io::Error),
    #[error("Received bytes that are not ZMTP")]
    Wire(#[from] WireError),
    #[error("The client has read nothing for {seconds} s; {queued_bytes} bytes are queued for it")]
    Stalled { seconds: u64, queued_bytes: usize },
    #[error("The client reads too slowly; {waiting_bytes} bytes wait for it")]
    TooSlow { waiting_bytes: usize },
}

/// What the client-to-kernel direction shares with the other direction.
#[derive(Clone, Default)]
pub(super) struct Audience {
    shared: Arc<Mutex<Subscribed>>,
}

#[derive(Default)]
struct Subscribed {
    subscriptions: Subscriptions,
    /// How many cells the relay knew when this client subscribed.
    cells_before: Option<u64>,
    /// The client's frames cannot be parsed, so the kernel's answers cannot be parsed either.
    is_blind: bool,
}

impl Audience {
    pub(super) fn note(&self, said: &Ended<'_>, relay: &Relay) {
        let mut subscribed = self.subscribed();
        if subscribed.subscriptions.note(said) && subscribed.cells_before.is_none() {
            subscribed.cells_before = Some(relay.stage().cells.noted());
        }
    }

    pub(super) fn note_blind(&self) {
        self.subscribed().is_blind = true;
    }

    /// A panic cannot poison the lock, because no operation that can fail runs while it is held.
    fn subscribed(&self) -> MutexGuard<'_, Subscribed> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs until the kernel closes its end and the client has received everything.
pub(super) async fn show(
    mut kernel: impl AsyncRead + Unpin,
    mut client: impl AsyncWrite + Unpin,
    relay: &Relay,
    audience: &Audience,
) -> Result<(), ViewError> {
    let limits = relay.shared.limits;
    let mut injections = relay.join();
    let mut view = View::new(relay, audience);
    let mut chunk = BytesMut::with_capacity(BUFFER_BYTES);
    let mut kernel_is_open = true;
    let mut last_progress = Instant::now();
    let mut had_room = last_progress;
    while kernel_is_open || view.queue.has_remaining() {
        let is_full = view.is_full();
        if !is_full {
            had_room = Instant::now();
        }
        // Write first, so that the queue only grows while the client takes nothing.
        tokio::select! {
            biased;
            written = client.write_buf(&mut view.queue), if view.queue.has_remaining() => {
                if written? == 0 {
                    return Err(std::io::Error::from(std::io::ErrorKind::WriteZero).into());
                }
                last_progress = Instant::now();
                view.regain_room();
            }
            Some(injection) = injections.recv() => {
                view.hold(injection);
                view.release();
                view.make_room()?;
            }
            count = kernel.read_buf(&mut chunk), if kernel_is_open && !is_full => {
                // A killed kernel may leave an error instead of an end of stream; the bytes before
                // it are here already.
                kernel_is_open = matches!(count, Ok(1..));
                if !view.queue.has_remaining() {
                    last_progress = Instant::now();
                }
                view.take_all(&mut injections);
                view.pass_on(chunk.split().freeze())?;
                view.make_room()?;
                if chunk.capacity() < LEAST_READ_BYTES {
                    chunk.reserve(BUFFER_BYTES);
                }
            }
            () = tokio::time::sleep_until(had_room + limits.patience), if is_full && view.can_be_compacted() => {
                view.compact();
            }
            () = tokio::time::sleep_until(last_progress + limits.stall_limit), if is_full && !view.can_be_compacted() => {
                return Err(ViewError::Stalled {
                    seconds: limits.stall_limit.as_secs(),
                    queued_bytes: view.queue.remaining(),
                });
            }
        }
    }
    Ok(())
}

struct View<'a> {
    relay: &'a Relay,
    audience: &'a Audience,
    tracker: Tracker,
    cells: CellLog,
    /// The header of the kernel's last complete message.
    last_header: Vec<u8>,
    queue: OutputQueue,
    /// Inserted messages whose cell has not begun here, or that arrived in the middle of a message.
    held: VecDeque<Arc<Injection>>,
    held_bytes: usize,
    limits: Limits,
    /// How large the queue may become before it is compacted.
    room_bytes: usize,
}

impl<'a> View<'a> {
    fn new(relay: &'a Relay, audience: &'a Audience) -> Self {
        let limits = relay.shared.limits;
        Self {
            relay,
            audience,
            tracker: Tracker::default(),
            cells: CellLog::default(),
            last_header: Vec::new(),
            queue: OutputQueue::default(),
            held: VecDeque::new(),
            held_bytes: 0,
            limits,
            room_bytes: usual_room(relay, limits),
        }
    }

    fn take_all(&mut self, injections: &mut UnboundedReceiver<Arc<Injection>>) {
        while let Ok(injection) = injections.try_recv() {
            self.hold(injection);
        }
        self.release();
    }

    fn hold(&mut self, injection: Arc<Injection>) {
        if !injection.background && self.cells.is_over(&injection.message_id) {
            return; // the kernel has left the cell, and its job goes on for a moment
        }
        let subscribed = self.audience.subscribed();
        if subscribed.is_blind
            || self.tracker.is_blind()
            || !subscribed.subscriptions.want(&injection.topic)
        {
            return;
        }
        drop(subscribed);
        self.held_bytes += injection.wire.len();
        self.held.push_back(injection);
        if self.held_bytes > MOST_HELD_BYTES {
            self.forget_oldest();
        }
    }

    /// Drops the oldest messages whose cell has not begun. The others only wait for the end of a message.
    fn forget_oldest(&mut self) {
        for injection in std::mem::take(&mut self.held) {
            if self.held_bytes > MOST_HELD_BYTES && !self.has_begun(&injection) {
                self.held_bytes -= injection.wire.len();
            } else {
                self.held.push_back(injection);
            }
        }
    }

    /// Queues bytes that were just read from the kernel and may be cut anywhere.
    fn pass_on(&mut self, bytes: Bytes) -> Result<(), WireError> {
        let mut ends = VecDeque::new();
        let mut passed = 0;
        let mut used = 0;
        while used < bytes.len() {
            let step = self.tracker.advance(&bytes[used..])?;
            used += step.used;
            let Some(ended) = step.ended else { break };
            ends.push_back(used - passed);
            if let Ended::Message(message) = ended {
                self.last_header.clear();
                self.last_header
                    .extend_from_slice(message.header().unwrap_or_default());
                note(&mut self.cells, &self.held, self.relay, message);
            }
            if self.can_release() {
                self.queue
                    .push(bytes.slice(passed..used), std::mem::take(&mut ends));
                passed = used;
                self.release();
            }
        }
        self.queue.push(bytes.slice(passed..), ends);
        Ok(())
    }

    fn can_release(&self) -> bool {
        self.held.iter().any(|injection| self.has_begun(injection))
    }

    /// Queues the held messages whose cell has begun, in order.
    fn release(&mut self) {
        if !self.tracker.at_boundary() || !self.can_release() {
            return;
        }
        for injection in std::mem::take(&mut self.held) {
            if self.has_begun(&injection) {
                self.held_bytes -= injection.wire.len();
                self.queue.push_message(injection.wire.clone());
            } else {
                self.held.push_back(injection);
            }
        }
    }

    /// Whether an inserted message may be written. A client that does not see everything may never
    /// see a cell begin, so messages for it never wait. A client that subscribed in the middle of a
    /// cell has missed its beginning.
    fn has_begun(&self, injection: &Injection) -> bool {
        let (message_id, silent) = (&injection.message_id, injection.silent);
        if self.cells.has_begun(message_id, silent) && self.has_passed(injection.after.as_ref()) {
            return true;
        }
        // This client's log may have forgotten the cell.
        if injection.background && self.relay.stage().cells.is_over(message_id) {
            return true;
        }
        let subscribed = self.audience.subscribed();
        !subscribed.subscriptions.want_everything()
            || subscribed.cells_before.is_some_and(|cells_before| {
                let stage = self.relay.stage();
                stage.cells.had_begun(message_id, silent, cells_before)
            })
    }

    /// Whether the kernel's message has passed that the cell's output must follow.
    fn has_passed(&self, message: Option<&MessageNumber>) -> bool {
        let Some(message) = message else {
            return true;
        };
        let last = message_id(&self.last_header).and_then(|id| MessageNumber::read(&id));
        last.is_none_or(|last| last.may_follow(message))
    }

    fn is_full(&self) -> bool {
        self.queue.remaining() > self.room_bytes
    }

    fn can_be_compacted(&self) -> bool {
        self.room_bytes < self.limits.queued_bytes
    }

    /// Compacts the queue where waiting for the client would do harm. Fails if that is not enough.
    fn make_room(&mut self) -> Result<(), ViewError> {
        let is_too_much = self.waiting_bytes() > self.limits.most_bytes;
        let cannot_wait = self.queue.messages() > FEW_MESSAGES
            || self.queue.remaining() > self.limits.queued_bytes;
        if is_too_much || (self.is_full() && self.can_be_compacted() && cannot_wait) {
            self.compact();
        }
        let waiting_bytes = self.waiting_bytes();
        // Half of it, because compaction takes time and must be rare.
        match is_too_much && waiting_bytes > self.limits.most_bytes / 2 {
            true => Err(ViewError::TooSlow { waiting_bytes }),
            false => Ok(()),
        }
    }

    /// What waits for the client, or for the kernel's bytes that it must follow.
    fn waiting_bytes(&self) -> usize {
        self.queue.remaining() + self.held_bytes
    }

    fn compact(&mut self) {
        let Some(writer) = self.relay.writer() else {
            return;
        };
        // Compact to half, so that it is not needed again at once. If that is not possible, wait
        // for much more data before the next try.
        let Limits {
            compact_above_bytes,
            queued_bytes,
            ..
        } = self.limits;
        let before = self.queue.remaining();
        self.queue
            .exchange(|messages| compact(messages, writer, compact_above_bytes / 2));
        let after = self.queue.remaining();
        self.room_bytes =
            (after + compact_above_bytes / 4).clamp(compact_above_bytes, queued_bytes);
        tracing::warn!(
            queued_bytes.before = before,
            queued_bytes.after = after,
            "A client reads its output too slowly; some of it is left out"
        );
    }

    fn regain_room(&mut self) {
        if self.queue.remaining() < self.limits.compact_above_bytes / 2 {
            self.room_bytes = usual_room(self.relay, self.limits);
        }
    }
}

/// The queue's usual limit. Without a key to sign messages, none can be replaced.
fn usual_room(relay: &Relay, limits: Limits) -> usize {
    match relay.writer() {
        Some(_) => limits.compact_above_bytes,
        None => limits.queued_bytes,
    }
}

/// Records what a kernel's message says about cells, for this client and for later ones.
fn note(
    cells: &mut CellLog,
    held: &VecDeque<Arc<Injection>>,
    relay: &Relay,
    message: MessageView<'_>,
) {
    let event = CellEvent::read(message);
    if let Some(event) = &event {
        relay.stage().cells.note(event);
    }
    if let Some(event) = event.filter(|event| !matches!(event, CellEvent::Output(_))) {
        if let CellEvent::Idle(message_id) = &event {
            cells.note_running(message_id);
        }
        cells.note(&event);
    } else if !held.is_empty()
        && let Some(message_id) = message.parent_header().and_then(message_id)
    {
        cells.note_running(&message_id);
    }
}

#[cfg(test)]
mod tests;
