//! Checkpoints: other processes leave the card and return.

use super::{api, put};
use crate::{Code, SUCCESS, card::card};
use std::{
    ffi::{c_int, c_void},
    time::{Duration, Instant},
};

fn code(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(SUCCESS)
}

fn of(process: c_int) -> u64 {
    u64::from(process.unsigned_abs())
}

api! {
    fn cuCheckpointProcessLock(process: c_int, options: *const u32) {
        let milliseconds = if options.is_null() { 0 } else { *options };
        let patience = match milliseconds {
            0 => Duration::from_secs(3600),
            some => Duration::from_millis(some.into()),
        };
        code(card().lock_process(of(process), Instant::now() + patience))
    }

    fn cuCheckpointProcessCheckpoint(process: c_int, _options: *const c_void) {
        code(card().checkpoint_process(of(process)))
    }

    fn cuCheckpointProcessRestore(process: c_int, _options: *const c_void) {
        code(card().restore_process(of(process)))
    }

    fn cuCheckpointProcessGetState(process: c_int, state: *mut c_int) {
        match card().state_of(of(process)) {
            Ok(number) => put(state, number as c_int),
            Err(code) => code,
        }
    }

    fn cuCheckpointProcessUnlock(process: c_int, _options: *const c_void) {
        code(card().unlock_process(of(process)))
    }
}
