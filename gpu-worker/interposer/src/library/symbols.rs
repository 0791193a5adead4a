//! Which exported function is meant by a look-up with a name, a version and a kind of default stream.
//!
//! The driver answers look-ups itself. This is used when its answer is not an address that it exports.

/// Flag of a look-up: the default stream is per thread.
const PER_THREAD_STREAM: u64 = 2;

/// The version since which a name means the function with a suffix; newest first.
const CHANGED: &[(&str, &str, u32)] = &[
    ("cuCtxCreate", "_v4", 12050),
    ("cuCtxCreate", "_v3", 11040),
    ("cuCtxCreate", "_v2", 3020),
    ("cuCtxDestroy", "_v2", 4000),
    ("cuCtxPushCurrent", "_v2", 4000),
    ("cuDevicePrimaryCtxRelease", "_v2", 11000),
    ("cuDevicePrimaryCtxReset", "_v2", 11000),
    ("cuDeviceTotalMem", "_v2", 3020),
    ("cuGetProcAddress", "_v2", 12000),
    ("cuGLMapBufferObject", "_v2", 3020),
    ("cuGLMapBufferObjectAsync", "_v2", 3020),
    ("cuGraphAddNode", "_v2", 12030),
    ("cuGraphExecUpdate", "_v2", 12000),
    ("cuGraphInstantiate", "WithFlags", 12000),
    ("cuGraphInstantiate", "_v2", 11000),
    ("cuMemAdvise", "_v2", 12020),
    ("cuTexRefSetAddress", "_v2", 3020),
    ("cuTexRefSetAddress2D", "_v3", 4010),
    ("cuIpcOpenMemHandle", "_v2", 11000),
    ("cuLaunchHostFunc", "_v2", 13020),
    ("cuMemAlloc", "_v2", 3020),
    ("cuMemAllocPitch", "_v2", 3020),
    ("cuMemFree", "_v2", 3020),
    ("cuMemGetAddressRange", "_v2", 3020),
    ("cuMemGetInfo", "_v2", 3020),
    ("cuMemPrefetchAsync", "_v2", 12020),
    ("cuModuleGetGlobal", "_v2", 3020),
    ("cuMemcpyBatchAsync", "_v2", 13000),
    ("cuMemcpy3DBatchAsync", "_v2", 13000),
    ("cuMulticastBindAddr", "_v2", 13010),
    ("cuMulticastBindMem", "_v2", 13010),
    ("cuStreamBatchMemOp", "_v2", 11070),
    ("cuStreamBeginCapture", "_v2", 10010),
    ("cuStreamDestroy", "_v2", 4000),
    ("cuStreamWaitValue32", "_v2", 11070),
    ("cuStreamWaitValue64", "_v2", 11070),
    ("cuStreamWriteValue32", "_v2", 11070),
    ("cuStreamWriteValue64", "_v2", 11070),
];

/// Copies, sets and arrays whose sizes became 64 bits wide, all in the same version.
const WIDENED: &[&str] = &[
    "cuArray3DCreate",
    "cuArrayCreate",
    "cuMemcpy2D",
    "cuMemcpy2DAsync",
    "cuMemcpy2DUnaligned",
    "cuMemcpy3D",
    "cuMemcpy3DAsync",
    "cuMemcpyAtoA",
    "cuMemcpyAtoD",
    "cuMemcpyAtoH",
    "cuMemcpyAtoHAsync",
    "cuMemcpyDtoA",
    "cuMemcpyDtoD",
    "cuMemcpyDtoDAsync",
    "cuMemcpyDtoH",
    "cuMemcpyDtoHAsync",
    "cuMemcpyHtoA",
    "cuMemcpyHtoAAsync",
    "cuMemcpyHtoD",
    "cuMemcpyHtoDAsync",
    "cuMemsetD16",
    "cuMemsetD2D16",
    "cuMemsetD2D32",
    "cuMemsetD2D8",
    "cuMemsetD32",
    "cuMemsetD8",
];
const WIDENED_SINCE: u32 = 3020;

/// The suffixes that the name of the meant function may have. The first that is exported is meant.
pub(super) fn suffixes(name: &str, version: u32, flags: u64) -> [[&'static str; 2]; 3] {
    let changed = CHANGED
        .iter()
        .find(|(changed, _, since)| *changed == name && version >= *since);
    let widened = (WIDENED.contains(&name) && version >= WIDENED_SINCE).then_some("_v2");
    let suffix = changed
        .map(|(_, suffix, _)| *suffix)
        .or(widened)
        .unwrap_or("");
    match flags & PER_THREAD_STREAM {
        0 => [[suffix, ""]; 3],
        _ => [[suffix, "_ptsz"], [suffix, "_ptds"], [suffix, ""]],
    }
}

/// Whether `export` is `name` with these suffixes.
pub(super) fn is(export: &str, name: &str, suffixes: [&str; 2]) -> bool {
    let rest = export.strip_prefix(name);
    let rest = rest.and_then(|rest| rest.strip_prefix(suffixes[0]));
    rest == Some(suffixes[1])
}

/// Whether stream 0 means the thread's own default stream for this function.
pub(super) const fn is_per_thread(export: &str) -> bool {
    let name = export.as_bytes();
    let n = name.len();
    n > 5 && name[n - 5] == b'_' && name[n - 4] == b'p' && name[n - 3] == b't'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_up_means_the_function_of_its_version_and_stream() {
        let exports = [
            "cuMemAlloc",
            "cuMemAlloc_v2",
            "cuMemPrefetchAsync",
            "cuMemPrefetchAsync_ptsz",
            "cuMemPrefetchAsync_v2",
            "cuMemPrefetchAsync_v2_ptsz",
            "cuMemcpyHtoD_v2",
            "cuMemcpyHtoD_v2_ptds",
            "cuGraphLaunch",
            "cuGraphLaunch_ptsz",
        ];
        for (name, version, flags, expected) in [
            ("cuMemAlloc", 2000, 0, "cuMemAlloc"),
            ("cuMemAlloc", 12000, 2, "cuMemAlloc_v2"),
            ("cuMemPrefetchAsync", 8000, 0, "cuMemPrefetchAsync"),
            ("cuMemPrefetchAsync", 8000, 2, "cuMemPrefetchAsync_ptsz"),
            ("cuMemPrefetchAsync", 12020, 0, "cuMemPrefetchAsync_v2"),
            ("cuMemPrefetchAsync", 13000, 2, "cuMemPrefetchAsync_v2_ptsz"),
            ("cuMemcpyHtoD", 3020, 2, "cuMemcpyHtoD_v2_ptds"),
            ("cuGraphLaunch", 10000, 1, "cuGraphLaunch"),
        ] {
            let meant = suffixes(name, version, flags).into_iter();
            let mut found =
                meant.filter_map(|one| exports.iter().find(|export| is(export, name, one)));
            assert_eq!(found.next(), Some(&expected), "{name} {version} {flags}");
        }
    }

    #[test]
    fn the_kind_of_default_stream_is_in_the_name() {
        assert!(is_per_thread("cuLaunchKernel_ptsz") && is_per_thread("cuMemcpy_ptds"));
        assert!(!is_per_thread("cuLaunchKernel") && !is_per_thread("cuMemcpyHtoD_v2"));
    }
}
