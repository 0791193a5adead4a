//! Counts the bytes of incomplete messages on one connection, and limits their number and age.
//!
//! The broker holds a WebSocket message in memory until its last byte arrives. So a message must be
//! complete within [`MESSAGE_WITHIN`] and arrive at [`SLOWEST_BYTES`] per second, regardless of
//! pings in between. The bytes in flight of one person, and of all people together, are limited.
//! Workers are not counted, so no notebook can take the room that they need.
//!
//! In: the bytes that the socket reads, and the messages that are complete. Out: an error that ends
//! the connection.

use std::{
    collections::HashMap,
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

/// From the first byte of a message to its last.
pub(crate) const MESSAGE_WITHIN: Duration = Duration::from_secs(300);
/// The minimum speed does not apply for this long.
const GRACE: Duration = Duration::from_secs(10);
const SLOWEST_BYTES: f64 = 16384.0;
/// Messages up to this size are not counted.
const FREE_BYTES: u64 = 64 << 10;
/// Two messages of the largest size.
const MOST_OF_PERSON: u64 = 128 << 20;
const MOST_OF_ALL: u64 = 1 << 30;
/// The header of a client's ping with a short payload.
const CONTROL_HEAD_BYTES: u64 = 6;

/// The bytes of incomplete messages to the broker.
#[derive(Default)]
pub(crate) struct InFlight(Mutex<Booked>);

#[derive(Default)]
struct Booked {
    all: u64,
    of: HashMap<String, u64>,
}

impl InFlight {
    fn change(&self, person: &str, before: u64, after: u64) -> bool {
        let mut booked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_person = booked.of.get(person).copied().unwrap_or(0) - before + after;
        let of_all = booked.all - before + after;
        if after > before && (of_person > MOST_OF_PERSON || of_all > MOST_OF_ALL) {
            return false;
        }
        booked.all = of_all;
        match of_person {
            0 => drop(booked.of.remove(person)),
            bytes => drop(booked.of.insert(person.to_owned(), bytes)),
        }
        true
    }
}

/// Counts the bytes that one connection receives.
#[derive(Clone, Default)]
pub(crate) struct Meter(Arc<Inner>);

#[derive(Default)]
struct Inner {
    received: AtomicU64,
    /// How many of them belong to complete messages.
    whole: AtomicU64,
    booked: AtomicU64,
    account: OnceLock<(String, Arc<InFlight>)>,
}

impl Meter {
    /// The connection now carries messages. Its bytes count for this person, if there is one.
    pub(crate) fn begin(&self, person: Option<(&str, &Arc<InFlight>)>) {
        self.finished();
        if let Some((person, in_flight)) = person {
            let account = (person.to_owned(), Arc::clone(in_flight));
            // Set only once per connection.
            drop(self.0.account.set(account));
        }
    }

    /// A message is complete, and has been handed on.
    pub(crate) fn finished(&self) {
        let received = self.0.received.load(Ordering::Relaxed);
        self.0.whole.store(received, Ordering::Relaxed);
        self.0.book(0);
    }

    /// A ping or pong arrived, possibly in the middle of a message.
    pub(crate) fn control(&self, payload: usize) {
        let bytes = CONTROL_HEAD_BYTES + payload as u64;
        self.0.whole.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn is_in_message(&self) -> bool {
        self.unfinished_bytes() > 0
    }

    fn unfinished_bytes(&self) -> u64 {
        self.0.unfinished_bytes()
    }
}

impl Inner {
    fn unfinished_bytes(&self) -> u64 {
        let whole = self.whole.load(Ordering::Relaxed);
        let received = self.received.load(Ordering::Relaxed);
        received.saturating_sub(whole)
    }

    /// Returns `false` if too many bytes are in flight.
    fn book(&self, bytes: u64) -> bool {
        let Some((person, in_flight)) = self.account.get() else {
            return true;
        };
        let before = self.booked.load(Ordering::Relaxed);
        let booked = before == bytes || in_flight.change(person, before, bytes);
        if booked {
            self.booked.store(bytes, Ordering::Relaxed);
        }
        booked
    }

    fn came(&self, bytes: u64) -> io::Result<()> {
        self.received.fetch_add(bytes, Ordering::Relaxed);
        let counted = self.unfinished_bytes().saturating_sub(FREE_BYTES);
        match self.book(counted) {
            true => Ok(()),
            false => Err(io::Error::other(
                "Too many bytes are pending in incomplete messages",
            )),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.book(0);
    }
}

/// Measures how fast the current message arrives. It must be called regularly.
#[derive(Default)]
pub(crate) struct Watch {
    since: Option<Instant>,
}

impl Watch {
    /// Whether the sender is too slow.
    pub(crate) fn is_too_slow(&mut self, meter: &Meter, now: Instant) -> bool {
        let bytes = meter.unfinished_bytes();
        if bytes == 0 {
            self.since = None;
            return false;
        }
        let elapsed = now.saturating_duration_since(*self.since.get_or_insert(now));
        let due = elapsed.saturating_sub(GRACE).as_secs_f64() * SLOWEST_BYTES;
        elapsed > MESSAGE_WITHIN || (bytes as f64) < due
    }

    /// A message is complete.
    pub(crate) fn finished(&mut self) {
        self.since = None;
    }
}

/// A stream that counts the bytes read from it.
pub(super) struct Metered<Stream> {
    stream: Stream,
    meter: Meter,
}

impl<Stream> Metered<Stream> {
    pub(super) fn new(stream: Stream, meter: Meter) -> Self {
        Self { stream, meter }
    }
}

impl<Stream: AsyncRead + Unpin> AsyncRead for Metered<Stream> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let bytes = buffer.filled().len() - before;
        Poll::Ready(self.meter.0.came(bytes as u64))
    }
}

impl<Stream: AsyncWrite + Unpin> AsyncWrite for Metered<Stream> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn came(meter: &Meter, bytes: u64) -> bool {
        meter.0.came(bytes).is_ok()
    }

    #[test]
    fn a_person_has_room_for_so_much_and_gets_it_back() {
        let in_flight = Arc::new(InFlight::default());
        let open = |person: &str| {
            let meter = Meter::default();
            assert!(came(&meter, 1000), "before it is a connection of messages");
            meter.begin(Some((person, &in_flight)));
            meter
        };
        let large = MOST_OF_PERSON / 2 + FREE_BYTES;
        let [one, two, three] = [open("mallory"), open("mallory"), open("mallory")];
        assert!(came(&one, large) && came(&two, large));
        assert!(came(&three, FREE_BYTES), "small messages always pass");
        assert!(!came(&three, 1));
        assert!(came(&open("ada"), large), "others have room of their own");
        one.finished();
        assert!(came(&three, 1));
        drop((two, three));
        assert!(came(&open("mallory"), MOST_OF_PERSON));
        assert!(in_flight.0.lock().unwrap().of.is_empty());
    }

    #[test]
    fn pings_do_not_keep_a_message_alive() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let meter = Meter::default();
        let mut watch = Watch::default();
        let ping = |meter: &Meter| {
            assert!(came(meter, CONTROL_HEAD_BYTES));
            meter.control(0);
        };
        for seconds in 0..100 {
            ping(&meter);
            assert!(!watch.is_too_slow(&meter, after(seconds)), "only pings");
        }
        assert!(came(&meter, 20_000));
        assert!(!watch.is_too_slow(&meter, after(100)));
        ping(&meter);
        assert!(!watch.is_too_slow(&meter, after(111)));
        ping(&meter);
        assert!(
            watch.is_too_slow(&meter, after(112)),
            "20,000 bytes in 12 s"
        );

        meter.finished();
        watch.finished();
        for seconds in 200..=500 {
            assert!(came(&meter, 100_000));
            assert!(!watch.is_too_slow(&meter, after(seconds)), "{seconds}");
        }
        assert!(came(&meter, 100_000));
        assert!(watch.is_too_slow(&meter, after(501)), "five minutes");
    }
}
