//! The notebook kernel as a process: what ends it, and what its end means for this process.
//!
//! **Invariant:** the kernel is never restarted in place. Jupyter sees that it ended and does what
//! the user wants.

mod forked;

use baton_jupyter_wire::process::{kill_tree, parent, parent_gone, terminate};
use nix::unistd::Pid;
use std::{os::unix::process::ExitStatusExt as _, process::ExitStatus, time::Duration};
use tokio::{
    process::Child,
    signal::unix::{Signal, SignalKind, signal},
};

pub use forked::ForkedKernel;

/// How long the kernel may take to end after it was asked to.
const GRACE: Duration = Duration::from_secs(2);

pub(crate) struct Signals {
    parent: Pid,
    terminations: Signal,
    /// The kernel is in the same process group and receives every interrupt itself; this process only has to
    /// survive it. This is a handler because the kernel would inherit an ignored signal.
    _interrupts: Signal,
}

impl Signals {
    pub(crate) fn listen() -> std::io::Result<Self> {
        Ok(Self {
            parent: parent(),
            terminations: signal(SignalKind::terminate())?,
            _interrupts: signal(SignalKind::interrupt())?,
        })
    }
}

/// The notebook kernel, a child of this process.
pub(crate) enum Kernel {
    Started(Child),
    Forked(forked::Running),
}

impl Kernel {
    /// `None` once the kernel has ended.
    pub(crate) fn id(&self) -> Option<u32> {
        match self {
            Self::Started(child) => child.id(),
            Self::Forked(kernel) => Some(kernel.id()),
        }
    }

    async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        match self {
            Self::Started(child) => child.wait().await,
            Self::Forked(kernel) => kernel.wait().await,
        }
    }
}

/// Waits for the end of the kernel. Ends it when this process is asked to end or its parent is gone.
pub(crate) async fn supervise(
    kernel: &mut Kernel,
    kernel_pid: u32,
    mut signals: Signals,
) -> std::io::Result<ExitStatus> {
    tokio::select! {
        status = kernel.wait() => return status,
        _ = signals.terminations.recv() => {}
        () = parent_gone(signals.parent) => tracing::info!("The process that started this kernel is gone: exiting"),
    }
    terminate(kernel_pid);
    if let Ok(status) = tokio::time::timeout(GRACE, kernel.wait()).await {
        return status;
    }
    kill_tree(kernel_pid);
    kernel.wait().await
}

/// The exit code as a shell reports it: 128 plus the signal's number if the process was killed.
pub(crate) fn exit_code(status: ExitStatus) -> i32 {
    let by_signal = || 128 + status.signal().unwrap_or_default();
    status.code().unwrap_or_else(by_signal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_by_signal_is_told_like_a_shell_does() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
        assert_eq!(exit_code(ExitStatus::from_raw(0)), 0);
    }
}
