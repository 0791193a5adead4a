//! Which streams are being captured now: work submitted to them is recorded and not computed.

use super::{
    freed::StreamOrder,
    sys::driver::{self, Code, Context, SUCCESS, Stream},
};
use std::{
    collections::BTreeMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

pub(super) struct Captures {
    have_been: AtomicBool,
    count: AtomicUsize,
    streams: Mutex<Streams>,
}

/// Each with the context in which its capture began.
type Streams = BTreeMap<StreamOrder, Context>;

/// While this exists, no capture begins.
pub(super) struct NoCapture<'a>(#[allow(dead_code)] MutexGuard<'a, Streams>);

impl Captures {
    pub(super) const fn new() -> Self {
        Self {
            have_been: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            streams: Mutex::new(BTreeMap::new()),
        }
    }

    #[inline]
    pub(super) fn any(&self) -> bool {
        self.count.load(SeqCst) > 0
    }

    /// Whether there is or has been a capture.
    pub(super) fn have_been(&self) -> bool {
        self.have_been.load(SeqCst)
    }

    /// A graph may have memory although nothing was captured.
    pub(super) fn note_graph(&self) {
        self.have_been.store(true, SeqCst);
    }

    /// Whether work submitted to a stream is recorded. A capture spreads to streams that wait for its events, so
    /// the driver is asked.
    pub(super) fn has(&self, stream: Stream) -> bool {
        let is_known =
            || StreamOrder::of(stream).is_some_and(|one| self.streams().contains_key(&one));
        self.any() && (is_known() || driver::is_capturing(stream))
    }

    /// For calls that would invalidate a capture. `None` if there is one.
    pub(super) fn none(&self) -> Option<NoCapture<'_>> {
        let streams = self.streams();
        streams.is_empty().then_some(NoCapture(streams))
    }

    /// Calls `begin`, which begins a capture of the stream if it succeeds.
    pub(super) fn begin(&self, stream: Stream, begin: impl FnOnce() -> Code) -> Code {
        let mut streams = self.streams();
        let code = begin();
        if code == SUCCESS
            && let Some(order) = StreamOrder::of(stream)
        {
            let context = driver::current_context().unwrap_or(Context::NONE);
            streams.insert(order, context);
            self.have_been.store(true, SeqCst);
            self.count.store(streams.len(), SeqCst);
        }
        code
    }

    /// The capture was ended, or its stream was destroyed.
    pub(super) fn end(&self, stream: Stream) {
        let ended = StreamOrder::of(stream);
        self.retain(|captured, _| Some(captured) != ended);
    }

    /// The context has ended, and its streams with it.
    pub(super) fn forget(&self, context: Context) {
        self.retain(|_, of| of != context);
    }

    fn retain(&self, goes_on: impl Fn(StreamOrder, Context) -> bool) {
        let mut streams = self.streams();
        streams.retain(|stream, context| goes_on(*stream, *context));
        self.count.store(streams.len(), SeqCst);
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::{sync::Barrier, thread};

    #[test]
    fn no_capture_begins_while_there_must_be_none() {
        let (captures, begun, here) = (Captures::new(), AtomicBool::new(false), Barrier::new(2));
        let stream = Stream(16);
        thread::scope(|scope| {
            let none = captures.none().unwrap();
            scope.spawn(|| {
                here.wait();
                captures.begin(stream, || {
                    begun.store(true, SeqCst);
                    SUCCESS
                })
            });
            here.wait();
            for _ in 0..1000 {
                assert!(!begun.load(SeqCst));
                thread::yield_now();
            }
            drop(none);
        });
        assert!(captures.any() && captures.none().is_none());
        captures.end(stream);
        assert!(!captures.any() && captures.none().is_some());
    }
}
