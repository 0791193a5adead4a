//! Wrappers of all calls that give the GPU work, and of those that begin and end captures.
//!
//! They are all alike: enter the gate, call the driver's function with the same arguments, leave. All arguments are
//! integers and pointers, so a wrapper takes as many words as any function of its table and passes them on. Words
//! that the caller did not pass are passed on unread.
#![allow(non_snake_case)]

use super::{
    super::PROCESS,
    Wrapper,
    driver::{Code, Export, NOT_FOUND, PER_THREAD, Stream, is_capturing},
    is_in_use,
};
use std::mem::transmute;

type Short = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> Code;
#[rustfmt::skip]
type Long = unsafe extern "C" fn(
    usize, usize, usize, usize, usize, usize, usize, usize, usize, usize, usize, usize,
) -> Code;

/// For functions with at most six words.
macro_rules! short {
    ($name:ident, |$words:ident| $stream:expr) => {
        #[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name(
            a: usize,
            b: usize,
            c: usize,
            d: usize,
            e: usize,
            f: usize,
        ) -> Code {
            static EXPORT: Export = Export::new(concat!(stringify!($name), "\0"));
            let Some(address) = EXPORT.address() else {
                return NOT_FOUND;
            };
            let $words = [a, b, c, d, e, f];
            // SAFETY: the driver's function, and the caller's arguments.
            PROCESS.submit($stream, || unsafe {
                transmute::<usize, Short>(address)(a, b, c, d, e, f)
            })
        }
    };
}

/// For functions with at most twelve words.
macro_rules! long {
    ($name:ident, |$words:ident| $stream:expr) => {
#[cfg_attr(not(test), unsafe(no_mangle))]
        #[rustfmt::skip]
        unsafe extern "C" fn $name(
            a: usize, b: usize, c: usize, d: usize, e: usize, f: usize,
            g: usize, h: usize, i: usize, j: usize, k: usize, l: usize,
        ) -> Code {
            static EXPORT: Export = Export::new(concat!(stringify!($name), "\0"));
            let Some(address) = EXPORT.address() else {
                return NOT_FOUND;
            };
            let $words = [a, b, c, d, e, f, g, h, i, j, k, l];
            // SAFETY: the driver's function, and the caller's arguments.
            PROCESS.submit($stream, || unsafe {
                transmute::<usize, Long>(address)(a, b, c, d, e, f, g, h, i, j, k, l)
            })
        }
    };
}

/// Defines wrappers and their table, grouped by the position of the stream among the words. `$streams` lists these
/// positions for tests.
macro_rules! submissions {
    ($table:ident, $streams:ident of $kind:ident: $($position:expr => { $($name:ident)* })*) => {
        $($($kind! {
            $name, |words| stream(const { is_per_thread(stringify!($name)) }, &words, $position)
        })*)*
        pub(super) static $table: &[Wrapper] = &[$($(
            Wrapper { name: stringify!($name), address: $name as *const () },
        )*)*];
        #[cfg(test)]
        pub(super) static $streams: &[(&str, Option<usize>)] = &[$($((stringify!($name), $position),)*)*];
    };
}

/// Whether stream 0 means the thread's own default stream for this function.
pub(super) const fn is_per_thread(export: &str) -> bool {
    let name = export.as_bytes();
    let n = name.len();
    n > 5 && name[n - 5] == b'_' && name[n - 4] == b'p' && name[n - 3] == b't'
}

#[inline(always)]
fn stream(is_per_thread: bool, words: &[usize], position: Option<usize>) -> Option<Stream> {
    let stream = words[position?];
    Some(if is_per_thread && stream == 0 {
        PER_THREAD
    } else {
        Stream(stream)
    })
}

submissions! { SHORT, STREAMS_OF_SHORT of short:
    None => {
        cuLaunch cuLaunchCooperativeKernelMultiDevice cuLaunchGrid cuMemcpy cuMemcpy2D cuMemcpy2DUnaligned
        cuMemcpy2DUnaligned_v2 cuMemcpy2DUnaligned_v2_ptds cuMemcpy2D_v2 cuMemcpy2D_v2_ptds cuMemcpy3D
        cuMemcpy3DPeer cuMemcpy3DPeer_ptds cuMemcpy3D_v2 cuMemcpy3D_v2_ptds cuMemcpyAtoA cuMemcpyAtoA_v2
        cuMemcpyAtoA_v2_ptds cuMemcpyAtoD cuMemcpyAtoD_v2 cuMemcpyAtoD_v2_ptds cuMemcpyAtoH cuMemcpyAtoH_v2
        cuMemcpyAtoH_v2_ptds cuMemcpyDtoA cuMemcpyDtoA_v2 cuMemcpyDtoA_v2_ptds cuMemcpyDtoD cuMemcpyDtoD_v2
        cuMemcpyDtoD_v2_ptds cuMemcpyDtoH cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds cuMemcpyHtoA cuMemcpyHtoA_v2
        cuMemcpyHtoA_v2_ptds cuMemcpyHtoD cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds cuMemcpyPeer cuMemcpyPeer_ptds
        cuMemcpy_ptds cuMemsetD16 cuMemsetD16_v2 cuMemsetD16_v2_ptds cuMemsetD2D16 cuMemsetD2D16_v2
        cuMemsetD2D16_v2_ptds cuMemsetD2D32 cuMemsetD2D32_v2 cuMemsetD2D32_v2_ptds cuMemsetD2D8 cuMemsetD2D8_v2
        cuMemsetD2D8_v2_ptds cuMemsetD32 cuMemsetD32_v2 cuMemsetD32_v2_ptds cuMemsetD8 cuMemsetD8_v2
        cuMemsetD8_v2_ptds cuEGLStreamConsumerAcquireFrame cuEGLStreamConsumerReleaseFrame
        cuEGLStreamProducerPresentFrame cuEGLStreamProducerReturnFrame cuGLMapBufferObject cuGLMapBufferObject_v2
        cuGLMapBufferObject_v2_ptds cuGLUnmapBufferObject cuGraphInstantiateWithParams
        cuGraphInstantiateWithParams_ptsz
    }
    Some(0) => {
        cuStreamAddCallback cuStreamAddCallback_ptsz cuStreamAttachMemAsync cuStreamAttachMemAsync_ptsz
        cuLaunchHostFunc cuLaunchHostFunc_ptsz cuLaunchHostFunc_v2 cuLaunchHostFunc_v2_ptsz cuStreamBatchMemOp
        cuStreamBatchMemOp_ptsz cuStreamBatchMemOp_v2 cuStreamBatchMemOp_v2_ptsz cuStreamWaitValue32
        cuStreamWaitValue32_ptsz cuStreamWaitValue32_v2 cuStreamWaitValue32_v2_ptsz cuStreamWaitValue64
        cuStreamWaitValue64_ptsz cuStreamWaitValue64_v2 cuStreamWaitValue64_v2_ptsz cuStreamWriteValue32
        cuStreamWriteValue32_ptsz cuStreamWriteValue32_v2 cuStreamWriteValue32_v2_ptsz cuStreamWriteValue64
        cuStreamWriteValue64_ptsz cuStreamWriteValue64_v2 cuStreamWriteValue64_v2_ptsz
    }
    Some(1) => {
        cuGLUnmapBufferObjectAsync cuGraphLaunch cuGraphLaunch_ptsz cuGraphUpload cuGraphUpload_ptsz cuMemcpy2DAsync cuMemcpy2DAsync_v2
        cuMemcpy2DAsync_v2_ptsz cuMemcpy3DAsync cuMemcpy3DAsync_v2 cuMemcpy3DAsync_v2_ptsz cuMemcpy3DPeerAsync
        cuMemcpy3DPeerAsync_ptsz
    }
    Some(2) => {
        cuGraphicsMapResources cuGraphicsMapResources_ptsz cuGraphicsUnmapResources cuGraphicsUnmapResources_ptsz
        cuMemMapArrayAsync cuMemMapArrayAsync_ptsz cuMemcpy3DWithAttributesAsync
        cuMemcpy3DWithAttributesAsync_ptsz
    }
    Some(3) => {
        cuGLMapBufferObjectAsync cuGLMapBufferObjectAsync_v2 cuGLMapBufferObjectAsync_v2_ptsz
        cuSignalExternalSemaphoresAsync cuSignalExternalSemaphoresAsync_ptsz cuWaitExternalSemaphoresAsync
        cuWaitExternalSemaphoresAsync_ptsz cuLaunchGridAsync cuMemPrefetchAsync cuMemPrefetchAsync_ptsz cuMemcpy3DBatchAsync_v2
        cuMemcpy3DBatchAsync_v2_ptsz cuMemcpyAsync cuMemcpyAsync_ptsz cuMemcpyDtoDAsync cuMemcpyDtoDAsync_v2
        cuMemcpyDtoDAsync_v2_ptsz cuMemcpyDtoHAsync cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz
        cuMemcpyHtoDAsync cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz cuMemsetD16Async cuMemsetD16Async_ptsz
        cuMemsetD32Async cuMemsetD32Async_ptsz cuMemsetD8Async cuMemsetD8Async_ptsz
    }
    Some(4) => {
        cuMemBatchDecompressAsync cuMemBatchDecompressAsync_ptsz cuMemDiscardBatchAsync
        cuMemDiscardBatchAsync_ptsz cuMemPrefetchAsync_v2 cuMemPrefetchAsync_v2_ptsz cuMemcpy3DBatchAsync
        cuMemcpy3DBatchAsync_ptsz cuMemcpyAtoHAsync cuMemcpyAtoHAsync_v2 cuMemcpyAtoHAsync_v2_ptsz
        cuMemcpyHtoAAsync cuMemcpyHtoAAsync_v2 cuMemcpyHtoAAsync_v2_ptsz cuMemcpyWithAttributesAsync
        cuMemcpyWithAttributesAsync_ptsz
    }
    Some(5) => {
        cuMemcpyPeerAsync cuMemcpyPeerAsync_ptsz cuMemsetD2D16Async cuMemsetD2D16Async_ptsz cuMemsetD2D32Async
        cuMemsetD2D32Async_ptsz cuMemsetD2D8Async cuMemsetD2D8Async_ptsz
    }
}

submissions! { LONG, STREAMS_OF_LONG of long:
    None => {
        cuFabricCpyBatchAsync cuFabricCpyBatchAsync_ptsz
    }
    Some(7) => {
        cuMemDiscardAndPrefetchBatchAsync cuMemDiscardAndPrefetchBatchAsync_ptsz cuMemPrefetchBatchAsync
        cuMemPrefetchBatchAsync_ptsz cuMemcpyBatchAsync_v2 cuMemcpyBatchAsync_v2_ptsz
    }
    Some(8) => {
        cuLaunchCooperativeKernel cuLaunchCooperativeKernel_ptsz cuLaunchKernel cuLaunchKernel_ptsz
        cuMemcpyBatchAsync cuMemcpyBatchAsync_ptsz
    }
}

/// Where the stream is in a `CUlaunchConfig`: after seven numbers.
pub(super) const STREAM_IN_CONFIGURATION: usize = 32;

/// The stream is in a structure.
macro_rules! configured {
    ($($name:ident)*) => {
        $(short! { $name, |words| configured_stream(const { is_per_thread(stringify!($name)) }, words[0]) })*
        pub(super) static CONFIGURED: &[Wrapper] = &[$(
            Wrapper { name: stringify!($name), address: $name as *const () },
        )*];
    };
}

#[inline(always)]
fn configured_stream(is_per_thread: bool, configuration: usize) -> Option<Stream> {
    if configuration == 0 {
        return None;
    }
    // SAFETY: the caller passes a `CUlaunchConfig`.
    let found = unsafe { *((configuration + STREAM_IN_CONFIGURATION) as *const usize) };
    stream(is_per_thread, &[found], Some(0))
}

configured! { cuLaunchKernelEx cuLaunchKernelEx_ptsz }

/// A capture begins only when the session has a lease, and the session keeps the lease during the capture.
macro_rules! capture_begins {
    ($($name:ident)*) => {
        $(#[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> Code {
            static EXPORT: Export = Export::new(concat!(stringify!($name), "\0"));
            let Some(address) = EXPORT.address() else {
                return NOT_FOUND;
            };
            let stream = stream(const { is_per_thread(stringify!($name)) }, &[a], Some(0));
            // SAFETY: the driver's function, and the caller's arguments.
            let begin = || unsafe { transmute::<usize, Short>(address)(a, b, c, d, e, f) };
            PROCESS.submit(None, || match stream {
                Some(stream) if is_in_use() => PROCESS.captures.begin(stream, begin),
                _ => begin(),
            })
        })*
        pub(super) static CAPTURE_BEGINS: &[Wrapper] = &[$(
            Wrapper { name: stringify!($name), address: $name as *const () },
        )*];
    };
}

capture_begins! {
    cuStreamBeginCapture cuStreamBeginCaptureToCig cuStreamBeginCaptureToCig_ptsz cuStreamBeginCaptureToGraph
    cuStreamBeginCaptureToGraph_ptsz cuStreamBeginCapture_ptsz cuStreamBeginCapture_v2
    cuStreamBeginCapture_v2_ptsz cuStreamBeginRecaptureToGraph cuStreamBeginRecaptureToGraph_ptsz
}

macro_rules! capture_ends {
    ($($name:ident)*) => {
        $(#[cfg_attr(not(test), unsafe(no_mangle))]
        unsafe extern "C" fn $name(a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> Code {
            static EXPORT: Export = Export::new(concat!(stringify!($name), "\0"));
            let Some(address) = EXPORT.address() else {
                return NOT_FOUND;
            };
            // SAFETY: the driver's function, and the caller's arguments.
            let code = unsafe { transmute::<usize, Short>(address)(a, b, c, d, e, f) };
            // A thread that did not begin the capture may not end it.
            if is_in_use()
                && let Some(stream) = stream(const { is_per_thread(stringify!($name)) }, &[a], Some(0))
                && !is_capturing(stream)
            {
                PROCESS.captures.end(stream);
            }
            code
        })*
        pub(super) static CAPTURE_ENDS: &[Wrapper] = &[$(
            Wrapper { name: stringify!($name), address: $name as *const () },
        )*];
    };
}

capture_ends! {
    cuStreamEndCapture cuStreamEndCaptureToCig cuStreamEndCaptureToCig_ptsz cuStreamEndCapture_ptsz
}
