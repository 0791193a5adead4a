//! Host memory that programs pin, and what a fork does to it.
//!
//! Pages that a device may access cannot be shared copy-on-write with a child. So the system copies them during
//! the fork (Linux, `copy_present_page`), unless they are excluded from children (`madvise(2)`,
//! `MADV_DONTFORK`).

use super::{bound, pthread_atfork};
use crate::{CAPTURE_UNSUPPORTED, INVALID_VALUE, SUCCESS, card::card, context, is_initialized, lock, spoils_captures};
use std::{
    collections::BTreeMap,
    ffi::c_uint,
    sync::{Mutex, Once},
};

const ALREADY_REGISTERED: i32 = 712;
const NOT_REGISTERED: i32 = 713;

/// The size and the context of each pinned range, by address.
static PINNED: Mutex<BTreeMap<u64, (u64, usize)>> = Mutex::new(BTreeMap::new());

// The documentation of both lists CUDA_ERROR_INVALID_CONTEXT among the return values.
bound! {
    fn cuMemHostRegister_v2(address: u64, bytes: usize, _flags: c_uint) {
        if address == 0 || bytes == 0 {
            return INVALID_VALUE;
        }
        let mut pinned = lock(&PINNED);
        if pinned.contains_key(&address) {
            return ALREADY_REGISTERED;
        }
        pinned.insert(address, (bytes as u64, context().unwrap_or_default()));
        card().pinned(bytes as u64);
        SUCCESS
    }

    // Such calls end captures of threads that do not permit them (`cuThreadExchangeStreamCaptureMode`). NVIDIA does not
    // say which calls these are; this one, like most that free, is taken for one.
    fn cuMemHostUnregister(address: u64) {
        if spoils_captures(false) {
            return CAPTURE_UNSUPPORTED;
        }
        match lock(&PINNED).remove(&address) {
            Some((bytes, _)) => {
                card().unpinned(bytes);
                SUCCESS
            }
            None => NOT_REGISTERED,
        }
    }
}

/// Whether a program has pinned this memory of its own.
pub(super) fn is_pinned(address: u64) -> bool {
    let pinned = lock(&PINNED);
    let before = pinned.range(..=address).next_back();
    before.is_some_and(|(start, (bytes, _))| address < start + *bytes as u64)
}

/// Unpins what a context had pinned when it ends.
pub(crate) fn end(context: usize) {
    lock(&PINNED).retain(|_, (bytes, of)| {
        let stays = *of != context;
        if !stays {
            card().unpinned(*bytes);
        }
        stays
    });
}

/// From now on, counts how many pinned bytes forks of this process copy.
pub(crate) fn notice_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        unsafe { pthread_atfork(Some(before_fork), None, None) };
    });
}

extern "C" fn before_fork() {
    if !is_initialized() {
        return;
    }
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
    let mut range = (0, 0);
    for line in maps.lines() {
        if let Some(flags) = line.strip_prefix("VmFlags:") {
            if !flags.split_whitespace().any(|flag| flag == "dc") {
                card().copied_at_fork(pinned_in(range));
            }
        } else if let Some(found) = range_of(line) {
            range = found;
        }
    }
}

fn range_of(line: &str) -> Option<(u64, u64)> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    Some((
        u64::from_str_radix(start, 16).ok()?,
        u64::from_str_radix(end, 16).ok()?,
    ))
}

fn pinned_in((start, end): (u64, u64)) -> u64 {
    let pinned = lock(&PINNED);
    let overlap = |(address, (bytes, _)): (&u64, &(u64, usize))| {
        end.min(address + bytes).saturating_sub(start.max(*address))
    };
    pinned.iter().map(overlap).sum()
}
