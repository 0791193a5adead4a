//! Counts the bytes of messages that one connection sends, until they have been handled, and limits
//! the number and age of incomplete ones.
//!
//! The broker holds a WebSocket message in memory until its last byte arrives. So a message must be
//! complete within [`MESSAGE_WITHIN`] and arrive at [`SLOWEST_BYTES`] per second, regardless of
//! pings in between. The bytes of one person, and of all people together, are limited ([`InFlight`]).
//!
//! In: the bytes that the socket reads, and the messages that are complete. Out: an error that ends
//! the connection.

use crate::in_flight::{Booking, InFlight, TooMuch};
use axum::body::Body;
use futures_util::StreamExt as _;
use std::{
    io,
    pin::Pin,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

/// From the first byte of a message to its last.
pub(crate) const MESSAGE_WITHIN: Duration = Duration::from_secs(300);
/// The minimum speed does not apply for this long.
const GRACE: Duration = Duration::from_secs(10);
const SLOWEST_BYTES: f64 = 16384.0;
/// How long the broker waits for a peer to read anything of what it is sent.
const READ_WITHIN: Duration = Duration::from_secs(60);
/// Messages up to this size are not counted.
const FREE_BYTES: u64 = 64 << 10;
/// The header of a client's ping with a short payload.
const CONTROL_HEAD_BYTES: u64 = 6;

/// Counts the bytes that one connection receives.
#[derive(Clone, Default)]
pub(crate) struct Meter(Arc<Inner>);

/// The meter of a request's body.
#[derive(Clone)]
pub(crate) struct OfBody(pub(super) Meter);

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
        drop(self.finished());
        if let Some((person, in_flight)) = person {
            let account = (person.to_owned(), Arc::clone(in_flight));
            // Set only once per connection.
            drop(self.0.account.set(account));
        }
    }

    /// A message is complete. Its bytes count until the returned booking is dropped.
    pub(crate) fn finished(&self) -> Booking {
        let received = self.0.received.load(Ordering::Relaxed);
        self.0.whole.store(received, Ordering::Relaxed);
        let bytes = self.0.booked.swap(0, Ordering::Relaxed);
        Booking::new(self.0.account.get().cloned(), bytes)
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

    /// Counts the body of a person's request as one message. It is handled when all of the returned
    /// meter is dropped, unless the handler finishes parts of it earlier.
    pub(super) fn of_body(
        person: Option<&str>,
        in_flight: &Arc<InFlight>,
        body: Body,
    ) -> (Self, Body) {
        let meter = Self::default();
        meter.begin(person.map(|person| (person, in_flight)));
        let counting = meter.clone();
        let counted = body.into_data_stream().map(move |part| {
            let part = part?;
            let came = counting.0.came(part.len() as u64);
            came.map(|()| part).map_err(axum::Error::new)
        });
        (meter, Body::from_stream(counted))
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

    fn came(&self, bytes: u64) -> Result<(), TooMuch> {
        self.received.fetch_add(bytes, Ordering::Relaxed);
        let counted = self.unfinished_bytes().saturating_sub(FREE_BYTES);
        match self.book(counted) {
            true => Ok(()),
            false => Err(TooMuch),
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

/// A stream that counts the bytes read from it, and fails if the peer reads nothing for a long time.
pub(super) struct Metered<Stream> {
    stream: Stream,
    meter: Meter,
    /// Ends when the peer has read nothing for too long. Absent while it reads.
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<Stream> Metered<Stream> {
    pub(super) fn new(stream: Stream, meter: Meter) -> Self {
        Self {
            stream,
            meter,
            stalled: None,
        }
    }

    /// The result of a write, unless the peer has been waited for too long.
    fn unless_stalled<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(sleep(READ_WITHIN)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
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
        Poll::Ready(self.meter.0.came(bytes as u64).map_err(io::Error::other))
    }
}

impl<Stream: AsyncWrite + Unpin> AsyncWrite for Metered<Stream> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.unless_stalled(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.unless_stalled(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.unless_stalled(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::in_flight::MOST_OF_PERSON;

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
        let handling = one.finished();
        assert!(!came(&three, 1), "the message is complete, but not handled");
        drop(handling);
        assert!(came(&three, 1));
        drop((two, three));
        assert!(came(&open("mallory"), MOST_OF_PERSON));
        assert!(in_flight.is_empty());
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

        drop(meter.finished());
        watch.finished();
        for seconds in 200..=500 {
            assert!(came(&meter, 100_000));
            assert!(!watch.is_too_slow(&meter, after(seconds)), "{seconds}");
        }
        assert!(came(&meter, 100_000));
        assert!(watch.is_too_slow(&meter, after(501)), "five minutes");
    }
}
