//! Look-ups by name, version and kind of default stream.

use super::{
    checkpoints::*, contexts::*, graphs::*, libraries::*, mapping::*, memory::*, pinned::*,
    pools::*, streams::*,
};
use crate::{Code, INVALID_VALUE, NOT_FOUND, SUCCESS};
use std::ffi::{CStr, c_char, c_int};

/// A name, the version since which it means this function, whether that is the variant for the thread's own
/// default stream, and the function. The newest version comes first.
struct Entry(&'static str, c_int, bool, *const ());

unsafe impl Sync for Entry {}

const PER_THREAD_STREAM: u64 = 2;

/// The names after `=` have had the same meaning since their first version.
macro_rules! entries {
    ($($name:literal $since:literal $is_per_thread:literal $function:ident;)* = $($same:ident)*) => {
        &[
            $(Entry($name, $since, $is_per_thread, $function as *const ()),)*
            $(Entry(stringify!($same), 2000, false, $same as *const ()),)*
        ]
    };
}

static ENTRIES: &[Entry] = entries! {
    "cuArrayCreate" 3020 false cuArrayCreate_v2;
    "cuCheckpointProcessCheckpoint" 12080 false cuCheckpointProcessCheckpoint;
    "cuCheckpointProcessGetState" 12080 false cuCheckpointProcessGetState;
    "cuCheckpointProcessLock" 12080 false cuCheckpointProcessLock;
    "cuCheckpointProcessRestore" 12080 false cuCheckpointProcessRestore;
    "cuCheckpointProcessUnlock" 12080 false cuCheckpointProcessUnlock;
    "cuCtxCreate" 3020 false cuCtxCreate_v2;
    "cuCtxDestroy" 4000 false cuCtxDestroy_v2;
    "cuCtxPopCurrent" 4000 false cuCtxPopCurrent_v2;
    "cuCtxPushCurrent" 4000 false cuCtxPushCurrent_v2;
    "cuDeviceGetUuid" 11040 false cuDeviceGetUuid_v2;
    "cuDeviceGetUuid" 9020 false cuDeviceGetUuid;
    "cuDevicePrimaryCtxRelease" 11000 false cuDevicePrimaryCtxRelease_v2;
    "cuDevicePrimaryCtxReset" 11000 false cuDevicePrimaryCtxReset_v2;
    "cuDeviceTotalMem" 3020 false cuDeviceTotalMem_v2;
    "cuEventDestroy" 4000 false cuEventDestroy_v2;
    "cuGetProcAddress" 12000 false cuGetProcAddress_v2;
    "cuGetProcAddress" 11030 false cuGetProcAddress;
    "cuGraphInstantiate" 12000 false cuGraphInstantiateWithFlags;
    "cuLaunchKernel" 7000 true cuLaunchKernel_ptsz;
    "cuLaunchKernel" 4000 false cuLaunchKernel;
    "cuLaunchKernelEx" 11060 false cuLaunchKernelEx;
    "cuMemAlloc" 3020 false cuMemAlloc_v2;
    "cuMemFree" 99000 false cuMemFree_v9;
    "cuMemFree" 3020 false cuMemFree_v2;
    "cuMemGetAddressRange" 3020 false cuMemGetAddressRange_v2;
    "cuMemGetInfo" 3020 false cuMemGetInfo_v2;
    "cuMemHostRegister" 6050 false cuMemHostRegister_v2;
    "cuMemcpyDtoD" 3020 false cuMemcpyDtoD_v2;
    "cuMemcpyDtoDAsync" 3020 false cuMemcpyDtoDAsync_v2;
    "cuMemcpyDtoH" 3020 false cuMemcpyDtoH_v2;
    "cuMemcpyDtoHAsync" 3020 false cuMemcpyDtoHAsync_v2;
    "cuMemcpyHtoD" 3020 false cuMemcpyHtoD_v2;
    "cuMemcpyHtoDAsync" 3020 false cuMemcpyHtoDAsync_v2;
    "cuMemsetD32" 3020 false cuMemsetD32_v2;
    "cuMemsetD8" 3020 false cuMemsetD8_v2;
    "cuStreamBeginCapture" 10010 false cuStreamBeginCapture_v2;
    "cuStreamDestroy" 4000 false cuStreamDestroy_v2;
    "cuStreamWaitValue64" 11070 false cuStreamWaitValue64_v2;
    "cuStreamWriteValue64" 11070 false cuStreamWriteValue64_v2;
    "cuCtxRecordEvent" 12050 false cuCtxRecordEvent;
    "cuDevicePrimaryCtxSetFlags" 11000 false cuDevicePrimaryCtxSetFlags_v2;
    "cuDevicePrimaryCtxSetFlags" 7000 false cuDevicePrimaryCtxSetFlags;
    "cuLaunchCooperativeKernel" 9000 true cuLaunchCooperativeKernel_ptsz;
    "cuLaunchCooperativeKernel" 9000 false cuLaunchCooperativeKernel;
    "cuMemAllocHost" 3020 false cuMemAllocHost_v2;
    "cuMemAllocPitch" 3020 false cuMemAllocPitch_v2;
    "cuMemHostGetDevicePointer" 3020 false cuMemHostGetDevicePointer_v2;
    "cuModuleGetGlobal" 3020 false cuModuleGetGlobal_v2;
    "cuStreamGetCaptureInfo" 12030 false cuStreamGetCaptureInfo_v3;
    "cuStreamGetCaptureInfo" 11030 false cuStreamGetCaptureInfo_v2;
    "cuStreamGetCaptureInfo" 10010 false cuStreamGetCaptureInfo;
    = cuCtxFromGreenCtx cuGreenCtxCreate cuGreenCtxDestroy cuPointerSetAttribute cuStreamWaitEvent cuArrayDestroy cuCtxAttach cuCtxDetach cuCtxGetCurrent
      cuDestroyExternalMemory cuDeviceGetDefaultMemPool cuImportExternalMemory
      cuDeviceGetMemPool cuMemAllocFromPoolAsync cuMemGetDefaultMemPool cuMemGetMemPool cuMemRetainAllocationHandle
      cuMemPoolCreate cuMemPoolDestroy cuCtxGetDevice cuCtxSetCurrent cuCtxSynchronize cuDeviceGet
      cuDeviceGetAttribute cuDeviceGetCount cuDeviceGetGraphMemAttribute cuDeviceGetName cuDevicePrimaryCtxGetState
      cuDevicePrimaryCtxRetain cuDriverGetVersion cuEventCreate cuEventQuery cuEventRecord cuEventSynchronize
      cuGetErrorName cuGetErrorString cuGraphDestroy cuGraphExecDestroy cuGraphInstantiateWithFlags cuGraphLaunch
      cuInit cuLaunchHostFunc cuIpcGetMemHandle cuMemAddressFree cuMemAddressReserve cuMemAllocAsync cuMemAllocManaged
      cuMemCreate cuMemFreeAsync cuMemFreeHost cuMemGetAccess cuMemGetAllocationGranularity cuMemHostAlloc
      cuMemHostUnregister
      cuMemMap cuMemRelease cuMemSetAccess cuMemUnmap cuMemcpy cuMemcpyAsync cuMemsetD32Async cuMemsetD8Async
      cuModuleGetFunction cuModuleLoadData cuModuleUnload cuPointerGetAttribute cuStreamCreate cuStreamEndCapture
      cuStreamIsCapturing cuStreamQuery cuStreamSynchronize cuThreadExchangeStreamCaptureMode cuCtxGetApiVersion
      cuCtxGetCacheConfig cuCtxGetFlags cuCtxGetId cuCtxGetLimit cuCtxGetSharedMemConfig cuCtxGetStreamPriorityRange
      cuCtxSetCacheConfig cuCtxSetLimit cuDeviceCanAccessPeer cuDeviceComputeCapability cuDeviceGetByPCIBusId
      cuDeviceGetPCIBusId cuDeviceGetProperties cuDeviceSetMemPool cuEventElapsedTime cuEventRecordWithFlags
      cuFuncGetAttribute cuFuncGetModule cuFuncIsLoaded cuFuncLoad cuFuncSetAttribute cuFuncSetCacheConfig
      cuFuncSetSharedMemConfig cuGetExportTable cuGraphGetNodes cuGraphInstantiateWithParams cuGraphUpload
      cuUserObjectCreate cuUserObjectRetain cuUserObjectRelease cuGraphRetainUserObject cuGraphReleaseUserObject
      cuGraphCreate cuGraphAddMemsetNode cuGraphAddMemcpyNode cuGraphAddMemAllocNode cuGraphAddMemFreeNode
      cuKernelGetAttribute cuKernelGetFunction cuLibraryGetKernel cuLibraryGetModule cuLibraryLoadData cuLibraryUnload
      cuMemHostGetFlags cuMemPoolGetAccess cuMemPoolGetAttribute cuMemPoolSetAccess cuMemPoolSetAttribute
      cuMemPoolTrimTo cuMemSetMemPool cuModuleGetLoadingMode cuModuleGetSurfRef cuModuleGetTexRef cuModuleLoadDataEx
      cuModuleLoadFatBinary cuOccupancyMaxActiveBlocksPerMultiprocessor
      cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags cuPointerGetAttributes cuProfilerStart cuProfilerStop
      cuStreamAddCallback cuStreamCreateWithPriority cuStreamGetCtx cuStreamGetFlags cuStreamGetId cuStreamGetPriority
};

/// The name does not exist, or only in a newer version.
const ABSENT: c_int = 1;
const TOO_OLD: c_int = 2;

fn look_up(name: &CStr, version: c_int, flags: u64) -> Result<*const (), c_int> {
    let of_that_name = ENTRIES
        .iter()
        .filter(|entry| entry.0.as_bytes() == name.to_bytes());
    let mut fitting: Vec<&Entry> = of_that_name
        .clone()
        .filter(|entry| version >= entry.1)
        .collect();
    let is_per_thread = flags & PER_THREAD_STREAM != 0;
    // A function that does not use the default stream has only one variant.
    fitting.sort_by_key(|entry| entry.2 != is_per_thread);
    match fitting.first() {
        Some(entry) => Ok(entry.3),
        None if of_that_name.count() > 0 => Err(TOO_OLD),
        None => not_implemented(name).ok_or(ABSENT),
    }
}

/// A function that reports that it is not supported. A real driver has it.
fn not_implemented(name: &CStr) -> Option<*const ()> {
    let is_meant = |export: &str| {
        let export = export.trim_end_matches("_ptsz").trim_end_matches("_ptds");
        let base = export.rsplit_once("_v").map_or(export, |(base, _)| base);
        [base, export]
            .iter()
            .any(|one| one.as_bytes() == name.to_bytes())
    };
    super::absent::all()
        .into_iter()
        .find_map(|(export, function)| is_meant(export).then_some(function))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    name: *const c_char,
    function: *mut *const (),
    version: c_int,
    flags: u64,
    status: *mut c_int,
) -> Code {
    if name.is_null() || function.is_null() {
        return INVALID_VALUE;
    }
    let found = look_up(unsafe { CStr::from_ptr(name) }, version, flags);
    unsafe {
        *function = found.unwrap_or(std::ptr::null());
        if !status.is_null() {
            *status = found.err().unwrap_or(0);
        }
    }
    if found.is_ok() { SUCCESS } else { NOT_FOUND }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress(
    name: *const c_char,
    function: *mut *const (),
    version: c_int,
    flags: u64,
) -> Code {
    unsafe { cuGetProcAddress_v2(name, function, version, flags, std::ptr::null_mut()) }
}
