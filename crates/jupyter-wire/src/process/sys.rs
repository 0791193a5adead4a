//! Settings of a child process between fork and exec.
#![allow(unsafe_code)]

use nix::{
    sys::{prctl::set_pdeathsig, signal::Signal},
    unistd::{Pid, getpid, getppid},
};
use tokio::process::Command;

/// Lets the operating system kill the child when the thread that starts it ends, even if that
/// happens before the child has asked for it.
pub(super) fn end_with_this_thread(command: &mut Command) {
    let parent: Pid = getpid();
    let in_child = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        if getppid() == parent {
            Ok(())
        } else {
            Err(std::io::ErrorKind::BrokenPipe.into())
        }
    };
    // SAFETY: the closure only makes system calls that are safe between fork and exec; it allocates nothing
    // and takes no lock.
    unsafe { command.pre_exec(in_child) };
}
