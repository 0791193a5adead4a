//! The reasons for which a session does not start.

use super::{starting::PATIENCE, zygote::ZygoteError};
use crate::sandbox::SandboxError;
use baton_humanize::with_causes;
use baton_jupyter_wire::{folder::FolderError, shim::ShimError};
use baton_transport::frames::FrameError;
use std::{path::PathBuf, process::ExitStatus};

#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error("Failed to create {path}")]
    RuntimeFolder {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error("Failed to write into the session's private folder")]
    Library(#[source] std::io::Error),
    #[error("The session could not get its part of the GPU")]
    Gpu(#[source] std::io::Error),
    #[error("Failed to connect to the session")]
    Pair(#[source] std::io::Error),
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error("Failed to watch the system calls of the session")]
    Watch(#[source] std::io::Error),
    #[error("Failed to make a control group")]
    Group(#[source] std::io::Error),
    #[error("Failed to prepare a session")]
    Spare(#[source] ZygoteError),
    #[error("The process that was prepared for a session lacks its confinement")]
    Unconfined,
    #[error("Failed to fork a session")]
    Fork(#[source] std::io::Error),
    #[error("Failed to start {python}")]
    Spawn {
        python: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("{python} ended while the session started{}", with(status))]
    Ended {
        python: PathBuf,
        status: Option<ExitStatus>,
        last_lines: Vec<String>,
    },
    #[error("{python} did not answer within {} s", PATIENCE.as_secs())]
    Silent {
        python: PathBuf,
        last_lines: Vec<String>,
    },
    #[error("{python} has baton_shim {found}, this worker needs {}", env!("CARGO_PKG_VERSION"))]
    Version { python: PathBuf, found: String },
    #[error("The first message of the session was not its greeting")]
    NoHello,
    #[error(transparent)]
    Shim(#[from] ShimError),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

impl StartError {
    /// Whether another attempt on the same machine may succeed.
    pub(crate) fn may_pass(&self) -> bool {
        !matches!(self, Self::Version { .. })
    }

    /// What happened, and a hint, as texts for the student.
    pub(crate) fn explained(&self) -> (String, String) {
        let (lines, hint) = match self {
            Self::Ended {
                python, last_lines, ..
            }
            | Self::Silent { python, last_lines } => (
                last_lines.as_slice(),
                format!("install baton and ipykernel for {}", python.display()),
            ),
            Self::Spawn { python, .. } => (
                &[][..],
                format!(
                    "check that {} exists on the worker's machine",
                    python.display()
                ),
            ),
            Self::Version { python, .. } => (
                &[][..],
                format!(
                    "install the worker's version of baton for {}",
                    python.display()
                ),
            ),
            _ => (&[][..], "tell the operator of the worker".to_owned()),
        };
        let mut what_happened = format!("The session could not start: {}", with_causes(self));
        for line in lines {
            what_happened.push_str("\n  ");
            what_happened.push_str(line);
        }
        if !lines.is_empty() {
            what_happened.push('\n');
        }
        (what_happened, hint)
    }
}

fn with(status: &Option<ExitStatus>) -> String {
    status.map_or_else(String::new, |status| format!(" ({status})"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn a_failed_start_shows_what_python_said() {
        let problem = StartError::Ended {
            python: "/venv/bin/python".into(),
            status: Some(ExitStatus::from_raw(1 << 8)),
            last_lines: vec!["No module named baton_shim".to_owned()],
        };
        let (what, hint) = problem.explained();
        assert!(what.contains("exit status: 1"), "{what}");
        assert!(what.contains("\n  No module named baton_shim\n"), "{what}");
        assert_eq!(hint, "install baton and ipykernel for /venv/bin/python");
    }
}
