//! The few functions of the CUDA driver that Baton's own programs call, found as NVIDIA's runtime finds them.
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    mem::transmute_copy,
    ptr::null_mut,
    time::Duration,
};

use libloading::Library;

type Code = c_int;

/// As a program built for CUDA 12.0 asks.
const VERSION: c_int = 12000;

/// Since which there are checkpoints.
const CHECKPOINTS: c_int = 12080;

/// Of one block.
const THREADS: u32 = 256;

pub(in crate::gpu) const OUT_OF_MEMORY: Code = 2;

#[derive(Debug, thiserror::Error)]
pub(in crate::gpu) enum DriverError {
    #[error("the CUDA driver cannot be loaded: {0}")]
    Missing(#[from] libloading::Error),
    #[error("{function} answered {code}")]
    Refused { function: &'static str, code: Code },
}

/// Calls the driver's function of a name with these arguments.
macro_rules! call {
    ($driver:expr, $name:literal, $($arguments:tt)*) => {
        call!(@ $driver, $name, VERSION, $($arguments)*)
    };
    (@ $driver:expr, $name:literal, $version:expr, $($argument:expr => $kind:ty),*) => {{
        let address = $driver.look_up($name, $version)?;
        // SAFETY: the driver's function of this name has this signature, and the arguments are valid.
        let code = unsafe {
            let function: unsafe extern "C" fn($($kind),*) -> Code = transmute_copy(&address);
            function($($argument),*)
        };
        answer($name, code)
    }};
}

pub(in crate::gpu) struct Driver {
    library: Library,
}

/// A function on the GPU.
pub(in crate::gpu) struct Kernel(usize);

/// Memory of the GPU.
pub(in crate::gpu) struct Address(u64);

impl Driver {
    pub(in crate::gpu) fn open() -> Result<Self, DriverError> {
        // SAFETY: the driver's library may be loaded by anybody.
        let library = unsafe { Library::new("libcuda.so.1")? };
        let driver = Self { library };
        call!(driver, "cuInit", 0 => u32)?;
        Ok(driver)
    }

    /// The first device's own context becomes this thread's.
    pub(in crate::gpu) fn enter_context(&self) -> Result<(), DriverError> {
        let mut context = 0;
        call!(self, "cuDevicePrimaryCtxRetain", &raw mut context => *mut usize, 0 => c_int)?;
        call!(self, "cuCtxSetCurrent", context => usize)
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

    /// `image` is a text in PTX.
    pub(in crate::gpu) fn kernel(&self, image: &CStr, name: &CStr) -> Result<Kernel, DriverError> {
        let (mut module, mut function) = (0, 0);
        call!(self, "cuModuleLoadData", &raw mut module => *mut usize, image.as_ptr() => *const c_char)?;
        call!(self, "cuModuleGetFunction", &raw mut function => *mut usize, module => usize, name.as_ptr() => *const c_char)?;
        Ok(Kernel(function))
    }

    pub(in crate::gpu) fn allocate(&self, numbers: &[u64]) -> Result<Address, DriverError> {
        let mut address = 0;
        call!(self, "cuMemAlloc", &raw mut address => *mut u64, size_of_val(numbers) => usize)?;
        call!(self, "cuMemcpyHtoD", address => u64, numbers.as_ptr() => *const u64, size_of_val(numbers) => usize)?;
        Ok(Address(address))
    }

    pub(in crate::gpu) fn read(
        &self,
        from: &Address,
        numbers: &mut [u64],
    ) -> Result<(), DriverError> {
        call!(self, "cuMemcpyDtoH", numbers.as_mut_ptr() => *mut u64, from.0 => u64, size_of_val(numbers) => usize)
    }

    /// A thread for each number; returns when the kernel has ended.
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
        call!(
            self, "cuLaunchKernel",
            kernel.0 => usize, blocks => u32, 1 => u32, 1 => u32, THREADS => u32, 1 => u32, 1 => u32, 0 => u32,
            0 => usize, arguments.as_mut_ptr() => *mut *mut c_void, null_mut() => *mut *mut c_void
        )?;
        call!(self, "cuCtxSynchronize",)
    }

    // ---- checkpoints of other processes

    /// Its calls wait from now on, once what it has submitted is done.
    pub(in crate::gpu) fn lock(&self, process: i32, patience: Duration) -> Result<(), DriverError> {
        let mut options = LockOptions {
            timeout_ms: patience.as_millis() as u32,
            _reserved: [0; 15],
        };
        call!(
            @ self, "cuCheckpointProcessLock", CHECKPOINTS,
            process => c_int, &raw mut options => *mut LockOptions
        )
    }

    /// Takes what a locked process has off the GPU.
    pub(in crate::gpu) fn checkpoint(&self, process: i32) -> Result<(), DriverError> {
        call!(
            @ self, "cuCheckpointProcessCheckpoint", CHECKPOINTS,
            process => c_int, null_mut() => *mut c_void
        )
    }

    /// Brings it back; the process is still locked.
    pub(in crate::gpu) fn restore(&self, process: i32) -> Result<(), DriverError> {
        call!(
            @ self, "cuCheckpointProcessRestore", CHECKPOINTS,
            process => c_int, null_mut() => *mut c_void
        )
    }

    pub(in crate::gpu) fn state_of(&self, process: i32) -> Result<State, DriverError> {
        let mut state: c_int = 0;
        call!(
            @ self, "cuCheckpointProcessGetState", CHECKPOINTS,
            process => c_int, &raw mut state => *mut c_int
        )?;
        Ok(match state {
            0 => State::Running,
            1 => State::Locked,
            2 => State::Checkpointed,
            _ => State::Failed,
        })
    }

    pub(in crate::gpu) fn unlock(&self, process: i32) -> Result<(), DriverError> {
        call!(
            @ self, "cuCheckpointProcessUnlock", CHECKPOINTS,
            process => c_int, null_mut() => *mut c_void
        )
    }
}

/// Of a process; the driver's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::gpu) enum State {
    Running,
    Locked,
    Checkpointed,
    Failed,
}

/// As the driver reads it.
#[repr(C)]
struct LockOptions {
    timeout_ms: u32,
    _reserved: [u32; 15],
}

fn answer(function: &'static str, code: Code) -> Result<(), DriverError> {
    match code {
        0 => Ok(()),
        code => Err(DriverError::Refused { function, code }),
    }
}
