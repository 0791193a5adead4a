//! Which streams are being captured now: work submitted to them is recorded and not computed.

use super::sys::driver::{self, Stream};
use std::{
    collections::BTreeSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

pub(super) struct Captures {
    have_been: AtomicBool,
    count: AtomicUsize,
    streams: Mutex<BTreeSet<Stream>>,
}

impl Captures {
    pub(super) const fn new() -> Self {
        Self {
            have_been: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            streams: Mutex::new(BTreeSet::new()),
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
        self.any() && (self.streams().contains(&stream) || driver::is_capturing(stream))
    }

    pub(super) fn begin(&self, stream: Stream) {
        let mut streams = self.streams();
        streams.insert(stream);
        self.have_been.store(true, SeqCst);
        self.count.store(streams.len(), SeqCst);
    }

    pub(super) fn end(&self, stream: Stream) {
        let mut streams = self.streams();
        streams.remove(&stream);
        self.count.store(streams.len(), SeqCst);
    }

    fn streams(&self) -> MutexGuard<'_, BTreeSet<Stream>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
