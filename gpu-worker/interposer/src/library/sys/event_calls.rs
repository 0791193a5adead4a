//! Wrappers of the calls that create, record and destroy events.
//!
//! Events that can measure time are recorded only while the session has a lease. Otherwise two of them around a
//! kernel would measure how long the session waited for its lease, and how long its memory took to return.
#![allow(non_snake_case)]

use super::{
    super::PROCESS,
    driver::{Code, Export, NOT_FOUND, SUCCESS},
    is_in_use, wrap,
};
use std::{ffi::c_uint, mem::transmute};

const DISABLE_TIMING: c_uint = 2;

wrap! {
    fn cuEventCreate(event: *mut usize, flags: c_uint) |driver| {
        let code = driver();
        if code == SUCCESS && is_in_use() {
            // SAFETY: the driver has just written the event there.
            let event = unsafe { *event };
            match flags & DISABLE_TIMING {
                0 => PROCESS.timers.add(event),
                // The event with this handle before may have ended with its context.
                _ => PROCESS.timers.remove(event),
            }
        }
        code
    }

    fn cuEventDestroy_v2(event: usize) |driver| { destroy(event, driver) }

    fn cuEventDestroy(event: usize) |driver| { destroy(event, driver) }

    fn cuEventRecord(event: usize, stream: usize) |driver| { let _ = stream; record(event, driver) }

    fn cuEventRecord_ptsz(event: usize, stream: usize) |driver| { let _ = stream; record(event, driver) }

    fn cuEventRecordWithFlags(event: usize, stream: usize, flags: c_uint) |driver| {
        let _ = (stream, flags);
        record(event, driver)
    }

    fn cuEventRecordWithFlags_ptsz(event: usize, stream: usize, flags: c_uint) |driver| {
        let _ = (stream, flags);
        record(event, driver)
    }
}

fn destroy(event: usize, driver: impl FnOnce() -> Code) -> Code {
    if is_in_use() {
        PROCESS.timers.remove(event);
    }
    driver()
}

fn record(event: usize, driver: impl FnOnce() -> Code) -> Code {
    match is_in_use() && PROCESS.timers.has(event) {
        true => PROCESS.ask(driver),
        false => driver(),
    }
}
