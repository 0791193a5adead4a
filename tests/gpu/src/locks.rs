//! Locks on single bytes of a file, which the system releases when their process ends.

use std::{ffi::c_int, io};

unsafe extern "C" {
    fn fcntl(file: c_int, command: c_int, ...) -> c_int;
}

pub(crate) enum LockKind {
    Try,
    Wait,
    Unlock,
}

#[repr(C)]
struct FileLock {
    kind: i16,
    whence: i16,
    start: i64,
    bytes: i64,
    process: i32,
}

const WRITE_LOCK: i16 = 1;
const UNLOCKED: i16 = 2;
const GET: c_int = 36;
const SET: c_int = 37;
const SET_AND_WAIT: c_int = 38;

/// Locks or unlocks one byte, for this open file.
pub(crate) fn lock(file: c_int, at: i64, kind: LockKind) -> io::Result<()> {
    let (kind, command) = match kind {
        LockKind::Try => (WRITE_LOCK, SET),
        LockKind::Wait => (WRITE_LOCK, SET_AND_WAIT),
        LockKind::Unlock => (UNLOCKED, SET),
    };
    let mut lock = FileLock {
        kind,
        whence: 0,
        start: at,
        bytes: 1,
        process: 0,
    };
    loop {
        if unsafe { fcntl(file, command, &raw mut lock) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Whether another open file holds the lock on this byte.
pub(crate) fn is_locked(file: c_int, at: i64) -> bool {
    let mut lock = FileLock {
        kind: WRITE_LOCK,
        whence: 0,
        start: at,
        bytes: 1,
        process: 0,
    };
    unsafe { fcntl(file, GET, &raw mut lock) };
    lock.kind != UNLOCKED
}
