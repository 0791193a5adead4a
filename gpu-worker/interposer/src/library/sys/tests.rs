//! Compares the calls that libraries look up with what the interposer decides about each of them.
//!
//! `asked.txt` holds the names in libraries (`make cuda-names` extracts them from wheels), `passed.txt` the
//! calls that pass through, grouped by reason. A new name in a newer library is undecided, and fails here.

use super::{
    Wrapper, context_calls, driver, event_calls, look_up, mapping_calls, memory_calls,
    monitoring_calls, pool_calls, submissions, word_calls, wrappers,
};
use std::any::TypeId;

/// What happens to a call: how its wrapper treats it, or why it has none.
fn decision(name: &str) -> Option<&'static str> {
    let kinds: [(&str, &[&[Wrapper]]); 6] = [
        (
            "gated",
            &[
                submissions::SHORT,
                submissions::LONG,
                submissions::CONFIGURED,
                submissions::CAPTURE_BEGINS,
                submissions::CAPTURE_ENDS,
            ],
        ),
        (
            "counted",
            &[
                memory_calls::WRAPPERS,
                mapping_calls::WRAPPERS,
                pool_calls::WRAPPERS,
                word_calls::GRAPH_MEMORY,
            ],
        ),
        (
            "waits for the memory",
            &[word_calls::ASKED, word_calls::INSTANTIATED],
        ),
        ("waits if it measures time", &[event_calls::WRAPPERS]),
        (
            "others make room",
            &[context_calls::WRAPPERS, word_calls::MADE],
        ),
        ("finds wrappers", &[look_up::WRAPPERS]),
    ];
    let wrapped = kinds.into_iter().find(|(_, tables)| {
        let mut wrappers = tables.iter().copied().flatten();
        // A library that asks by version gets the function that the version means.
        wrappers.any(|one| one.name == name || (base(name) == name && base(one.name) == name))
    });
    let passed = || {
        let is_meant = |passed: &str| passed == name || passed == base(name);
        let mut reasons = passed().into_iter();
        reasons.find_map(|(reason, names)| names.into_iter().any(is_meant).then_some(reason))
    };
    wrapped.map(|(kind, _)| kind).or_else(passed)
}

/// A name without its version and kind of default stream.
fn base(name: &str) -> &str {
    let name = name.strip_suffix("_ptsz").unwrap_or(name);
    let name = name.strip_suffix("_ptds").unwrap_or(name);
    match name.rsplit_once("_v") {
        Some((base, version)) if version.parse::<u32>().is_ok() => base,
        _ => name,
    }
}

fn passed() -> Vec<(&'static str, Vec<&'static str>)> {
    let groups = include_str!("passed.txt").split("# ").skip(1);
    let group = |text: &'static str| {
        let (reason, names) = text.split_once('\n').expect("names follow the reason");
        (reason, names.split_whitespace().collect())
    };
    groups.map(group).collect()
}

#[test]
fn each_call_that_libraries_ask_for_is_decided() {
    let asked = include_str!("asked.txt").lines();
    let names = asked.filter(|line| !line.starts_with('#'));
    let undecided: Vec<&str> = names.filter(|name| decision(name).is_none()).collect();
    assert!(
        undecided.is_empty(),
        "wrap them, or write into passed.txt why not: {undecided:?}"
    );
}

#[test]
fn a_new_call_and_a_new_version_of_a_wrapped_one_are_undecided() {
    for (name, expected) in [
        ("cuLaunchKernel", Some("gated")),
        ("cuLaunchKernel_ptsz", Some("gated")),
        ("cuLaunchKernel_v9", None),
        ("cuMemcpyHtoDAsync_v2_ptsz", Some("gated")),
        ("cuMemAlloc_v2", Some("counted")),
        ("cuImportExternalMemory", Some("counted")),
        ("cuPointerSetAttribute", Some("waits for the memory")),
        ("cuEventRecord_ptsz", Some("waits if it measures time")),
        ("cuStreamCreate", Some("others make room")),
        ("cuGetProcAddress", Some("finds wrappers")),
        ("cuThatThereIsNot", None),
    ] {
        assert_eq!(decision(name), expected, "{name}");
    }
    assert!(decision("cuStreamWaitEvent_ptsz").is_some_and(|reason| reason.starts_with("marks")));
}

#[test]
fn no_name_is_wrapped_twice_or_also_passed() {
    let passed = passed().into_iter().flat_map(|(_, names)| names);
    let mut names: Vec<&str> = wrappers()
        .map(|wrapper| wrapper.name)
        .chain(passed)
        .collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// The driver's functions by their types in NVIDIA's headers.
trait Signature {
    /// The position of the stream among the arguments.
    fn stream() -> Option<usize>;
}

macro_rules! signatures {
    ($($($argument:ident)*;)*) => {
        $(impl<$($argument: 'static),*> Signature
            for unsafe fn($($argument),*) -> cudarc::driver::sys::CUresult {
            fn stream() -> Option<usize> {
                let stream = TypeId::of::<cudarc::driver::sys::CUstream>();
                [$(TypeId::of::<$argument>()),*].iter().position(|argument| *argument == stream)
            }
        })*
    };
}

signatures! {
    A; A B; A B C; A B C D; A B C D E; A B C D E F; A B C D E F G H; A B C D E F G H I J; A B C D E F G H I J K;
}

fn stream_of<F: Signature>(_: F) -> Option<usize> {
    F::stream()
}

macro_rules! streams {
    ($($kind:ty: $($name:ident)*;)*) => {
        [$($((stringify!($name), stream_of(cudarc::driver::sys::$name as $kind)),)*)*]
    };
}

#[test]
fn the_stream_is_the_argument_that_it_is_in_nvidia_s_headers() {
    let right = streams! {
        unsafe fn(_) -> _: cuMemcpy2DUnaligned_v2 cuMemcpy2D_v2 cuMemcpy3DPeer cuMemcpy3D_v2;
        unsafe fn(_, _) -> _: cuGraphLaunch cuGraphUpload cuMemcpy2DAsync_v2 cuMemcpy3DAsync_v2 cuMemcpy3DPeerAsync;
        unsafe fn(_, _, _) -> _:
            cuGraphInstantiateWithParams cuGraphicsMapResources cuGraphicsUnmapResources cuLaunchHostFunc
            cuMemMapArrayAsync cuMemcpy cuMemcpyDtoD_v2 cuMemcpyDtoH_v2 cuMemcpyHtoD_v2 cuMemsetD16_v2 cuMemsetD32_v2
            cuMemsetD8_v2;
        unsafe fn(_, _, _, _) -> _:
            cuMemcpy3DBatchAsync_v2 cuMemcpyAsync cuMemcpyAtoD_v2 cuMemcpyAtoH_v2 cuMemcpyDtoA_v2 cuMemcpyDtoDAsync_v2
            cuMemcpyDtoHAsync_v2 cuMemcpyHtoA_v2 cuMemcpyHtoDAsync_v2 cuMemsetD16Async cuMemsetD32Async cuMemsetD8Async
            cuSignalExternalSemaphoresAsync cuStreamAddCallback cuStreamAttachMemAsync cuStreamBatchMemOp_v2
            cuStreamWaitValue32_v2 cuStreamWaitValue64_v2 cuStreamWriteValue32_v2 cuStreamWriteValue64_v2
            cuWaitExternalSemaphoresAsync;
        unsafe fn(_, _, _, _, _) -> _:
            cuMemBatchDecompressAsync cuMemPrefetchAsync_v2 cuMemcpyAtoA_v2 cuMemcpyAtoHAsync_v2 cuMemcpyHtoAAsync_v2
            cuMemcpyPeer cuMemsetD2D16_v2 cuMemsetD2D32_v2 cuMemsetD2D8_v2;
        unsafe fn(_, _, _, _, _, _) -> _:
            cuMemcpyPeerAsync cuMemsetD2D16Async cuMemsetD2D32Async cuMemsetD2D8Async;
        unsafe fn(_, _, _, _, _, _, _, _) -> _: cuMemcpyBatchAsync_v2 cuMemPrefetchBatchAsync;
        unsafe fn(_, _, _, _, _, _, _, _, _, _) -> _: cuLaunchCooperativeKernel;
        unsafe fn(_, _, _, _, _, _, _, _, _, _, _) -> _: cuLaunchKernel;
    };
    let own = [submissions::STREAMS_OF_SHORT, submissions::STREAMS_OF_LONG].concat();
    for (name, position) in right {
        let per_thread = [name, "_ptsz"].concat();
        for (same, found) in own
            .iter()
            .filter(|(own, _)| [name, &per_thread].contains(own))
        {
            assert_eq!(*found, position, "{same}");
        }
        assert!(own.iter().any(|(own, _)| *own == name), "{name}");
    }
    assert_eq!(
        submissions::STREAM_IN_CONFIGURATION,
        std::mem::offset_of!(cudarc::driver::sys::CUlaunchConfig, hStream)
    );
}

#[test]
fn the_kind_of_default_stream_is_in_the_name() {
    use submissions::is_per_thread;
    assert!(is_per_thread("cuLaunchKernel_ptsz") && is_per_thread("cuMemcpy_ptds"));
    assert!(!is_per_thread("cuLaunchKernel") && !is_per_thread("cuMemcpyHtoD_v2"));
}

/// Compares the structures declared here with NVIDIA's headers, by way of their bindings: size, alignment and
/// offsets of the fields.
macro_rules! same_layout {
    ($own:ty, $theirs:ty, $($fields:tt)*) => {
        assert_eq!(size_of::<$own>(), size_of::<$theirs>(), stringify!($own));
        same_beginning!($own, $theirs, $($fields)*);
    };
}

macro_rules! same_beginning {
    ($own:ty, $theirs:ty, $($field:ident = $their_field:ident),*) => {
        assert_eq!(align_of::<$own>(), align_of::<$theirs>(), stringify!($own));
        assert!(size_of::<$own>() <= size_of::<$theirs>(), stringify!($own));
        $(assert_eq!(
            std::mem::offset_of!($own, $field),
            std::mem::offset_of!($theirs, $their_field),
            concat!(stringify!($own), ".", stringify!($field))
        );)*
    };
}

#[test]
fn structures_are_laid_out_as_in_nvidia_s_headers() {
    use cudarc::driver::sys;
    same_layout!(driver::Location, sys::CUmemLocation, kind = type_, id = id);
    same_layout!(
        driver::Properties,
        sys::CUmemAllocationProp,
        kind = type_,
        handle_types = requestedHandleTypes,
        location = location,
        _windows = win32HandleMetaData,
        flags = allocFlags
    );
    same_layout!(
        driver::Access,
        sys::CUmemAccessDesc,
        location = location,
        flags = flags
    );
    same_layout!(
        memory_calls::ArrayDescription,
        sys::CUDA_ARRAY_DESCRIPTOR,
        width = Width,
        height = Height,
        format = Format,
        channels = NumChannels
    );
    same_layout!(
        memory_calls::Array3dDescription,
        sys::CUDA_ARRAY3D_DESCRIPTOR,
        width = Width,
        height = Height,
        depth = Depth,
        format = Format,
        channels = NumChannels,
        flags = Flags
    );
    same_beginning!(
        memory_calls::ExternalDescription,
        sys::CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
        _kind = type_,
        _handle = handle,
        bytes = size
    );
    same_beginning!(
        pool_calls::PoolProperties,
        sys::CUmemPoolProps,
        kind = allocType,
        handle_types = handleTypes,
        location = location,
        _windows = win32SecurityAttributes,
        _most_bytes = maxSize,
        usage = usage
    );

    use nvml_wrapper_sys::bindings as nvml;
    same_layout!(
        monitoring_calls::Memory,
        nvml::nvmlMemory_t,
        total = total,
        free = free,
        used = used
    );
    same_layout!(
        monitoring_calls::MemoryV2,
        nvml::nvmlMemory_v2_t,
        version = version,
        total = total,
        reserved = reserved,
        free = free,
        used = used
    );
    same_layout!(
        monitoring_calls::ProcessV1,
        nvml::nvmlProcessInfo_v1_t,
        process = pid,
        bytes = usedGpuMemory
    );
    same_layout!(
        monitoring_calls::ProcessV2,
        nvml::nvmlProcessInfo_v2_t,
        process = pid,
        bytes = usedGpuMemory,
        gpu_instance = gpuInstanceId,
        compute_instance = computeInstanceId
    );
}
