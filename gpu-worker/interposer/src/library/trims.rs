//! How the session's own code learns that others lack room, so that it gives back memory that libraries hold
//! without using it.

use super::sys::host;
use std::{
    os::fd::RawFd,
    sync::atomic::{AtomicI32, Ordering::Relaxed},
};

/// A counter of the operating system that is readable while a trim is requested.
pub(super) struct Trims(AtomicI32);

const NONE: RawFd = -1;

impl Trims {
    pub(super) const fn new() -> Self {
        Self(AtomicI32::new(NONE))
    }

    pub(super) fn begin(&self) -> RawFd {
        let made = host::counter();
        match self.0.compare_exchange(NONE, made, Relaxed, Relaxed) {
            Ok(_) => made,
            Err(before) => {
                host::close_descriptor(made);
                before
            }
        }
    }

    pub(super) fn are_possible(&self) -> bool {
        self.0.load(Relaxed) != NONE
    }

    pub(super) fn ask(&self) {
        host::count(self.0.load(Relaxed));
    }

    pub(super) fn answer(&self) {
        host::reset(self.0.load(Relaxed));
    }
}
