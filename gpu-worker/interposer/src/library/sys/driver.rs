//! The driver's functions that the interposer itself calls, under their real names and past its own wrappers.
//!
//! A code is a plain number, because newer drivers return new ones.

pub(in super::super) use super::structures::{Access, ONLY_DEVICE, Properties};
pub(super) use super::structures::{Location, ON_DEVICE, PINNED};

use super::{
    super::heap::Range,
    host::{RTLD_LAZY, dlopen},
    loader::real_dlsym,
};
use std::{
    ffi::{CStr, c_char, c_int, c_void},
    mem::transmute,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

pub(in super::super) type Code = i32;
pub(in super::super) const SUCCESS: Code = 0;
pub(in super::super) const INVALID_VALUE: Code = 1;
pub(in super::super) const OUT_OF_MEMORY: Code = 2;

/// The driver ends because its process exits.
pub(in super::super) const DEINITIALIZED: Code = 4;
pub(in super::super) const INVALID_CONTEXT: Code = 201;
pub(in super::super) const NOT_FOUND: Code = 500;
pub(in super::super) const CONTEXT_IS_DESTROYED: Code = 709;
pub(in super::super) const NOT_SUPPORTED: Code = 801;
pub(in super::super) const SYSTEM_NOT_READY: Code = 802;

/// After one of these codes the driver answers nothing else until the process ends, or what is on the GPU cannot be
/// trusted. [`CONTEXT_IS_DESTROYED`] is not among them: the program itself destroyed the context.
pub(in super::super) const fn is_sticky(code: Code) -> bool {
    matches!(
        code,
        214 | 220 | 226 | 700 | 702 | 710 | 714..=719 | 721 | 999
    )
}

/// Whether a call was refused because of a capture.
pub(in super::super) const fn is_about_captures(code: Code) -> bool {
    matches!(code, 900..=908)
}

/// The driver, or the library that monitors it.
pub(super) struct Library {
    file: &'static CStr,
    handle: AtomicUsize,
}

static CUDA: Library = Library::new(c"libcuda.so.1");
static NVML: Library = Library::new(c"libnvidia-ml.so.1");

impl Library {
    const fn new(file: &'static CStr) -> Self {
        Self {
            file,
            handle: AtomicUsize::new(0),
        }
    }

    /// The library that exports a function of this name.
    pub(super) const fn of(name: &str) -> &'static Self {
        match name.as_bytes() {
            [b'n', b'v', b'm', b'l', ..] => &NVML,
            _ => &CUDA,
        }
    }

    /// Loads the library if necessary and if `flags` allow it.
    pub(super) fn open(&self, flags: c_int) -> Option<*mut c_void> {
        let known = self.handle.load(Relaxed);
        if known != 0 {
            return Some(known as *mut c_void);
        }
        // SAFETY: the name ends with nul.
        let found = unsafe { dlopen(self.file.as_ptr(), RTLD_LAZY | flags) };
        self.handle.store(found as usize, Relaxed);
        (!found.is_null()).then_some(found)
    }

    fn address_of(&self, name: &CStr) -> Option<usize> {
        // SAFETY: the name ends with nul, and the library stays loaded.
        let found = unsafe { real_dlsym(self.open(0)?, name.as_ptr()) };
        (!found.is_null()).then_some(found as usize)
    }
}

/// A function that a library exports, found when it is first needed.
pub(super) struct Export {
    library: &'static Library,
    name: &'static CStr,
    address: AtomicUsize,
}

impl Export {
    pub(super) const fn new(name_and_nul: &'static str) -> Self {
        let Ok(name) = CStr::from_bytes_with_nul(name_and_nul.as_bytes()) else {
            panic!("it ends with its only nul");
        };
        Self {
            library: Library::of(name_and_nul),
            name,
            address: AtomicUsize::new(0),
        }
    }

    /// `None` if the library does not have the function, because it is older or newer.
    #[inline]
    pub(super) fn address(&self) -> Option<usize> {
        match self.address.load(Relaxed) {
            0 => self.find(),
            address => Some(address),
        }
    }

    #[cold]
    fn find(&self) -> Option<usize> {
        let found = self.library.address_of(self.name)?;
        self.address.store(found, Relaxed);
        Some(found)
    }
}

/// The address of the function that the driver exports under this name.
pub(super) fn export_address(name: &str) -> Option<usize> {
    let mut with_nul = [0; 64];
    with_nul.get_mut(..name.len() + 1)?[..name.len()].copy_from_slice(name.as_bytes());
    CUDA.address_of(CStr::from_bytes_until_nul(&with_nul).ok()?)
}

/// Defines functions that call the driver's function of a name, and return `NOT_FOUND` if it has none.
macro_rules! driver {
    ($($visible:vis fn $function:ident($($argument:ident: $kind:ty),*) = $name:ident;)*) => {$(
        $visible fn $function($($argument: $kind),*) -> Code {
            static EXPORT: Export = Export::new(concat!(stringify!($name), "\0"));
            let Some(address) = EXPORT.address() else { return NOT_FOUND };
            // SAFETY: the driver's function of this name has this signature; callers pass valid arguments.
            unsafe {
                let function: unsafe extern "C" fn($($kind),*) -> Code = transmute(address);
                function($($argument),*)
            }
        }
    )*};
}

driver! {
    fn primary_state(device: c_int, flags: *mut u32, is_active: *mut c_int) = cuDevicePrimaryCtxGetState;
    fn device_get_attribute(value: *mut c_int, attribute: c_int, device: c_int) = cuDeviceGetAttribute;
    fn graph_mem_attribute(device: c_int, attribute: c_int, value: *mut u64) = cuDeviceGetGraphMemAttribute;
    fn device_uuid(uuid: *mut [u8; 16], device: c_int) = cuDeviceGetUuid;
    fn device_total_mem(bytes: *mut usize, device: c_int) = cuDeviceTotalMem_v2;
    fn device_get_mem_pool(pool: *mut usize, device: c_int) = cuDeviceGetMemPool;
    fn ctx_get_current(context: *mut usize) = cuCtxGetCurrent;
    fn ctx_get_device(device: *mut c_int) = cuCtxGetDevice;
    fn ctx_push_current(context: usize) = cuCtxPushCurrent_v2;
    fn ctx_pop_current(context: *mut usize) = cuCtxPopCurrent_v2;
    fn ctx_synchronize() = cuCtxSynchronize;
    fn stream_is_capturing(stream: usize, status: *mut c_int) = cuStreamIsCapturing;
    fn thread_exchange_capture_mode(mode: *mut c_int) = cuThreadExchangeStreamCaptureMode;
    fn primary_retain(context: *mut usize, device: c_int) = cuDevicePrimaryCtxRetain;
    fn primary_release(device: c_int) = cuDevicePrimaryCtxRelease_v2;
    fn green_context(context: *mut usize, green: usize) = cuCtxFromGreenCtx;
    fn stream_destroy(stream: usize) = cuStreamDestroy_v2;
    fn stream_create(stream: *mut usize, flags: u32) = cuStreamCreate;
    fn stream_synchronize(stream: usize) = cuStreamSynchronize;
    fn event_create(event: *mut usize, flags: u32) = cuEventCreate;
    fn event_record(event: usize, stream: usize) = cuEventRecord;
    fn ctx_record_event(context: usize, event: usize) = cuCtxRecordEvent;
    fn event_query(event: usize) = cuEventQuery;
    fn event_synchronize(event: usize) = cuEventSynchronize;
    fn event_destroy(event: usize) = cuEventDestroy_v2;
    fn mem_get_info(free: *mut usize, total: *mut usize) = cuMemGetInfo_v2;
    fn mem_address_reserve(address: *mut u64, bytes: usize, aligned: usize, at: u64, flags: u64) = cuMemAddressReserve;
    fn mem_address_free(address: u64, bytes: usize) = cuMemAddressFree;
    fn mem_create(handle: *mut u64, bytes: usize, properties: *const Properties, flags: u64) = cuMemCreate;
    fn mem_release(handle: u64) = cuMemRelease;
    fn mem_map(address: u64, bytes: usize, from: usize, handle: u64, flags: u64) = cuMemMap;
    fn mem_unmap(address: u64, bytes: usize) = cuMemUnmap;
    fn mem_set_access(address: u64, bytes: usize, access: *const Access, count: usize) = cuMemSetAccess;
    fn memcpy_from_device(to: usize, from: u64, bytes: usize, stream: usize) = cuMemcpyDtoHAsync_v2;
    fn memcpy_to_device(to: u64, from: usize, bytes: usize, stream: usize) = cuMemcpyHtoDAsync_v2;
    fn mem_host_register(address: usize, bytes: usize, flags: u32) = cuMemHostRegister_v2;
    pub(super) fn host_unregister(address: usize) = cuMemHostUnregister;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Context(pub(super) usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Stream(pub(in super::super) usize);

/// The thread's own default stream.
pub(in super::super) const PER_THREAD: Stream = Stream(2);

impl Stream {
    /// Whether every context has this stream.
    pub(in super::super) fn is_default(self) -> bool {
        self.0 <= PER_THREAD.0
    }
}

pub(super) fn host_register(address: usize, bytes: usize) -> Code {
    mem_host_register(address, bytes, 0)
}

/// The calling thread's context, if it has one.
pub(in super::super) fn current_context() -> Option<Context> {
    let mut context = 0;
    (ctx_get_current(&raw mut context) == SUCCESS && context != 0).then_some(Context(context))
}

/// The calling thread's context, and its device.
pub(in super::super) fn current() -> Result<(Context, c_int), Code> {
    let (mut context, mut device) = (0, 0);
    match ctx_get_current(&raw mut context) {
        SUCCESS if context == 0 => Err(INVALID_CONTEXT),
        SUCCESS => match ctx_get_device(&raw mut device) {
            SUCCESS => Ok((Context(context), device)),
            code => Err(code),
        },
        code => Err(code),
    }
}

/// Runs `action` in the calling thread's context, or else in the primary one.
pub(in super::super) fn in_some_context<T>(
    action: impl FnOnce() -> Result<T, Code>,
) -> Result<T, Code> {
    if current_context().is_some() {
        return action();
    }
    primary_context(ONLY_DEVICE)
        .ok_or(INVALID_CONTEXT)?
        .with(action)
}

pub(in super::super) fn total_bytes(device: c_int) -> u64 {
    let mut bytes = 0;
    device_total_mem(&raw mut bytes, device);
    bytes as u64
}

/// The UUID of the whole GPU, even if the program has a slice of it; 0 if the driver does not report it.
pub(in super::super) fn uuid(device: c_int) -> u128 {
    let mut uuid = [0; 16];
    device_uuid(&raw mut uuid, device);
    u128::from_be_bytes(uuid)
}

/// The pool of allocations that name none.
pub(in super::super) fn pool_in_use() -> usize {
    let mut pool = 0;
    device_get_mem_pool(&raw mut pool, ONLY_DEVICE);
    pool
}

/// Free memory of this context's GPU, whichever processes use the rest.
pub(in super::super) fn free_bytes(context: Context) -> u64 {
    let free = context.with(|| {
        let (mut free, mut total) = (0, 0);
        as_result(mem_get_info(&raw mut free, &raw mut total))?;
        Ok(free as u64)
    });
    free.unwrap_or(0)
}

pub(in super::super) fn has_primary_context(device: c_int) -> bool {
    let (mut flags, mut is_active) = (0, 0);
    primary_state(device, &raw mut flags, &raw mut is_active) == SUCCESS && is_active != 0
}

/// A device's primary context, if it exists.
pub(in super::super) fn primary_context(device: c_int) -> Option<Context> {
    if !has_primary_context(device) {
        return None;
    }
    let mut context = 0;
    let code = primary_retain(&raw mut context, device);
    (code == SUCCESS).then(|| {
        primary_release(device);
        Context(context)
    })
}

/// The context as which calls that take contexts know a green context.
pub(in super::super) fn context_of_green(green: usize) -> Option<Context> {
    let mut context = 0;
    (green_context(&raw mut context, green) == SUCCESS).then_some(Context(context))
}

/// Whether addresses can be reserved and memory can be put behind them.
pub(in super::super) fn can_map_memory(device: c_int) -> bool {
    const VIRTUAL_MEMORY_MANAGEMENT: c_int = 102;
    let mut value = 0;
    device_get_attribute(&raw mut value, VIRTUAL_MEMORY_MANAGEMENT, device);
    value != 0
}

/// How much memory of the device this process's graphs have for allocations that were captured.
pub(in super::super) fn graph_bytes(device: c_int) -> u64 {
    const RESERVED_NOW: c_int = 2;
    let mut bytes = 0;
    graph_mem_attribute(device, RESERVED_NOW, &raw mut bytes);
    bytes
}

pub(in super::super) fn as_result(code: Code) -> Result<(), Code> {
    match code {
        SUCCESS => Ok(()),
        code => Err(code),
    }
}

/// Also true for a stream that joined the capture of another stream.
pub(in super::super) fn is_capturing(stream: Stream) -> bool {
    let mut status = 0;
    stream_is_capturing(stream.0, &raw mut status) == SUCCESS && status != 0
}

const RELAXED: c_int = 2;

/// From now on, the calling thread never disturbs a capture of another thread.
pub(in super::super) fn relax_captures() {
    let mut mode = RELAXED;
    thread_exchange_capture_mode(&raw mut mode);
}

/// Calls `work`, which disturbs no capture of another thread.
pub(in super::super) fn beside_captures<T>(work: impl FnOnce() -> T) -> T {
    let mut mode = RELAXED;
    thread_exchange_capture_mode(&raw mut mode);
    let result = work();
    thread_exchange_capture_mode(&raw mut mode);
    result
}

/// Waits until the calling thread's context has nothing to do.
pub(in super::super) fn synchronize() -> Result<(), Code> {
    as_result(ctx_synchronize())
}

impl Context {
    pub(in super::super) const NONE: Self = Self(0);

    pub(in super::super) fn is_none(self) -> bool {
        self.0 == 0
    }

    /// Runs `action` with this as the calling thread's context.
    pub(in super::super) fn with<T>(
        self,
        action: impl FnOnce() -> Result<T, Code>,
    ) -> Result<T, Code> {
        as_result(ctx_push_current(self.0))?;
        let result = action();
        let mut context = 0;
        ctx_pop_current(&raw mut context);
        result
    }

    /// The same, for an action that must run even if the context has ended.
    pub(in super::super) fn with_if_it_lives<T>(self, action: impl FnOnce() -> T) -> T {
        let lives = !self.is_none() && ctx_push_current(self.0) == SUCCESS;
        let result = action();
        if lives {
            let mut context = 0;
            ctx_pop_current(&raw mut context);
        }
        result
    }
}

/// A mark in a stream. It must be dropped before its context ends.
#[derive(Debug)]
pub(in super::super) struct Event {
    handle: usize,
    context: Context,
}

impl Event {
    pub(in super::super) fn record(stream: Stream) -> Option<Self> {
        Self::record_again(None, stream, current_context()?)
    }

    /// Reuses an event that was reached, if it belongs to this context, which is the current one.
    pub(in super::super) fn record_again(
        reached: Option<Self>,
        stream: Stream,
        context: Context,
    ) -> Option<Self> {
        let event = match reached.filter(|event| event.context == context) {
            Some(event) => event,
            None => Self::create(context)?,
        };
        (event_record(event.handle, stream.0) == SUCCESS).then_some(event)
    }

    /// Records a mark behind all work of a context. Drivers can do that since 12.5.
    pub(in super::super) fn record_in(context: Context) -> Option<Self> {
        context
            .with(|| {
                let event = Self::create(context).ok_or(NOT_FOUND)?;
                as_result(ctx_record_event(context.0, event.handle)).map(|()| event)
            })
            .ok()
    }

    /// `context` is the current one.
    fn create(context: Context) -> Option<Self> {
        const BLOCKING_WITHOUT_TIMES: u32 = 1 | 2;
        let mut handle = 0;
        let code = event_create(&raw mut handle, BLOCKING_WITHOUT_TIMES);
        (code == SUCCESS).then_some(Self { handle, context })
    }

    /// `None` until the mark is reached.
    pub(in super::super) fn outcome(&self) -> Option<Code> {
        const NOT_READY: Code = 600;
        Some(event_query(self.handle)).filter(|code| *code != NOT_READY)
    }

    pub(in super::super) fn context(&self) -> Context {
        self.context
    }

    pub(in super::super) fn is_reached(&self) -> bool {
        // An error says nothing about the work before the mark; the next drain reports it.
        event_query(self.handle) == SUCCESS
    }

    pub(in super::super) fn wait(&self) -> Result<(), Code> {
        as_result(event_synchronize(self.handle))
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        event_destroy(self.handle);
    }
}

/// Reserves addresses without memory behind them.
pub(in super::super) fn reserve(bytes: u64) -> Result<u64, Code> {
    let mut address = 0;
    match mem_address_reserve(&raw mut address, bytes as usize, 0, 0, 0) {
        SUCCESS => Ok(address),
        code => Err(code),
    }
}

pub(in super::super) fn unreserve(address: u64, bytes: u64) {
    mem_address_free(address, bytes as usize);
}

/// Puts GPU memory behind reserved addresses. Releasing it takes the range and the returned handle.
pub(in super::super) fn back(range: Range, device: c_int) -> Result<u64, Code> {
    const READ_WRITE: c_int = 3;
    let location = Location {
        kind: ON_DEVICE,
        id: device,
    };
    let properties = Properties {
        kind: PINNED,
        handle_types: 0,
        location,
        _windows: std::ptr::null_mut(),
        flags: [0; 8],
    };
    let access = Access {
        location,
        flags: READ_WRITE,
    };
    let (mut handle, bytes) = (0, range.bytes as usize);
    let code = mem_create(&raw mut handle, bytes, &raw const properties, 0);
    if code != SUCCESS {
        return Err(code);
    }
    let backed = map(range, handle)
        .and_then(|()| set_access(range, &[access]).inspect_err(|_| _ = unmap(range)));
    if let Err(code) = backed {
        mem_release(handle);
        return Err(code);
    }
    Ok(handle)
}

pub(in super::super) fn unback(range: Range, handle: u64) -> Result<(), Code> {
    unmap(range).and(as_result(mem_release(handle)))
}

/// Puts the memory of a handle, from its beginning on, behind reserved addresses.
pub(in super::super) fn map(range: Range, handle: u64) -> Result<(), Code> {
    as_result(mem_map(range.address, range.bytes as usize, 0, handle, 0))
}

pub(in super::super) fn unmap(range: Range) -> Result<(), Code> {
    as_result(mem_unmap(range.address, range.bytes as usize))
}

pub(in super::super) fn set_access(range: Range, access: &[Access]) -> Result<(), Code> {
    let (address, bytes) = (range.address, range.bytes as usize);
    as_result(mem_set_access(
        address,
        bytes,
        access.as_ptr(),
        access.len(),
    ))
}

/// A stream that does not wait for any other.
pub(in super::super) fn own_stream() -> Result<Stream, Code> {
    const NON_BLOCKING: u32 = 1;
    let mut stream = 0;
    match stream_create(&raw mut stream, NON_BLOCKING) {
        SUCCESS => Ok(Stream(stream)),
        code => Err(code),
    }
}

pub(in super::super) fn end_stream(stream: Stream) {
    stream_destroy(stream.0);
}

pub(in super::super) fn copy_out(
    to: usize,
    from: u64,
    bytes: u64,
    stream: Stream,
) -> Result<(), Code> {
    as_result(memcpy_from_device(to, from, bytes as usize, stream.0))
}

pub(in super::super) fn copy_in(
    to: u64,
    from: usize,
    bytes: u64,
    stream: Stream,
) -> Result<(), Code> {
    as_result(memcpy_to_device(to, from, bytes as usize, stream.0))
}

pub(in super::super) fn wait_for(stream: Stream) -> Result<(), Code> {
    as_result(stream_synchronize(stream.0))
}

/// The name that a look-up asks for, given as a C string.
pub(super) unsafe fn name<'a>(name: *const c_char) -> Option<&'a str> {
    if name.is_null() {
        return None;
    }
    // SAFETY: the caller passes valid arguments.
    unsafe { CStr::from_ptr(name) }.to_str().ok()
}
