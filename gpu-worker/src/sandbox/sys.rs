//! Handing open descriptors to a program that is started, and putting it into control groups.
#![allow(unsafe_code)]

use std::os::fd::OwnedFd;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::unistd::write;
use tokio::process::Command;

/// What `command` starts has these descriptors open, under the same numbers.
pub(crate) fn inherit(command: &mut Command, descriptors: Vec<OwnedFd>) {
    let in_child = move || {
        for descriptor in &descriptors {
            fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty()))?;
        }
        Ok(())
    };
    // SAFETY: the closure only makes system calls that are safe between fork and exec; it allocates nothing and takes
    // no lock.
    unsafe { command.pre_exec(in_child) };
}

/// What `command` starts is in these control groups from its first instruction on.
pub(super) fn join(command: &mut Command, doors: Vec<OwnedFd>) {
    let in_child = move || {
        for door in &doors {
            write(door, b"0")?;
        }
        Ok(())
    };
    // SAFETY: as above.
    unsafe { command.pre_exec(in_child) };
}
