//! Messages about the GPU.

use super::error;
use baton_protocol::RemoteError;

/// CUDA does not start in a session, for this reason. For the administrator.
pub(crate) fn no_gpu_in_sessions(error: &str) -> String {
    format!(
        "CUDA does not start in sessions here, so %%gpu cells find no GPU: {error}\n\
         hint: `nvidia-smi` shows whether the driver works at all; if it does, try another `worker.sandbox`"
    )
}

/// The arbiter took the GPU back, and the session did not release it, or its memory there.
pub(crate) fn kept_the_gpu() -> RemoteError {
    error(
        "GpuKept",
        "The cell was stopped: its work on the GPU did not pause for other sessions",
        "look for a CUDA kernel that never ends; split a very long kernel into many short ones",
    )
}

/// The session's memory was moved to the host, and there is no longer room for it on the GPU.
pub(crate) fn no_room_on_the_gpu() -> RemoteError {
    error(
        "GpuFull",
        "The cell was stopped: other sessions and programs left too little GPU memory for it",
        "run it again with less memory on the GPU, or later",
    )
}

/// The host has no room for the memory of other sessions that would have to leave the GPU.
pub(crate) fn no_room_on_the_host() -> RemoteError {
    error(
        "GpuFull",
        "The cell was stopped: the GPU machine has too little main memory to move other sessions off the GPU",
        "run it again later, and tell your course staff if this happens often",
    )
}

/// `--mem` on a machine without time-sharing.
pub(crate) fn no_gpu_limit(bytes: u64) -> String {
    format!(
        "--mem {} has no effect here: sessions on this machine do not time-share a GPU",
        super::bytes(bytes)
    )
}

/// The driver keeps returning the error `code` for as long as the process lives.
pub(crate) fn gpu_fault(code: u32) -> String {
    format!(
        "the GPU reported an error, and this session can no longer use it (CUDA error {code}); the next %%gpu \
         cell starts a new session with your notebook's variables"
    )
}

/// A process of the session used the GPU, and Baton's library in it never noticed.
pub(crate) const GPU_BYPASSED: &str = "a program of this notebook used the GPU without time-sharing: it may slow down other cells on this GPU and run out \
     of GPU memory; your course staff can give such programs a GPU of their own";

/// While the session had no cell, it made room for others.
pub(crate) fn gpu_not_back() -> String {
    "the session made room on the GPU for others and could not return; this cell runs in a new session with your \
     notebook's variables"
        .to_owned()
}

pub(crate) fn gpu_failed_before(code: u32) -> String {
    format!(
        "after the last cell the GPU reported an error (CUDA error {code}); this cell runs in a new session with your \
         notebook's variables"
    )
}
