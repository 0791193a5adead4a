//! Places on the host that are made before memory leaves the GPU.
//!
//! A thread of low priority clears their pages, which takes most of the time. The agent then pins each place
//! and gives it to memory that has none. Both happen while the program computes. A move, or another session
//! that needs the room, ends this at once: places that are ready are used, and a place that is being made is
//! discarded.
//!
//! **Invariant:** that thread never calls the driver and holds no lock.

use super::{
    Process,
    sys::{host, host_memory::HostMemory},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc::Sender,
    },
    thread,
};

/// A request to pin that is not answered yet.
pub(super) struct Ahead {
    /// The number of the request; places made for an earlier one are discarded.
    number: u64,
    stops: Arc<AtomicBool>,
    /// Places that are still to be made.
    count: usize,
    /// How many bytes were requested, and how many of them have a place.
    asked_bytes: u64,
    bytes: u64,
}

/// What became of a place that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Given {
    Yes,
    /// The memory that it was made for is gone, or has another place.
    NotNeeded,
    /// The driver cannot pin it.
    NotPinned,
}

/// A place that was made; `None` if the machine has no room, or the request has ended.
pub(super) struct Made {
    number: u64,
    place: Option<HostMemory>,
}

impl Ahead {
    /// Starts a thread that makes places of these sizes. `None` if there is nothing to make, or no thread could
    /// be started.
    pub(super) fn begin<Message: From<Made> + Send + 'static>(
        number: u64,
        asked_bytes: u64,
        sizes: Vec<u64>,
        made: Sender<Message>,
    ) -> Option<Self> {
        let (stops, count) = (Arc::new(AtomicBool::new(false)), sizes.len());
        let is_stopped = stops.clone();
        let make = move || {
            host::work_behind_others();
            for bytes in sizes {
                let place = HostMemory::new_while(bytes, || !is_stopped.load(Relaxed));
                let is_last = place.is_none();
                if made.send(Made { number, place }.into()).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("baton-gpu-ahead".to_owned());
        let is_begun = count > 0 && host::without_signals(|| thread.spawn(make)).is_ok();
        is_begun.then_some(Self {
            number,
            stops,
            count,
            asked_bytes,
            bytes: 0,
        })
    }

    /// Takes in a place that was made. Returns `true` if it was the last.
    pub(super) fn take_in(&mut self, made: Made, give: impl FnOnce(HostMemory) -> Given) -> bool {
        if made.number != self.number {
            return false;
        }
        let Some(place) = made.place else { return true };
        let bytes = place.bytes();
        match give(place) {
            Given::Yes => self.bytes += bytes,
            Given::NotNeeded => {}
            Given::NotPinned => return true,
        }
        self.count -= 1;
        self.count == 0
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn missing_bytes(&self) -> u64 {
        self.asked_bytes - self.bytes
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.stops.store(true, Relaxed);
    }
}

/// Pins a place that was made, and gives it to memory on the GPU that has none.
pub(super) fn pin_place(process: &Process, mut made: HostMemory) -> Given {
    let _held = process.contexts.stay();
    let Some((place, context)) = process.memory().without_place(made.bytes()) else {
        return Given::NotNeeded;
    };
    // Other threads may allocate and submit meanwhile.
    if context.with(|| Ok(made.pin())) != Ok(true) {
        return Given::NotPinned;
    }
    let given = process.memory().give_place(place, context, made);
    match given {
        Ok(()) => Given::Yes,
        Err(made) => {
            context.with_if_it_lives(|| drop(made));
            Given::NotNeeded
        }
    }
}

/// Gives a place to memory that has none, unpinned: it is pinned when the memory leaves.
pub(super) fn give_place(process: &Process, made: HostMemory) -> Given {
    let mut memory = process.memory();
    let Some((place, context)) = memory.without_place(made.bytes()) else {
        return Given::NotNeeded;
    };
    let given = memory.give_place(place, context, made);
    given.map_or(Given::NotNeeded, |()| Given::Yes)
}

/// Returns empty places on the host to the system, for at least this many bytes, or all.
pub(super) fn unpin(process: &Process, bytes: u64) {
    let _held = process.contexts.stay();
    let taken = process.memory().take_empty_places(bytes);
    for (context, place) in taken {
        context.with_if_it_lives(|| drop(place));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn taken_in(sizes: &[u64], give: impl Fn(u64) -> Given) -> Ahead {
        let (sender, made) = channel::<Made>();
        let asked = sizes.iter().sum();
        let mut ahead = Ahead::begin(3, asked, sizes.to_vec(), sender).unwrap();
        while !ahead.take_in(made.recv().unwrap(), |place| give(place.bytes())) {}
        ahead
    }

    #[test]
    fn all_places_are_made_and_pinned() {
        let sizes: Vec<u64> = (1..9).map(|number| number << 16).collect();
        let ahead = taken_in(&sizes, |_| Given::Yes);
        assert_eq!((ahead.bytes(), ahead.missing_bytes()), (36 << 16, 0));
        assert!(Ahead::begin(1, 9, Vec::new(), channel::<Made>().0).is_none());
    }

    #[test]
    fn places_that_cannot_be_made_or_pinned_end_it_and_those_that_nobody_needs_do_not() {
        let sizes = [1 << 16, 2 << 16, 3 << 16];
        let pinned = |bytes: u64| match bytes >> 16 {
            2 => Given::NotNeeded,
            _ => Given::Yes,
        };
        assert_eq!(taken_in(&sizes, pinned).bytes(), 4 << 16);
        let second_fails = |bytes: u64| match bytes >> 16 {
            2 => Given::NotPinned,
            _ => Given::Yes,
        };
        assert_eq!(taken_in(&sizes, second_fails).bytes(), 1 << 16);
        let too_large = [1 << 16, 1 << 60, 1 << 16];
        assert_eq!(taken_in(&too_large, |_| Given::Yes).bytes(), 1 << 16);
    }

    #[test]
    fn what_is_made_for_an_order_that_has_ended_is_nobody_s() {
        let (sender, made) = channel::<Made>();
        let first = Ahead::begin(1, 1 << 16, vec![1 << 16], sender.clone()).unwrap();
        let late = made.recv().unwrap();
        drop(first);
        let mut second = Ahead::begin(2, 1 << 16, vec![1 << 16], sender).unwrap();
        assert!(!second.take_in(late, |_| panic!("it is not pinned")));
        assert!(second.take_in(made.recv().unwrap(), |_| Given::Yes));
    }

    #[test]
    fn an_order_that_ends_stops_the_thread() {
        let (sender, made) = channel::<Made>();
        // Seconds of work.
        let sizes = vec![4 << 20; 4096];
        let ahead = Ahead::begin(1, sizes.iter().sum(), sizes, sender).unwrap();
        drop(ahead);
        // The channel ends with the thread.
        assert!(made.iter().count() < 4096);
    }
}
