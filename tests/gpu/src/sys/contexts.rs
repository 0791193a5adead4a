//! Contexts of programs.

use super::{Answer, Code, Driver, Refusal, SUCCESS};
use std::{
    ffi::{c_int, c_void},
    mem::transmute_copy,
    ptr::null_mut,
};

impl Driver {
    /// The calling thread's context.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn context(&self) -> Answer<usize> {
        let mut context = 0;
        call!(self, "cuCtxGetCurrent", &raw mut context => *mut usize)?;
        Ok(context)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn set_context(&self, context: usize) -> Answer {
        call!(self, "cuCtxSetCurrent", context => usize)
    }

    /// Ends the device's primary context, with everything in it.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn reset(&self) -> Answer {
        call!(self, "cuDevicePrimaryCtxReset", 0 => c_int)
    }

    /// Makes the device's primary context this thread's context.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn retain(&self) -> Answer {
        let mut context = 0;
        call!(self, "cuDevicePrimaryCtxRetain", &raw mut context => *mut usize, 0 => c_int)?;
        self.set_context(context)
    }

    /// Creates another context for this thread, with the call of this name.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn create_context(&self, call: &str) -> Answer<usize> {
        let (mut context, address) = (0, self.export(call));
        let none = null_mut::<c_void>();
        match call {
            "cuCtxCreate" | "cuCtxCreate_v2" => {
                call_at!(address, &raw mut context => *mut usize, 0 => u32, 0 => c_int)?;
            }
            "cuCtxCreate_v3" => call_at!(
                address, &raw mut context => *mut usize, none => *mut c_void, 0 => c_int, 0 => u32, 0 => c_int
            )?,
            "cuCtxCreate_v4" => call_at!(
                address, &raw mut context => *mut usize, none => *mut c_void, 0 => u32, 0 => c_int
            )?,
            // These make a context current that the interposer has not seen.
            _ => {
                call_at!(self.export("baton_test_gpu_context"), &raw mut context => *mut usize)?;
                call_at!(address, context => usize)?;
            }
        }
        Ok(context)
    }

    /// Creates a green context and makes it this thread's context. Returns its handle and the context that it is for
    /// other calls.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn create_green_context(&self) -> Answer<(usize, usize)> {
        let (mut green, mut context) = (0, 0);
        let flags = 1; // CU_GREEN_CTX_DEFAULT_STREAM
        call!(
            self, "cuGreenCtxCreate", &raw mut green => *mut usize, 0 => usize, 0 => c_int, flags => u32
        )?;
        call!(self, "cuCtxFromGreenCtx", &raw mut context => *mut usize, green => usize)?;
        self.set_context(context)?;
        Ok((green, context))
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn destroy_green_context(&self, green: usize) -> Answer {
        call!(self, "cuGreenCtxDestroy", green => usize)
    }

    /// One more detach is then needed to end the thread's context.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn attach_context(&self) -> Answer {
        let mut context = 0_usize;
        call!(self, "cuCtxAttach", &raw mut context => *mut usize, 0 => u32)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn detach_context(&self, context: usize) -> Answer {
        call!(self, "cuCtxDetach", context => usize)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn destroy_context(&self, context: usize) -> Answer {
        call!(self, "cuCtxDestroy", context => usize)
    }
}
