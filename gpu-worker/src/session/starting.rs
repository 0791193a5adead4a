//! The processes of a session that has not answered yet.

use crate::processes;
use nix::unistd::Pid;
use std::time::Duration;

/// How long a session may take to start. Python on a slow network folder is slow.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Ends the processes of a start that fails or is cancelled.
pub(super) struct Starting {
    process: Pid,
    mark: Option<String>,
}

impl Starting {
    pub(super) fn new(process: Pid, mark: String) -> Self {
        Self {
            process,
            mark: Some(mark),
        }
    }

    pub(super) fn finish(mut self) -> String {
        self.mark.take().unwrap_or_default()
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(mark) = &self.mark {
            processes::end_all(self.process, mark, &[]);
        }
    }
}
