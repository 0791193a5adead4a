//! Places on the host for memory that leaves the GPU, prepared by several threads ahead of the copies.
//!
//! To prepare a place is to clear its pages, which takes one thread several times as long as the copy into it.

use super::sys::{host, host_memory::HostMemory};
use std::{
    collections::BTreeMap,
    sync::{
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, Builder, Scope},
};

/// With more threads, the memory is the bottleneck.
const MOST_THREADS: usize = 8;

/// Returns places of these sizes, in this order.
pub(super) struct Shadows<'sizes> {
    sizes: &'sizes [u64],
    next: usize,
    made: Receiver<(usize, Option<HostMemory>)>,
    /// Places that were ready before their turn.
    early: BTreeMap<usize, Option<HostMemory>>,
}

impl<'sizes> Shadows<'sizes> {
    /// `taken` counts the places that threads have begun.
    pub(super) fn begin<'scope>(
        scope: &'scope Scope<'scope, '_>,
        sizes: &'sizes [u64],
        taken: &'sizes AtomicUsize,
    ) -> Self
    where
        'sizes: 'scope,
    {
        let (sender, made) = channel();
        for _ in 0..threads_for(sizes.len()) {
            let sender = sender.clone();
            let thread = Builder::new().name("baton-gpu-pages".to_owned());
            let make = move || make(sizes, taken, &sender);
            // With fewer threads it takes longer, and without any `next` prepares the places.
            let _ = host::without_signals(|| thread.spawn_scoped(scope, make));
        }
        Self {
            sizes,
            next: 0,
            made,
            early: BTreeMap::new(),
        }
    }

    /// Returns `None` if the machine has no room.
    pub(super) fn next(&mut self) -> Option<HostMemory> {
        let wanted = self.next;
        self.next += 1;
        loop {
            if let Some(place) = self.early.remove(&wanted) {
                return place;
            }
            match self.made.recv() {
                Ok((number, place)) => self.early.insert(number, place),
                // No thread could be started.
                Err(_) => return HostMemory::new(self.sizes[wanted]),
            };
        }
    }
}

fn threads_for(places: usize) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    // A single place is not ready any sooner with another thread.
    let most = MOST_THREADS.min(cores.div_ceil(2)).min(places);
    if places > 1 { most } else { 0 }
}

fn make(sizes: &[u64], taken: &AtomicUsize, made: &Sender<(usize, Option<HostMemory>)>) {
    loop {
        let number = taken.fetch_add(1, Relaxed);
        let Some(bytes) = sizes.get(number) else {
            return;
        };
        if made.send((number, HostMemory::new(*bytes))).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_come_in_order_however_many_threads_make_them() {
        for count in [0, 1, 2, 40] {
            let sizes: Vec<u64> = (0..count).map(|number| (number % 7 + 1) << 16).collect();
            let taken = AtomicUsize::new(0);
            let made: Vec<u64> = thread::scope(|scope| {
                let mut shadows = Shadows::begin(scope, &sizes, &taken);
                let places = sizes.iter().filter_map(|_| shadows.next());
                places.map(|place| place.bytes()).collect()
            });
            assert_eq!(made, sizes);
        }
    }

    #[test]
    fn a_place_that_the_machine_has_no_room_for_is_none() {
        let (sizes, taken) = ([1 << 16, 1 << 60, 1 << 16], AtomicUsize::new(0));
        thread::scope(|scope| {
            let mut shadows = Shadows::begin(scope, &sizes, &taken);
            let made = sizes.map(|_| shadows.next().is_some());
            assert_eq!(made, [true, false, true]);
        });
    }
}
