//! The few functions of the CUDA driver that Baton's own programs call, looked up as NVIDIA's runtime does.
//!
//! Types are cudarc's, which come from NVIDIA's headers. Its look-ups are not used, because they end a program on a
//! machine without a driver.

use cudarc::driver::sys;
use libloading::Library;
use std::{
    ffi::{CStr, CString, c_char, c_int, c_uint, c_void},
    mem::transmute_copy,
    ptr::null_mut,
    time::Duration,
};

/// A `CUresult`, or a code of a newer driver.
type Code = c_int;

/// Functions are looked up as a program built for CUDA 12.0 would.
const VERSION: c_int = 12000;

/// The version that introduced checkpoints.
const CHECKPOINTS: c_int = 12080;

/// In each block.
const THREADS: u32 = 256;

#[derive(Debug, thiserror::Error)]
pub(in crate::gpu) enum DriverError {
    #[error("the CUDA driver cannot be loaded: {0}")]
    Missing(#[from] libloading::Error),
    #[error("{function} answered {code}")]
    Refused { function: &'static str, code: Code },
}

/// Calls the driver's function with these arguments, whose types are checked against NVIDIA's headers. With `@`,
/// calls a function of a version for which cudarc has no functions.
macro_rules! call {
    ($driver:expr, $function:ident($($argument:expr => $kind:ty),*)) => {{
        const _: unsafe fn($($kind),*) -> sys::CUresult = sys::$function;
        call!(@ $driver, VERSION, $function($($argument => $kind),*))
    }};
    (@ $driver:expr, $version:expr, $function:ident($($argument:expr => $kind:ty),*)) => {{
        // The version determines which function of that name is meant.
        let name = stringify!($function).trim_end_matches("_v2");
        let address = $driver.look_up(name, $version)?;
        // SAFETY: the driver's function of this name has this signature, and the arguments are valid.
        let code = unsafe {
            let function: unsafe extern "C" fn($($kind),*) -> Code = transmute_copy(&address);
            function($($argument),*)
        };
        answer(name, code)
    }};
}

pub(in crate::gpu) struct Driver {
    library: Library,
}

/// A function on the GPU.
pub(in crate::gpu) struct Kernel(sys::CUfunction);

/// Memory of the GPU.
pub(in crate::gpu) struct Address(sys::CUdeviceptr);

impl Driver {
    pub(in crate::gpu) fn open() -> Result<Self, DriverError> {
        // SAFETY: any program may load the driver's library.
        let library = unsafe { Library::new("libcuda.so.1")? };
        let driver = Self { library };
        call!(driver, cuInit(0 => c_uint))?;
        Ok(driver)
    }

    /// Makes the first device's primary context this thread's context.
    pub(in crate::gpu) fn enter_context(&self) -> Result<(), DriverError> {
        let mut context = null_mut();
        call!(self, cuDevicePrimaryCtxRetain(&raw mut context => *mut sys::CUcontext, 0 => sys::CUdevice))?;
        call!(self, cuCtxSetCurrent(context => sys::CUcontext))
    }

    fn look_up(&self, name: &'static str, version: c_int) -> Result<usize, DriverError> {
        type LookUp =
            unsafe extern "C" fn(*const c_char, *mut usize, c_int, u64, *mut c_int) -> Code;
        let refused = |code| DriverError::Refused {
            function: name,
            code,
        };
        let text = CString::new(name).map_err(|_| refused(0))?;
        let mut address = 0;
        // SAFETY: the driver's function of this name has this signature, and the name ends with nul.
        let code = unsafe {
            let ask = self.library.get::<LookUp>(b"cuGetProcAddress_v2\0")?;
            ask(text.as_ptr(), &raw mut address, version, 0, null_mut())
        };
        match address {
            0 => Err(refused(code)),
            address => Ok(address),
        }
    }

    /// `image` is PTX text.
    pub(in crate::gpu) fn kernel(&self, image: &CStr, name: &CStr) -> Result<Kernel, DriverError> {
        let (mut module, mut function) = (null_mut(), null_mut());
        call!(self, cuModuleLoadData(
            &raw mut module => *mut sys::CUmodule, image.as_ptr().cast() => *const c_void
        ))?;
        call!(self, cuModuleGetFunction(
            &raw mut function => *mut sys::CUfunction, module => sys::CUmodule, name.as_ptr() => *const c_char
        ))?;
        Ok(Kernel(function))
    }

    pub(in crate::gpu) fn allocate(&self, numbers: &[u64]) -> Result<Address, DriverError> {
        let mut address = 0;
        let bytes = size_of_val(numbers);
        call!(self, cuMemAlloc_v2(&raw mut address => *mut sys::CUdeviceptr, bytes => usize))?;
        call!(self, cuMemcpyHtoD_v2(
            address => sys::CUdeviceptr, numbers.as_ptr().cast() => *const c_void, bytes => usize
        ))?;
        Ok(Address(address))
    }

    pub(in crate::gpu) fn read(
        &self,
        from: &Address,
        numbers: &mut [u64],
    ) -> Result<(), DriverError> {
        let bytes = size_of_val(numbers);
        call!(self, cuMemcpyDtoH_v2(
            numbers.as_mut_ptr().cast() => *mut c_void, from.0 => sys::CUdeviceptr, bytes => usize
        ))
    }

    /// Runs one thread for each number, and returns when the kernel has ended.
    pub(in crate::gpu) fn launch(
        &self,
        kernel: &Kernel,
        numbers: &Address,
        count: usize,
        value: u64,
    ) -> Result<(), DriverError> {
        let mut words = [numbers.0, count as u64, value];
        let mut arguments = words
            .each_mut()
            .map(|word| (word as *mut u64).cast::<c_void>());
        let blocks = count.div_ceil(THREADS as usize) as u32;
        call!(self, cuLaunchKernel(
            kernel.0 => sys::CUfunction,
            blocks => c_uint, 1 => c_uint, 1 => c_uint,
            THREADS => c_uint, 1 => c_uint, 1 => c_uint,
            0 => c_uint, null_mut() => sys::CUstream,
            arguments.as_mut_ptr() => *mut *mut c_void, null_mut() => *mut *mut c_void
        ))?;
        call!(self, cuCtxSynchronize())
    }

    // ---- checkpoints of other processes

    /// Makes the process's calls wait, once the work that it has submitted is done.
    pub(in crate::gpu) fn lock(&self, process: i32, patience: Duration) -> Result<(), DriverError> {
        let mut options = sys::CUcheckpointLockArgs {
            timeoutMs: patience.as_millis() as c_uint,
            reserved0: 0,
            reserved1: [0; 7],
        };
        call!(@ self, CHECKPOINTS, cuCheckpointProcessLock(
            process => c_int, &raw mut options => *mut sys::CUcheckpointLockArgs
        ))
    }

    /// Takes everything that a locked process has off the GPU.
    pub(in crate::gpu) fn checkpoint(&self, process: i32) -> Result<(), DriverError> {
        call!(@ self, CHECKPOINTS, cuCheckpointProcessCheckpoint(
            process => c_int, null_mut() => *mut sys::CUcheckpointCheckpointArgs
        ))
    }

    /// Returns it to the GPU; the process is still locked.
    pub(in crate::gpu) fn restore(&self, process: i32) -> Result<(), DriverError> {
        call!(@ self, CHECKPOINTS, cuCheckpointProcessRestore(
            process => c_int, null_mut() => *mut sys::CUcheckpointRestoreArgs
        ))
    }

    pub(in crate::gpu) fn state_of(&self, process: i32) -> Result<State, DriverError> {
        // Read as a number, because newer drivers have more states.
        let mut state: c_uint = 0;
        call!(@ self, CHECKPOINTS, cuCheckpointProcessGetState(
            process => c_int, (&raw mut state).cast() => *mut sys::CUprocessState
        ))?;
        Ok(match state {
            state if state == sys::CUprocessState::CU_PROCESS_STATE_RUNNING as c_uint => {
                State::Running
            }
            state if state == sys::CUprocessState::CU_PROCESS_STATE_LOCKED as c_uint => {
                State::Locked
            }
            state if state == sys::CUprocessState::CU_PROCESS_STATE_CHECKPOINTED as c_uint => {
                State::Checkpointed
            }
            _ => State::Failed,
        })
    }

    pub(in crate::gpu) fn unlock(&self, process: i32) -> Result<(), DriverError> {
        call!(@ self, CHECKPOINTS, cuCheckpointProcessUnlock(
            process => c_int, null_mut() => *mut sys::CUcheckpointUnlockArgs
        ))
    }
}

/// The checkpoint state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::gpu) enum State {
    Running,
    Locked,
    Checkpointed,
    Failed,
}

fn answer(function: &'static str, code: Code) -> Result<(), DriverError> {
    match code {
        0 => Ok(()),
        code => Err(DriverError::Refused { function, code }),
    }
}
