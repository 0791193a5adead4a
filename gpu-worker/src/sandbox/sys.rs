//! System calls for processes that are started: they inherit descriptors, join control groups and end with their
//! parent.
#![allow(unsafe_code)]

use nix::{
    fcntl::{FcntlArg, FdFlag, fcntl},
    libc,
    sys::{
        prctl::set_pdeathsig,
        signal::{SigHandler, Signal, signal},
    },
    unistd::{Pid, write},
};
use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd},
};
use tokio::process::Command;

/// Lets the process that `command` starts inherit these descriptors, with the same numbers.
pub(crate) fn inherit<D>(command: &mut Command, descriptors: Vec<D>)
where
    D: AsFd + Send + Sync + 'static,
{
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

/// Lets the process that `command` starts end with the thread of this process that starts it.
pub(super) fn end_with_parent(command: &mut Command) {
    let in_child = || Ok(set_pdeathsig(Signal::SIGKILL)?);
    // SAFETY: as above.
    unsafe { command.pre_exec(in_child) };
}

/// Lets the process that `command` starts, and those that it starts, ignore SIGTERM. Batch systems send it to all
/// processes of a job that they are about to end, but the worker decides when its sessions end.
pub(crate) fn ignore_sigterm(command: &mut Command) {
    // SAFETY: ignoring a signal runs no code. Otherwise as above.
    let in_child = || {
        unsafe { signal(Signal::SIGTERM, SigHandler::SigIgn) }
            .map(drop)
            .map_err(io::Error::from)
    };
    // SAFETY: as above.
    unsafe { command.pre_exec(in_child) };
}

/// Lets the process that `command` starts join these control groups before it executes the program.
pub(crate) fn join(command: &mut Command, join_files: Vec<OwnedFd>) {
    let in_child = move || {
        for join_file in &join_files {
            write(join_file, b"0")?;
        }
        Ok(())
    };
    // SAFETY: as above.
    unsafe { command.pre_exec(in_child) };
}

/// Connects a socket. `address`: a socket address in the system's binary form.
pub(super) fn connect(socket: &OwnedFd, address: &[u8]) -> io::Result<()> {
    let length = address.len() as libc::socklen_t;
    // SAFETY: the system reads only these bytes, which live until the call returns, and checks the address.
    let result = unsafe { libc::connect(socket.as_raw_fd(), address.as_ptr().cast(), length) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A descriptor that always refers to this process, also when its id is reused.
pub(super) fn process_descriptor(process: Pid) -> io::Result<OwnedFd> {
    // SAFETY: a system call with numbers only.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, process.as_raw(), 0) };
    match i32::try_from(descriptor) {
        // SAFETY: the system just opened it for this process.
        Ok(descriptor @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `NS_GET_USERNS` of `ioctl_ns(2)`.
const NS_GET_USERNS: libc::Ioctl = 0xb701;

/// The user namespace to which another namespace belongs.
pub(super) fn owner_of(namespace: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no argument and returns a descriptor or an error.
    let descriptor = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_USERNS) };
    match descriptor {
        // SAFETY: the system just opened it for this process.
        0.. => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}
