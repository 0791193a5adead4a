//! Wrappers of the calls that create and destroy contexts, and of those that load code.
//!
//! What these take on the GPU is in no ledger.
#![allow(non_snake_case)]

use super::{
    super::{PROCESS, contexts, room},
    driver::{
        Code, Context, Export, NOT_FOUND, ONLY_DEVICE, OUT_OF_MEMORY, SUCCESS, context_of_green,
        current, current_context, has_primary_context, primary_context,
    },
    is_in_use, wrap,
};
use std::{
    ffi::{c_char, c_int, c_void},
    mem::transmute,
};

wrap! {
    fn cuCtxDestroy_v2(context: usize) |driver| { destroying(context, driver) }

    fn cuCtxDestroy(context: usize) |driver| { destroying(context, driver) }

    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) |driver| {
        let _ = device;
        meeting(context, making(driver))
    }

    fn cuCtxCreate(context: *mut usize, flags: u32, device: c_int) |driver| {
        let _ = (flags, device);
        meeting(context, making(driver))
    }

    fn cuCtxCreate_v2(context: *mut usize, flags: u32, device: c_int) |driver| {
        let _ = (flags, device);
        meeting(context, making(driver))
    }

    fn cuCtxCreate_v3(
        context: *mut usize, parameters: *mut c_void, count: c_int, flags: u32, device: c_int
    ) |driver| {
        let _ = (parameters, count, flags, device);
        meeting(context, making(driver))
    }

    fn cuCtxCreate_v4(context: *mut usize, parameters: *mut c_void, flags: u32, device: c_int) |driver| {
        let _ = (parameters, flags, device);
        meeting(context, making(driver))
    }

    fn cuCtxFromGreenCtx(context: *mut usize, green: usize) |driver| {
        let _ = green;
        let code = meeting(context, driver());
        // SAFETY: the driver has just written there.
        if code == SUCCESS && is_in_use() {
            PROCESS.contexts.green().insert(unsafe { Context(*context) });
        }
        code
    }

    fn cuCtxSetCurrent(context: usize) |driver| { meeting(&raw const context, driver()) }

    fn cuCtxPushCurrent_v2(context: usize) |driver| { meeting(&raw const context, driver()) }

    fn cuCtxPushCurrent(context: usize) |driver| { meeting(&raw const context, driver()) }

    fn cuDevicePrimaryCtxReset(device: c_int) |driver| { resetting(device, driver) }

    fn cuDevicePrimaryCtxReset_v2(device: c_int) |driver| { resetting(device, driver) }

    fn cuDevicePrimaryCtxRelease(device: c_int) |driver| { releasing(device, driver) }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) |driver| { releasing(device, driver) }

    fn cuCtxDetach(context: usize) |driver| { detaching(context, driver) }

    fn cuGreenCtxDestroy(green: usize) |driver| {
        match is_in_use().then(|| context_of_green(green)).flatten() {
            Some(context) => ending_green(context, driver),
            None => driver(),
        }
    }

    // ---- code

    fn cuModuleLoad(module: *mut usize, path: *const c_char) |driver| {
        let _ = (module, path);
        making(driver)
    }

    fn cuModuleLoadData(module: *mut usize, image: *const c_void) |driver| {
        let _ = (module, image);
        making(driver)
    }

    fn cuModuleLoadDataEx(
        module: *mut usize, image: *const c_void, count: u32, options: *mut c_int, values: *mut *mut c_void
    ) |driver| {
        let _ = (module, image, count, options, values);
        making(driver)
    }

    fn cuModuleLoadFatBinary(module: *mut usize, image: *const c_void) |driver| {
        let _ = (module, image);
        making(driver)
    }

    fn cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) |driver| {
        let _ = (function, module, name);
        making(driver)
    }

    fn cuModuleGetGlobal_v2(address: *mut u64, bytes: *mut usize, module: usize, name: *const c_char) |driver| {
        let _ = (address, bytes, module, name);
        making(driver)
    }

    fn cuLibraryLoadData(
        library: *mut usize, image: *const c_void,
        options: *mut c_int, values: *mut *mut c_void, count: u32,
        library_options: *mut c_int, library_values: *mut *mut c_void, library_count: u32
    ) |driver| {
        let _ = (library, image, options, values, count, library_options, library_values, library_count);
        making(driver)
    }

    fn cuLibraryLoadFromFile(
        library: *mut usize, path: *const c_char,
        options: *mut c_int, values: *mut *mut c_void, count: u32,
        library_options: *mut c_int, library_values: *mut *mut c_void, library_count: u32
    ) |driver| {
        let _ = (library, path, options, values, count, library_options, library_values, library_count);
        making(driver)
    }

    fn cuLibraryGetModule(module: *mut usize, library: usize) |driver| {
        let _ = (module, library);
        making(driver)
    }

    fn cuLibraryGetGlobal(address: *mut u64, bytes: *mut usize, library: usize, name: *const c_char) |driver| {
        let _ = (address, bytes, library, name);
        making(driver)
    }

    fn cuKernelGetFunction(function: *mut usize, kernel: usize) |driver| {
        let _ = (function, kernel);
        making(driver)
    }

    fn cuFuncLoad(function: usize) |driver| {
        let _ = function;
        making(driver)
    }
}

/// A context that may compute from now on, so the end of a lease must wait for its work.
fn meeting(context: *const usize, code: Code) -> Code {
    // SAFETY: the driver has just written or read there.
    if code == SUCCESS
        && is_in_use()
        && let Some(context) = unsafe { context.as_ref() }
    {
        PROCESS.contexts.meet(Context(*context));
    }
    code
}

/// Others make room if the driver has none for memory that is in no ledger.
pub(super) fn making(driver: impl Fn() -> Code) -> Code {
    match driver() {
        OUT_OF_MEMORY if is_in_use() => room::with_room(&PROCESS, driver),
        code => code,
    }
}

fn destroying(context: usize, driver: impl FnOnce() -> Code) -> Code {
    let ends = match context {
        0 => current().ok().map(|(context, _)| context),
        context => Some(Context(context)),
    };
    match ends {
        Some(context) if is_in_use() => contexts::end(&PROCESS, &[context], driver, |_| true),
        _ => driver(),
    }
}

fn resetting(device: c_int, driver: impl FnOnce() -> Code) -> Code {
    match is_in_use().then(|| primary_context(device)).flatten() {
        Some(context) => contexts::end(&PROCESS, &[context], driver, |_| true),
        None => driver(),
    }
}

/// Only the calling thread's context can be detached. Detaching it for the last time destroys it, so that it is no
/// longer current.
fn detaching(context: usize, driver: impl FnOnce() -> Code) -> Code {
    let is_current = || current_context() == Some(Context(context));
    match is_in_use() && is_current() {
        true => contexts::end(&PROCESS, &[Context(context)], driver, |_| !is_current()),
        false => driver(),
    }
}

/// A green context is a part of the primary context and keeps that alive.
fn ending_green(context: Context, driver: impl FnOnce() -> Code) -> Code {
    let contexts: Vec<Context> = [Some(context), primary_context(ONLY_DEVICE)]
        .into_iter()
        .flatten()
        .collect();
    let is_over = |one| one == context || !has_primary_context(ONLY_DEVICE);
    let code = contexts::end(&PROCESS, &contexts, driver, is_over);
    if code == SUCCESS {
        PROCESS.contexts.green().remove(&context);
    }
    code
}

/// Releasing the last reference to a device's primary context destroys it.
fn releasing(device: c_int, driver: impl FnOnce() -> Code) -> Code {
    match is_in_use().then(|| primary_context(device)).flatten() {
        Some(context) => contexts::end(&PROCESS, &[context], driver, |_| {
            !has_primary_context(device)
        }),
        None => driver(),
    }
}
