//! The cell's use of a GPU that sessions share.
//!
//! In: when the cell starts and ends. Out: what it used, and whether the session can continue.

use std::time::Duration;

use baton_protocol::{GpuUsage, JobKind};

use super::Run;
use crate::gpu::{Cell, EndReason, Usage};
use crate::job::Ending;
use crate::messages;

impl Run<'_> {
    /// Warns the student if nothing enforces the GPU memory limit that the cell was given.
    pub(super) fn announce_limit(&mut self, limit_bytes: Option<u64>) {
        if let Some(bytes) = limit_bytes.filter(|_| self.session.gpu().is_none()) {
            self.warn(vec![messages::no_gpu_limit(bytes)]);
        }
    }

    pub(super) fn report_to_arbiter(&self, cell: Cell) {
        if let Some(gpu) = self.session.gpu() {
            gpu.cell(cell);
        }
    }

    /// Records what the cell used. Returns `false` if the session can no longer use the GPU, and tells the student
    /// why.
    pub(super) async fn end_gpu_use(&mut self, ending: &mut Ending, kind: JobKind) -> bool {
        let Some(gpu) = self.session.gpu() else {
            return true;
        };
        gpu.cell(Cell::Ended);
        let used = gpu.usage().await;
        // For a program, zero is reported, too: without usage, the broker would charge its whole run time.
        if used.peak_bytes > 0 || !used.held.is_zero() || kind.is_program() {
            self.usage.gpu = Some(reported(used));
        }
        if let Some(reason) = used.ended.filter(|_| ending.finished.state.is_none()) {
            ending.finished.error = Some(match reason {
                EndReason::Kept => messages::kept_the_gpu(),
                EndReason::NoRoom => messages::no_room_on_the_gpu(),
                EndReason::NoHostRoom => messages::no_room_on_the_host(),
            });
        }
        if let Some(code) = used.fault {
            self.batcher
                .push(messages::warning(&messages::gpu_fault(code)));
        }
        if used.bypassed {
            self.batcher.push(messages::warning(messages::GPU_BYPASSED));
        }
        used.fault.is_none() && used.ended.is_none()
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
