//! The CUDA driver as programs find it: the library by name, and each function by its name and version.
#![allow(unsafe_code)]

use std::{
    ffi::{CString, c_char, c_int, c_void},
    mem::transmute_copy,
    ptr::{null, null_mut},
};

mod process;
pub use process::{at_exit, beside_child, call_loaded, in_child, when_asked_to_trim};

type Code = i32;
pub const SUCCESS: Code = 0;

unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Look-ups are those of a program built for this version.
const VERSION: c_int = 12000;
const LAZY: c_int = 1;

/// The error code that the driver returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal(pub Code);

pub type Answer<T = ()> = Result<T, Refusal>;

#[derive(Debug, Clone, Copy)]
pub struct Driver {
    library: *mut c_void,
}

// SAFETY: a library's handle is the same in all threads.
unsafe impl Send for Driver {}

/// Calls the function of this name with these arguments.
macro_rules! call {
    ($driver:expr, $name:literal, $($arguments:tt)*) => {
        call_at!($driver.look_up($name)?, $($arguments)*)
    };
}

/// Calls the function at this address with these arguments.
macro_rules! call_at {
    ($address:expr, $($argument:expr => $kind:ty),*) => {{
        let address: usize = $address;
        // SAFETY: the driver's function of this name has this signature, and the arguments are valid.
        let code = unsafe {
            let function: unsafe extern "C" fn($($kind),*) -> Code = transmute_copy(&address);
            function($($argument),*)
        };
        match code {
            SUCCESS => Ok(()),
            code => Err(Refusal(code)),
        }
    }};
}

mod captures;
mod contexts;
mod mapping;

impl Driver {
    /// Opens the driver, and makes the first device's primary context this thread's context.
    ///
    /// # Errors
    /// The error code that the driver returns; 100 if there is no driver.
    pub fn open() -> Answer<Self> {
        // SAFETY: the name ends with nul.
        let library = unsafe { dlopen(c"libcuda.so.1".as_ptr(), LAZY) };
        if library.is_null() {
            return Err(Refusal(100));
        }
        let driver = Self { library };
        call!(driver, "cuInit", 0 => u32)?;
        driver.retain()?;
        Ok(driver)
    }

    /// Uses the driver's own look-up function, which is found through the loader.
    fn look_up(&self, name: &str) -> Answer<usize> {
        type LookUp =
            unsafe extern "C" fn(*const c_char, *mut usize, c_int, u64, *mut c_int) -> Code;
        let name = CString::new(name).map_err(|_| Refusal(1))?;
        let mut address = 0;
        // SAFETY: the names end with nul, and the driver's function has this signature.
        let code = unsafe {
            let found = dlsym(self.library, c"cuGetProcAddress_v2".as_ptr());
            if found.is_null() {
                return Err(Refusal(500));
            }
            let look_up: LookUp = transmute_copy(&found);
            look_up(name.as_ptr(), &raw mut address, VERSION, 0, null_mut())
        };
        match code {
            SUCCESS => Ok(address),
            code => Err(Refusal(code)),
        }
    }

    /// The address of the function that a look-up with this version and these flags finds.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn address_of(&self, name: &str, version: i32, flags: u64) -> Answer<usize> {
        let name = CString::new(name).map_err(|_| Refusal(1))?;
        let mut address = 0;
        call!(
            self, "cuGetProcAddress", name.as_ptr() => *const c_char, &raw mut address => *mut usize,
            version => c_int, flags => u64, null_mut() => *mut c_int
        )?;
        Ok(address)
    }

    /// The address of the function that the loader finds under this name; 0 if there is none.
    #[must_use]
    pub fn export(&self, name: &str) -> usize {
        let Ok(name) = CString::new(name) else {
            return 0;
        };
        // SAFETY: the name ends with nul.
        unsafe { dlsym(self.library, name.as_ptr()) as usize }
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn allocate(&self, bytes: usize) -> Answer<u64> {
        let mut address = 0;
        call!(self, "cuMemAlloc", &raw mut address => *mut u64, bytes => usize)?;
        Ok(address)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn allocate_in_order(&self, bytes: usize, stream: usize) -> Answer<u64> {
        let mut address = 0;
        call!(self, "cuMemAllocAsync", &raw mut address => *mut u64, bytes => usize, stream => usize)?;
        Ok(address)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn allocate_managed(&self, bytes: usize) -> Answer<u64> {
        let mut address = 0;
        call!(self, "cuMemAllocManaged", &raw mut address => *mut u64, bytes => usize, 1 => u32)?;
        Ok(address)
    }

    /// A new pool with this kind of memory and this kind of place, as the driver numbers them.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn new_pool(&self, kind: i32, place: i32) -> Answer<usize> {
        let (mut pool, mut properties) = (0, [0; 22]);
        (properties[0], properties[2]) = (kind, place);
        call!(self, "cuMemPoolCreate", &raw mut pool => *mut usize, properties.as_ptr() => *const i32)?;
        Ok(pool)
    }

    /// The driver's own pool of this kind.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn default_pool(&self, kind: i32, place: i32) -> Answer<usize> {
        let (mut pool, location) = (0, [place, 0]);
        call!(
            self, "cuMemGetDefaultMemPool", &raw mut pool => *mut usize, location.as_ptr() => *const i32, kind => i32
        )?;
        Ok(pool)
    }

    /// Sizes of a pool: reserved now and at most, used now and at most.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn pool_bytes(&self, pool: usize) -> Answer<[u64; 4]> {
        let mut bytes = [0; 4];
        for (attribute, bytes) in (5..).zip(&mut bytes) {
            call!(self, "cuMemPoolGetAttribute", pool => usize, attribute => i32, bytes => *mut u64)?;
        }
        Ok(bytes)
    }

    /// Lets the largest used size count from now.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn reset_pool(&self, pool: usize) -> Answer<()> {
        let mut zero = 0;
        call!(self, "cuMemPoolSetAttribute", pool => usize, 8 => i32, &raw mut zero => *mut u64)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn allocate_from_pool(&self, pool: usize, bytes: usize) -> Answer<u64> {
        let mut address = 0;
        call!(
            self, "cuMemAllocFromPoolAsync", &raw mut address => *mut u64, bytes => usize, pool => usize, 0 => usize
        )?;
        Ok(address)
    }

    /// Whether the host may read the memory at this address.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn is_on_host(&self, address: u64) -> Answer<bool> {
        let mut kind = 0;
        call!(self, "cuPointerGetAttribute", &raw mut kind => *mut u32, 2 => c_int, address => u64)?;
        Ok(kind == 1)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn free(&self, address: u64) -> Answer {
        call!(self, "cuMemFree", address => u64)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn free_in_order(&self, address: u64, stream: usize) -> Answer {
        call!(self, "cuMemFreeAsync", address => u64, stream => usize)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn set_in_order(&self, address: u64, bytes: usize, stream: usize) -> Answer {
        call!(self, "cuMemsetD8Async", address => u64, 0 => u8, bytes => usize, stream => usize)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn end_stream(&self, stream: usize) -> Answer {
        call!(self, "cuStreamDestroy", stream => usize)
    }

    /// How many calls this thread has made to the driver.
    #[must_use]
    pub fn calls(&self) -> u64 {
        let address = self.export("baton_test_gpu_calls");
        // SAFETY: the driver's function of this name has this signature.
        unsafe { std::mem::transmute::<usize, extern "C" fn() -> u64>(address)() }
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn write(&self, address: u64, numbers: &[u64]) -> Answer {
        let bytes = size_of_val(numbers);
        call!(self, "cuMemcpyHtoD", address => u64, numbers.as_ptr() => *const u64, bytes => usize)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn read(&self, address: u64, numbers: &mut [u64]) -> Answer {
        let bytes = size_of_val(numbers);
        call!(self, "cuMemcpyDtoH", numbers.as_mut_ptr() => *mut u64, address => u64, bytes => usize)
    }

    /// Submits `count` operations that do nothing, which the driver handles quickly.
    ///
    /// Work that ends when the number at `address` is at least `value`.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn wait_for_value(&self, stream: usize, address: u64, value: u64) -> Answer {
        call!(self, "cuStreamWaitValue64", stream => usize, address => u64, value => u64, 0 => u32)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn write_value(&self, stream: usize, address: u64, value: u64) -> Answer {
        call!(self, "cuStreamWriteValue64", stream => usize, address => u64, value => u64, 0 => u32)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn call_on_host(&self, stream: usize, function: extern "C" fn(*mut c_void)) -> Answer {
        call!(
            self, "cuLaunchHostFunc", stream => usize, function => extern "C" fn(*mut c_void),
            null_mut() => *mut c_void
        )
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn allocate_pinned(&self, bytes: usize) -> Answer<u64> {
        let mut address = 0;
        call!(self, "cuMemHostAlloc", &raw mut address => *mut u64, bytes => usize, 0 => u32)?;
        Ok(address)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn submit_nothing(&self, address: u64, count: u32) -> Answer {
        type Set = unsafe extern "C" fn(u64, u8, usize, usize) -> Code;
        let found = self.look_up("cuMemsetD8Async")?;
        for _ in 0..count {
            // SAFETY: the driver's function has this signature, and nothing is written.
            let code = unsafe {
                let set: Set = transmute_copy(&found);
                set(address, 0, 0, 0)
            };
            if code != SUCCESS {
                return Err(Refusal(code));
            }
        }
        Ok(())
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn kernel(&self, name: &str) -> Answer<Kernel> {
        let name = CString::new(name).map_err(|_| Refusal(1))?;
        let (mut module, mut function) = (0, 0);
        let image = c"image".as_ptr();
        call!(self, "cuModuleLoadData", &raw mut module => *mut usize, image => *const c_char)?;
        call!(
            self, "cuModuleGetFunction", &raw mut function => *mut usize, module => usize,
            name.as_ptr() => *const c_char
        )?;
        Ok(Kernel {
            function,
            launch: self.look_up("cuLaunchKernel")?,
        })
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn synchronize(&self) -> Answer {
        call!(self, "cuCtxSynchronize",)
    }

    /// Whether all work in the default stream has ended.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn is_done(&self) -> Answer<bool> {
        const NOT_READY: Code = 600;
        match call!(self, "cuStreamQuery", 0 => usize) {
            Err(Refusal(NOT_READY)) => Ok(false),
            answer => answer.map(|()| true),
        }
    }

    /// An event, with the flags of its creation.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn event(&self, flags: u32) -> Answer<usize> {
        let mut event = 0;
        call!(self, "cuEventCreate", &raw mut event => *mut usize, flags => u32)?;
        Ok(event)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn record(&self, event: usize, stream: usize) -> Answer {
        call!(self, "cuEventRecord", event => usize, stream => usize)
    }

    /// Milliseconds.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn elapsed(&self, start: usize, end: usize) -> Answer<f32> {
        let mut milliseconds = 0.0;
        call!(
            self, "cuEventElapsedTime", &raw mut milliseconds => *mut f32, start => usize, end => usize
        )?;
        Ok(milliseconds)
    }

    /// Free and total bytes.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn memory(&self) -> Answer<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        call!(self, "cuMemGetInfo", &raw mut free => *mut usize, &raw mut total => *mut usize)?;
        call!(self, "cuMemGetInfo", null_mut() => *mut usize, &raw mut total => *mut usize)?;
        Ok((free, total))
    }

    /// The device's total memory.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn total_bytes(&self) -> Answer<usize> {
        let mut bytes = 0;
        call!(self, "cuDeviceTotalMem", &raw mut bytes => *mut usize, 0 => c_int)?;
        Ok(bytes)
    }

    /// The start of the allocation that contains an address, by both ways to query it, and its size.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn range_of(&self, address: u64) -> Answer<[u64; 3]> {
        let (mut base, mut bytes, mut start) = (0, 0, 0);
        call!(
            self, "cuMemGetAddressRange", &raw mut base => *mut u64, &raw mut bytes => *mut u64,
            address => u64
        )?;
        call!(self, "cuPointerGetAttribute", &raw mut start => *mut u64, 11 => c_int, address => u64)?;
        Ok([base, start, bytes])
    }

    /// The context in which the memory at this address was allocated.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn context_of(&self, address: u64) -> Answer<usize> {
        let mut context = 0;
        call!(self, "cuPointerGetAttribute", &raw mut context => *mut usize, 1 => c_int, address => u64)?;
        Ok(context)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn share(&self, address: u64) -> Answer {
        let mut handle = [0; 64];
        call!(self, "cuIpcGetMemHandle", handle.as_mut_ptr() => *mut u8, address => u64)
    }

    /// Imports memory of another interface. Returns what destroys it.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn import(&self, bytes: u64) -> Answer<usize> {
        let (mut memory, mut description) = (0, [0_u64; 13]);
        description[3] = bytes;
        call!(
            self, "cuImportExternalMemory", &raw mut memory => *mut usize, description.as_ptr() => *const u64
        )?;
        Ok(memory)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn destroy_import(&self, memory: usize) -> Answer {
        call!(self, "cuDestroyExternalMemory", memory => usize)
    }

    /// Makes a graph with memory of its own, without a capture.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn make_graph(&self, bytes: u64) -> Answer {
        let (mut graph, mut node, mut allocation) = (0, 0, [0_u64; 15]);
        allocation[13] = bytes;
        call!(self, "cuGraphCreate", &raw mut graph => *mut usize, 0 => u32)?;
        call!(
            self, "cuGraphAddMemAllocNode", &raw mut node => *mut usize, graph => usize, null() => *const usize,
            0 => usize, allocation.as_mut_ptr() => *mut u64
        )?;
        call!(self, "cuGraphInstantiate", &raw mut node => *mut usize, graph => usize, 0 => u64)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn stream(&self) -> Answer<usize> {
        let mut stream = 0;
        call!(self, "cuStreamCreate", &raw mut stream => *mut usize, 1 => u32)?;
        Ok(stream)
    }

    /// Makes the second stream wait for the first, and join its capture.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn fork_stream(&self, first: usize, second: usize) -> Answer {
        let event = self.event(0)?;
        self.record(event, first)?;
        call!(self, "cuStreamWaitEvent", second => usize, event => usize, 0 => u32)
    }

    /// Makes copies of the allocation synchronous.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn synchronize_copies(&self, address: u64) -> Answer {
        let yes = 1_u32;
        call!(self, "cuPointerSetAttribute", &raw const yes => *const u32, 6 => c_int, address => u64)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn begin_capture(&self, stream: usize) -> Answer {
        call!(self, "cuStreamBeginCapture", stream => usize, 0 => c_int)
    }

    /// Returns the captured graph, ready to run.
    ///
    /// # Errors
    /// The error code that the driver returns.
    pub fn end_capture(&self, stream: usize) -> Answer<usize> {
        let (mut graph, mut executable) = (0, 0);
        call!(self, "cuStreamEndCapture", stream => usize, &raw mut graph => *mut usize)?;
        call!(
            self, "cuGraphInstantiate", &raw mut executable => *mut usize, graph => usize, 0 => u64
        )?;
        Ok(executable)
    }

    /// # Errors
    /// The error code that the driver returns.
    pub fn launch_graph(&self, executable: usize) -> Answer {
        call!(self, "cuGraphLaunch", executable => usize, 0 => usize)
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    function: usize,
    launch: usize,
}

impl Kernel {
    /// # Errors
    /// The error code that the driver returns.
    pub fn launch(&self, stream: usize, words: &[u64]) -> Answer {
        #[rustfmt::skip]
        type Launch = unsafe extern "C" fn(
            usize, u32, u32, u32, u32, u32, u32, u32, usize, *const *const u64, *const c_void,
        ) -> Code;
        let mut addresses = [null(); 4];
        for (address, word) in addresses.iter_mut().zip(words) {
            *address = std::ptr::from_ref(word);
        }
        // SAFETY: the driver's function, and as many words as the kernel takes.
        let code = unsafe {
            let launch: Launch = transmute_copy(&self.launch);
            let words = addresses.as_ptr();
            launch(self.function, 1, 1, 1, 1, 1, 1, 0, stream, words, null())
        };
        match code {
            SUCCESS => Ok(()),
            code => Err(Refusal(code)),
        }
    }
}
