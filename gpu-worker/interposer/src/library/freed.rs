//! Memory that was freed, but may be in use until earlier work has ended.
//!
//! An allocation in the order of the same stream reuses it at once without asking the worker, as the driver's own
//! pools do. The rest is released when a mark that was recorded in the stream later is reached, or at the end of
//! the lease.

use super::sys::driver::{self, Context, Event, PER_THREAD, Stream};
use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Work with the same order runs one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StreamOrder {
    stream: Stream,
    /// Set only for default streams, whose handles are the same in several contexts and threads.
    context: Context,
    thread: u64,
}

#[derive(Debug)]
pub(super) struct InOrder(Vec<One>);

#[derive(Debug)]
struct One {
    address: u64,
    room: u64,
    /// `None` if it can be reused only after all work that was submitted.
    order: Option<StreamOrder>,
    mark: Option<Arc<Event>>,
}

impl StreamOrder {
    /// `None` if the calling thread has no context.
    pub(super) fn of(stream: Stream) -> Option<Self> {
        match stream == PER_THREAD || stream.is_default() {
            true => Some(Self::in_context(stream, driver::current_context()?)),
            false => Some(Self::in_context(stream, Context::NONE)),
        }
    }

    /// `context`: the calling thread's.
    pub(super) fn in_context(stream: Stream, context: Context) -> Self {
        let (context, thread) = match stream {
            PER_THREAD => (context, this_thread()),
            stream if stream.is_default() => (context, 0),
            _ => (Context::NONE, 0),
        };
        Self {
            stream,
            context,
            thread,
        }
    }

    /// Whether it is a thread's own default stream, which other threads cannot name.
    fn is_of_thread(self) -> bool {
        self.thread != 0
    }
}

/// A number that no other thread has or had.
fn this_thread() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! { static NUMBER: Cell<u64> = const { Cell::new(0) } }
    if NUMBER.get() == 0 {
        NUMBER.set(LAST.fetch_add(1, Relaxed) + 1);
    }
    NUMBER.get()
}

impl InOrder {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Not to be used again before the next drain.
    pub(super) fn push(&mut self, address: u64, room: u64) {
        self.0.push(One {
            address,
            room,
            order: None,
            mark: None,
        });
    }

    /// The calling thread freed it in the order of a stream.
    pub(super) fn push_in_order(&mut self, address: u64, room: u64, order: StreamOrder) {
        let own = order
            .is_of_thread()
            .then(|| Event::record(order.stream))
            .flatten();
        self.0.push(One {
            address,
            room,
            order: Some(order),
            mark: own.map(Arc::new),
        });
    }

    /// Reuses the memory that was freed last, because that is most likely in the caches.
    pub(super) fn reuse(&mut self, room: u64, order: StreamOrder) -> Option<u64> {
        let fits = |one: &One| one.room == room && one.order == Some(order);
        let place = self.0.iter().rposition(fits)?;
        Some(self.0.remove(place).address)
    }

    /// Removes what is no longer in use.
    pub(super) fn take(&mut self, is_drained: bool) -> Vec<u64> {
        let is_free =
            |one: &One| is_drained || one.mark.as_ref().is_some_and(|mark| mark.is_reached());
        let (free, rest): (Vec<One>, _) =
            std::mem::take(&mut self.0).into_iter().partition(is_free);
        self.0 = rest;
        free.into_iter().map(|one| one.address).collect()
    }

    /// Records marks behind the work that may use the memory. `context_of` returns the context of an address.
    pub(super) fn mark(&mut self, context_of: impl Fn(u64) -> Option<Context>) {
        let mut marks: Vec<(StreamOrder, Arc<Event>)> = Vec::new();
        for one in self.0.iter_mut().filter(|one| one.mark.is_none()) {
            let Some(order) = one.order.filter(|order| !order.is_of_thread()) else {
                continue;
            };
            let known = marks.iter().find(|(other, _)| *other == order);
            one.mark = known.map(|(_, mark)| mark.clone()).or_else(|| {
                let context = match order.context.is_none() {
                    true => context_of(one.address)?,
                    false => order.context,
                };
                let mark = Arc::new(context.with(|| Ok(Event::record(order.stream))).ok()??);
                marks.push((order, mark.clone()));
                Some(mark)
            });
        }
    }

    /// The stream ends, and its handle may soon be another stream's. Memory without a mark waits for the next
    /// drain.
    pub(super) fn forget_stream(&mut self, stream: Stream) {
        let is_its = |one: &One| one.order.is_some_and(|order| order.stream == stream);
        for one in self.0.iter_mut().filter(|one| is_its(one)) {
            one.order = None;
        }
    }

    /// A context ends, with its streams and marks: memory in it, or freed in it, waits for the next drain.
    pub(super) fn forget_context(&mut self, context: Context, is_in_it: impl Fn(u64) -> bool) {
        let was_freed_in_it = |one: &One| one.order.is_some_and(|order| order.context == context);
        let its = |one: &&mut One| was_freed_in_it(one) || is_in_it(one.address);
        for one in self.0.iter_mut().filter(its) {
            (one.order, one.mark) = (None, None);
        }
    }

    pub(super) fn remove_all(&mut self, addresses: &[u64]) {
        self.0.retain(|one| !addresses.contains(&one.address));
    }
}
