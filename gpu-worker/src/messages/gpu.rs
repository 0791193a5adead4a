//! Messages about the GPU.

use super::error;
use baton_protocol::{
    JobKind, RemoteError,
    wording::{next_one, option_with},
};

/// CUDA does not start in a session, for this reason. For the administrator.
pub(crate) fn no_gpu_in_sessions(error: &str) -> String {
    format!(
        "CUDA does not start in sessions here, so %%gpu cells find no GPU: {error}\n\
         hint: `nvidia-smi` shows whether the driver works at all; if it does, try another `worker.sandbox`"
    )
}

/// The arbiter took the GPU back, and the session did not release it, or its memory there.
pub(crate) fn kept_the_gpu(kind: JobKind) -> RemoteError {
    let why = "its work on the GPU did not pause for other sessions";
    error(
        kind,
        "GpuKept",
        &stopped(kind, why),
        "look for a CUDA kernel that never ends; split a very long kernel into many short ones",
    )
}

/// The session's memory was moved to the host, and there is no longer room for it on the GPU.
pub(crate) fn no_room_on_the_gpu(kind: JobKind) -> RemoteError {
    let why = "other sessions and programs left too little GPU memory for it";
    error(
        kind,
        "GpuFull",
        &stopped(kind, why),
        "run it again with less memory on the GPU, or later",
    )
}

/// The host has no room for the memory of other sessions that would have to leave the GPU.
pub(crate) fn no_room_on_the_host(kind: JobKind) -> RemoteError {
    let why = "the GPU machine has too little main memory to move other sessions off the GPU";
    error(
        kind,
        "GpuFull",
        &stopped(kind, why),
        "run it again later, and tell your course staff if this happens often",
    )
}

fn stopped(kind: JobKind, why: &str) -> String {
    format!("The {} was stopped: {why}", kind.noun())
}

/// A limit of GPU memory on a machine without time-sharing.
pub(crate) fn no_gpu_limit(kind: JobKind, bytes: u64) -> String {
    let option = option_with("mem", &super::bytes(bytes), kind);
    format!("{option} has no effect here: sessions on this machine do not time-share a GPU")
}

/// The driver keeps returning the error `code` for as long as the process lives.
pub(crate) fn gpu_fault(kind: JobKind, code: u32) -> String {
    let what = "the GPU reported an error, and this session can no longer use it";
    match kind.is_program() {
        true => format!("{what} (CUDA error {code})"),
        false => format!(
            "{what} (CUDA error {code}); the {} starts a new session with your variables",
            next_one(kind)
        ),
    }
}

/// A process of the session used the GPU, and Baton's library in it never noticed.
pub(crate) const GPU_BYPASSED: &str = "a program of this session used the GPU without time-sharing: it may slow down others on this GPU and run out of \
     GPU memory; your course staff can give such programs a GPU of their own";

/// While the session had no cell, it made room for others.
pub(crate) fn gpu_not_back(kind: JobKind) -> String {
    let noun = kind.noun();
    format!(
        "the session made room on the GPU for others and could not return; this {noun} runs in a new session with \
         your variables"
    )
}

pub(crate) fn gpu_failed_before(kind: JobKind, code: u32) -> String {
    let noun = kind.noun();
    format!(
        "after the last {noun} the GPU reported an error (CUDA error {code}); this {noun} runs in a new session with \
         your variables"
    )
}
