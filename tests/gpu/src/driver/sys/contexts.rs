//! Devices, contexts, modules, and the names of error codes.

use super::{api, put};
use crate::{
    CAPTURE_UNSUPPORTED, CONTEXTS, Code, Context, INVALID_CONTEXT, INVALID_DEVICE, INVALID_HANDLE,
    INVALID_VALUE, LIBRARY, NOT_FOUND, OUT_OF_MEMORY, PRIMARY, SUCCESS, card::card, context,
    engine, objects, spoils_captures, stale,
};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

pub(crate) const VERSION: c_int = 13000;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(_flags: u32) -> Code {
    crate::initialize()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Code {
    unsafe { put(version, VERSION) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: Code, name: *mut *const c_char) -> Code {
    let known: &CStr = match code {
        0 => c"CUDA_SUCCESS",
        1 => c"CUDA_ERROR_INVALID_VALUE",
        2 => c"CUDA_ERROR_OUT_OF_MEMORY",
        3 => c"CUDA_ERROR_NOT_INITIALIZED",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        _ => c"CUDA_ERROR_UNKNOWN",
    };
    unsafe { put(name, known.as_ptr()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: Code, text: *mut *const c_char) -> Code {
    unsafe { cuGetErrorName(code, text) }
}

fn make(context: usize) -> bool {
    let bytes = card().context_bytes();
    let fits = card().take(bytes);
    if fits {
        objects().contexts.insert(
            context,
            Context {
                bytes,
                last: 0,
                holds: 1,
            },
        );
    }
    fits
}

fn end(context: usize) {
    super::pinned::end(context);
    let ended = objects().end(context);
    card().give(ended.map_or(0, |context| context.bytes));
}

/// For tests: a context that no call of the driver has returned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_test_gpu_context(context: *mut usize) -> Code {
    let number = objects().number();
    match make(number) {
        true => unsafe { put(context, number) },
        false => OUT_OF_MEMORY,
    }
}

/// Attributes of the device, like those of a GPU of 2017 (compute capability 7.0).
fn property(attribute: c_int) -> c_int {
    const PROPERTIES: &[(c_int, c_int)] = &[
        (1, 1024),
        (2, 1024),
        (3, 1024),
        (4, 64),
        (5, c_int::MAX),
        (6, 65535),
        (7, 65535),
        (8, 49152),
        (9, 65536),
        (10, 32),
        (11, c_int::MAX),
        (12, 65536),
        (13, 1_530_000),
        (14, 512),
        (15, 1),
        (16, 80),
        (19, 1),
        (31, 1),
        (36, 877_000),
        (37, 4096),
        (38, 6_291_456),
        (39, 2048),
        (40, 1),
        (41, 1),
        (75, 7),
        (76, 0),
        (78, 1),
        (79, 1),
        (80, 1),
        (81, 98304),
        (82, 65536),
        (83, 1),
        (86, 1),
        (87, 2),
        (88, 1),
        (89, 1),
        (90, 1),
        (92, 1),
        (93, 1),
        (94, 1),
        (95, 1),
        (96, 1),
        (97, 98304),
        (98, 1),
        (99, 1),
        (102, 1),
        (103, 1),
        (115, 1),
        (144, 1),
    ];
    let found = PROPERTIES.iter().find(|(one, _)| *one == attribute);
    found.map_or(0, |(_, value)| *value)
}

api! {
    fn cuDeviceGetCount(count: *mut c_int) { put(count, 1) }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        if ordinal == 0 { put(device, 0) } else { INVALID_DEVICE }
    }

    fn cuDeviceGetName(name: *mut c_char, room: c_int, _device: c_int) {
        let text = b"Host memory, no GPU\0";
        let bytes = text.len().min(room as usize);
        std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), bytes);
        SUCCESS
    }

    fn cuDeviceGetUuid(uuid: *mut [u8; 16], _device: c_int) { put(uuid, card().uuid()) }

    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], _device: c_int) { put(uuid, card().uuid()) }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) { put(bytes, card().total_bytes() as usize) }

    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) {
        put(value, property(attribute))
    }

    fn cuDevicePrimaryCtxRetain(context: *mut usize, _device: c_int) {
        if objects().primary_holds == 0 && !make(PRIMARY) {
            return OUT_OF_MEMORY;
        }
        objects().primary_holds += 1;
        put(context, PRIMARY)
    }

    fn cuDevicePrimaryCtxRelease_v2(_device: c_int) {
        let mut objects = objects();
        objects.primary_holds = objects.primary_holds.saturating_sub(1);
        let is_over = objects.primary_holds == 0;
        drop(objects);
        if is_over {
            end(PRIMARY);
        }
        SUCCESS
    }

    fn cuDevicePrimaryCtxReset_v2(_device: c_int) {
        objects().primary_holds = 0;
        end(PRIMARY);
        SUCCESS
    }

    fn cuDevicePrimaryCtxGetState(_device: c_int, flags: *mut u32, is_active: *mut c_int) {
        put(flags, 0);
        put(is_active, c_int::from(objects().primary_holds > 0))
    }

    fn cuCtxCreate_v2(context: *mut usize, _flags: u32, _device: c_int) {
        let number = objects().number();
        if !make(number) {
            return OUT_OF_MEMORY;
        }
        CONTEXTS.with_borrow_mut(|stack| stack.push(number));
        put(context, number)
    }

    fn cuCtxCreate(context: *mut usize, flags: u32, device: c_int) { cuCtxCreate_v2(context, flags, device) }

    fn cuCtxCreate_v3(
        context: *mut usize, _parameters: *mut c_void, _count: c_int, flags: u32, device: c_int,
    ) {
        cuCtxCreate_v2(context, flags, device)
    }

    fn cuCtxCreate_v4(context: *mut usize, _parameters: *mut c_void, flags: u32, device: c_int) {
        cuCtxCreate_v2(context, flags, device)
    }

    fn cuCtxAttach(context: *mut usize, _flags: u32) {
        let current = match crate::context() {
            Ok(current) => current,
            Err(code) => return code,
        };
        if let Some(context) = objects().contexts.get_mut(&current) {
            context.holds += 1;
        }
        put(context, current)
    }

    // It must be current to the calling thread, and is destroyed if its usage count goes to 0.
    fn cuCtxDetach(context: usize) {
        if crate::context() != Ok(context) {
            return INVALID_CONTEXT;
        }
        let holds = objects().contexts.get_mut(&context).map_or(0, |one| {
            one.holds -= 1;
            one.holds
        });
        if holds == 0 { cuCtxDestroy_v2(context) } else { SUCCESS }
    }

    fn cuCtxDestroy_v2(context: usize) {
        if !objects().contexts.contains_key(&context) {
            return stale();
        }
        CONTEXTS.with_borrow_mut(|stack| stack.retain(|one| *one != context));
        end(context);
        SUCCESS
    }

    // "This API will retain the primary context on device `dev`, which will is released when the green context is
    // destroyed."
    fn cuGreenCtxCreate(green: *mut usize, _resources: usize, device: c_int, _flags: c_uint) {
        let mut primary = 0;
        let code = cuDevicePrimaryCtxRetain(&raw mut primary, device);
        if code != SUCCESS {
            return code;
        }
        let mut objects = objects();
        let (handle, context) = (objects.number(), objects.number());
        objects.contexts.insert(context, Context { bytes: 0, last: 0, holds: 1 });
        objects.green.insert(handle, context);
        put(green, handle)
    }

    fn cuCtxFromGreenCtx(context: *mut usize, green: usize) {
        let known = objects().green.get(&green).copied();
        known.map_or(INVALID_CONTEXT, |known| put(context, known))
    }

    fn cuGreenCtxDestroy(green: usize) {
        let Some(context) = objects().green.remove(&green) else { return INVALID_CONTEXT };
        CONTEXTS.with_borrow_mut(|stack| stack.retain(|one| *one != context));
        end(context);
        cuDevicePrimaryCtxRelease_v2(0)
    }

    fn cuCtxGetCurrent(context: *mut usize) {
        put(context, CONTEXTS.with_borrow(|stack| stack.last().copied().unwrap_or(0)))
    }

    fn cuCtxSetCurrent(context: usize) {
        CONTEXTS.with_borrow_mut(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        });
        SUCCESS
    }

    fn cuCtxPushCurrent_v2(context: usize) {
        if context == 0 {
            return INVALID_CONTEXT;
        }
        if !objects().contexts.contains_key(&context) {
            stale();
            return INVALID_CONTEXT;
        }
        CONTEXTS.with_borrow_mut(|stack| stack.push(context));
        SUCCESS
    }

    fn cuCtxPopCurrent_v2(context: *mut usize) {
        match CONTEXTS.with_borrow_mut(|stack| stack.pop()) {
            Some(popped) => { put(context, popped); SUCCESS }
            None => INVALID_CONTEXT,
        }
    }

    fn cuCtxGetDevice(device: *mut c_int) {
        if CONTEXTS.with_borrow(|stack| stack.is_empty()) { INVALID_CONTEXT } else { put(device, 0) }
    }

    fn cuCtxSynchronize() {
        if spoils_captures(true) {
            return CAPTURE_UNSUPPORTED;
        }
        let context = match context() {
            Ok(context) => context,
            Err(code) => return code,
        };
        let last = objects().last_in(context).unwrap_or(0);
        // Waits only for work of this context.
        engine::wait_for(last);
        crate::STICKY.load(std::sync::atomic::Ordering::SeqCst)
    }

    fn cuModuleLoadData(module: *mut usize, image: *const c_void) {
        if let Err(code) = context() {
            return code;
        }
        match image.is_null() {
            true => INVALID_VALUE,
            false if card().load_code() => put(module, 0x100),
            false => OUT_OF_MEMORY,
        }
    }

    fn cuModuleUnload(_module: usize) { SUCCESS }

    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) {
        if !matches!(module, 0x100 | LIBRARY) || name.is_null() {
            return INVALID_HANDLE;
        }
        let Ok(name) = CStr::from_ptr(name).to_str() else { return NOT_FOUND };
        let mut objects = objects();
        let number = objects.number();
        objects.functions.insert(number, name.to_owned());
        put(function, number)
    }
}
