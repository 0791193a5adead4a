//! Captures of the calling thread's own default stream.

use super::{Answer, Code, Driver, Refusal, SUCCESS};
use std::{ffi::c_int, mem::transmute_copy, thread};

impl Driver {
    /// # Errors
    /// The error code that the driver returns.
    pub fn begin_own_capture(&self) -> Answer {
        call_at!(self.export("cuStreamBeginCapture_v2_ptsz"), 0 => usize, 0 => c_int)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn end_own_capture(&self) -> Answer {
        let mut graph = 0;
        call_at!(self.export("cuStreamEndCapture_ptsz"), 0 => usize, &raw mut graph => *mut usize)
    }

    /// Begins and ends a capture in another thread.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn capture_aside(&self) -> Answer {
        let (driver, context) = (*self, self.context()?);
        let aside = thread::spawn(move || {
            driver.set_context(context)?;
            driver.begin_own_capture()?;
            driver.end_own_capture()
        });
        aside.join().unwrap_or(Err(Refusal(1)))
    }
}
