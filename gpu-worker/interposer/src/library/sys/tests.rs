//! The wrappers against the list of what a driver exports.

use super::wrappers;

/// Names of the driver that give work, allocate, capture or tell of memory, and need no wrapper.
#[rustfmt::skip]
const UNTOUCHED: &[(&str, &[&str])] = &[
    ("of programs with 32-bit addresses", &[
        "cuArray3DCreate", "cuArrayCreate", "cuDeviceTotalMem", "cuMemAlloc", "cuMemAllocPitch", "cuMemFree",
        "cuMemGetAddressRange", "cuMemGetInfo",
    ]),
    ("the memory is counted where it is made, not where it is mapped", &[
        "cuMemAddressFree", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemUnmap",
    ]),
    ("a device's own pool is only a name, memory from it is as any other", &[
        "cuDeviceGetDefaultMemPool", "cuDeviceGetGraphMemAttribute", "cuDeviceGetMemPool", "cuDeviceGraphMemTrim",
        "cuDeviceSetMemPool",
        "cuMemPoolExportToShareableHandle", "cuMemPoolGetAccess", "cuMemPoolGetAttribute",
        "cuMemPoolImportPointer", "cuMemPoolSetAccess", "cuMemPoolSetAttribute",
        "cuMemPoolTrimTo", "cuMemSetMemPool",
    ]),
    ("the agent looks for itself whether the GPU is idle", &[
        "cuCtxSynchronize", "cuCtxSynchronize_v2", "cuEventSynchronize", "cuStreamSynchronize",
        "cuStreamSynchronize_ptsz",
    ]),
    ("another process' memory, or memory that is counted as fixed", &[
        "cuCtxEnablePeerAccess", "cuIpcCloseMemHandle", "cuIpcOpenMemHandle", "cuIpcOpenMemHandle_v2",
        "cuMemExportToShareableHandle", "cuMemImportFromShareableHandle", "cuMulticastBindMem", "cuMulticastBindMem_v2",
    ]),
    ("a context is known when it is made current, at the latest when it comes to the closed gate", &[
        "cuCtxCreate", "cuGreenCtxCreate",
    ]),
];

#[test]
fn no_name_is_wrapped_twice_or_also_untouched() {
    let untouched = UNTOUCHED
        .iter()
        .flat_map(|(_, names)| names.iter().copied());
    let names = wrappers().map(|wrapper| wrapper.name).chain(untouched);
    let mut names: Vec<&str> = names.collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert_eq!(names, include_str!("names.txt").lines().collect::<Vec<_>>());
}
