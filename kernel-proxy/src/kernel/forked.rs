//! A notebook kernel that a Python process forked before it replaced itself with this program (`exec`). The
//! kernel loads its libraries while this program starts, then waits for its arguments. That saves the start of
//! a second Python.
//!
//! **Invariant:** the kernel acts only on a complete message. If the pipe closes early, the kernel ends.

use nix::{
    sys::wait::{WaitPidFlag, WaitStatus, waitpid},
    unistd::Pid,
};
use std::{
    ffi::OsStr,
    fs::OpenOptions,
    io::Write as _,
    os::unix::{ffi::OsStrExt as _, process::ExitStatusExt as _},
    process::ExitStatus,
    str::FromStr,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// How to find the forked kernel. Written as `PID:DESCRIPTOR`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForkedKernel {
    pid: i32,
    /// The write end of the pipe on which the kernel waits.
    descriptor: i32,
}

impl FromStr for ForkedKernel {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (pid, descriptor) = text.split_once(':').unwrap_or((text, ""));
        Ok(Self {
            pid: pid.parse()?,
            descriptor: descriptor.parse()?,
        })
    }
}

/// A forked kernel that has received its arguments.
pub(crate) struct Running {
    pid: Pid,
    children: Signal,
}

impl ForkedKernel {
    /// Sends the kernel its arguments, and variables to add to its environment, so that it starts to work.
    pub(crate) fn begin<'a>(
        self,
        environment: &[(&str, &OsStr)],
        arguments: impl Iterator<Item = &'a OsStr>,
    ) -> std::io::Result<Running> {
        let children = signal(SignalKind::child())?;
        let mut words = Vec::new();
        for (name, value) in environment {
            for part in [name.as_bytes(), b"=", value.as_bytes(), b"\0"] {
                words.extend_from_slice(part);
            }
        }
        words.push(0);
        for argument in arguments {
            words.extend_from_slice(argument.as_bytes());
            words.push(0);
        }
        // Open the pipe again, because the inherited descriptor would stay open in programs that
        // this process starts. The new one is closed when they start.
        let mut pipe = OpenOptions::new()
            .write(true)
            .open(format!("/proc/self/fd/{}", self.descriptor))?;
        nix::unistd::close(self.descriptor)?;
        pipe.write_all(&words)?;
        Ok(Running {
            pid: Pid::from_raw(self.pid),
            children,
        })
    }
}

impl Running {
    pub(crate) fn id(&self) -> u32 {
        self.pid.as_raw().unsigned_abs()
    }

    pub(crate) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        loop {
            match waitpid(self.pid, Some(WaitPidFlag::WNOHANG))? {
                WaitStatus::Exited(_, code) => return Ok(ExitStatus::from_raw(code << 8)),
                WaitStatus::Signaled(_, signal, _) => {
                    return Ok(ExitStatus::from_raw(signal as i32));
                }
                _ => {}
            }
            self.children.recv().await;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn two_numbers_say_where_it_is() {
        let forked = ForkedKernel {
            pid: 12,
            descriptor: 3,
        };
        assert_eq!("12:3".parse(), Ok(forked));
        for wrong in ["", "12", "12:", ":3", "a:b"] {
            assert!(wrong.parse::<ForkedKernel>().is_err(), "{wrong}");
        }
    }
}
