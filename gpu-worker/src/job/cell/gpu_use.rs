//! The cell's use of a GPU that sessions share.
//!
//! In: when the cell starts and ends. Out: what it used, and whether the session can continue.

use crate::{
    gpu::{Cell, EndReason, Usage},
    job::Ending,
    messages,
    session::Session,
};
use baton_protocol::{self as protocol, GpuUsage, JobKind};
use std::time::Duration;

pub(super) struct GpuUse {
    pub(super) usage: Option<GpuUsage>,
    /// Whether the session can still use the GPU.
    pub(super) can_continue: bool,
    /// What the student is told about the session.
    pub(super) warnings: Vec<String>,
}

/// A warning if nothing enforces the GPU memory limit that the cell was given.
pub(super) fn not_enforced(session: &Session, cell: &protocol::Cell) -> Option<String> {
    cell.gpu_memory_bytes
        .filter(|_| session.gpu().is_none())
        .map(|bytes| messages::no_gpu_limit(cell.kind, bytes))
}

/// Reports the cell to the arbiter of its GPU.
pub(super) fn report(session: &Session, cell: Cell) {
    if let Some(gpu) = session.gpu() {
        gpu.cell(cell);
    }
}

/// If the arbiter ended the session's use of the GPU, the ending gets the reason.
pub(super) async fn end(session: &Session, kind: JobKind, ending: &mut Ending) -> GpuUse {
    let Some(gpu) = session.gpu() else {
        return GpuUse {
            usage: None,
            can_continue: true,
            warnings: Vec::new(),
        };
    };
    gpu.cell(Cell::Ended);
    let used = gpu.usage().await;
    if let Some(reason) = used.ended.filter(|_| ending.finished.state.is_none()) {
        ending.finished.error = Some(match reason {
            EndReason::Kept => messages::kept_the_gpu(kind),
            EndReason::NoRoom => messages::no_room_on_the_gpu(kind),
            EndReason::NoHostRoom => messages::no_room_on_the_host(kind),
        });
    }
    let fault = used.fault.map(|code| messages::gpu_fault(kind, code));
    let bypassed = used.bypassed.then(|| messages::GPU_BYPASSED.to_owned());
    // For a program, zero is reported, too: without usage, the broker would charge its whole run time.
    let is_reported = used.peak_bytes > 0 || !used.held.is_zero() || kind.is_program();
    GpuUse {
        can_continue: used.fault.is_none() && used.ended.is_none(),
        usage: is_reported.then(|| reported(used)),
        warnings: fault.into_iter().chain(bypassed).collect(),
    }
}

fn reported(used: Usage) -> GpuUsage {
    let milliseconds = |time: Duration| time.as_millis().try_into().unwrap_or(u64::MAX);
    GpuUsage {
        held_ms: milliseconds(used.held),
        waited_ms: milliseconds(used.waited),
        swaps: used.swaps,
        peak_memory_bytes: used.peak_bytes,
    }
}
