//! Forks a process whose only purpose is to preserve memory as it is now.
//!
//! The kernel that forks it has threads, and their locks would never be released in the child. So
//! the child only makes system calls and never returns. It gives up everything except the memory
//! that it keeps, and ends with the worker.
//!
//! **Invariant:** the keeper is a child of the worker and not of the kernel, so no code of the
//! student waits for it.

use core::{arch::asm, ptr};

#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const CLOSE: usize = 3;
    pub(super) const MUNMAP: usize = 11;
    pub(super) const RT_SIGPROCMASK: usize = 14;
    pub(super) const CLONE: usize = 56;
    pub(super) const SETPGID: usize = 109;
    pub(super) const PRCTL: usize = 157;
    pub(super) const EXIT_GROUP: usize = 231;
    pub(super) const PPOLL: usize = 271;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub(super) const CLOSE: usize = 57;
    pub(super) const MUNMAP: usize = 215;
    pub(super) const RT_SIGPROCMASK: usize = 135;
    pub(super) const CLONE: usize = 220;
    pub(super) const SETPGID: usize = 154;
    pub(super) const PRCTL: usize = 167;
    pub(super) const EXIT_GROUP: usize = 94;
    pub(super) const PPOLL: usize = 73;
}

/// The same number on all processors.
const PIDFD_OPEN: usize = 434;
const CLOSE_RANGE: usize = 436;

const CLONE_PARENT: usize = 0x8000;
const SIGCHLD: usize = 17;
const SIG_BLOCK: usize = 0;
const SIG_SETMASK: usize = 2;
const PR_SET_NAME: usize = 15;
const POLLIN: i16 = 1;

const EVERY_SIGNAL: u64 = u64::MAX;
const MASK_BYTES: usize = size_of::<u64>();
const NAME: &[u8; 13] = b"baton-keeper\0";
/// No process has this descriptor, so closing the range from here on has no effect.
const LAST_DESCRIPTOR: usize = u32::MAX as usize;

#[repr(C)]
struct PollDescriptor {
    descriptor: i32,
    events: i16,
    found: i16,
}

/// Forks a child of `worker` that has this process's memory without the ranges in `dropped` (address and size),
/// and lives until it is killed or `worker` ends. Returns its process id, or a negative error number.
///
/// # Safety
/// `worker` is the parent of this process, `dropped` points to `count` ranges, and none of these covers `dropped`
/// itself, this library or the stack of the calling thread.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn baton_keep(
    worker: i32,
    dropped: *const [usize; 2],
    count: usize,
) -> isize {
    // SAFETY: for the whole function: these calls access only this stack and the caller's `dropped`.
    unsafe {
        let supported = call(CLOSE_RANGE, [LAST_DESCRIPTOR, LAST_DESCRIPTOR, 0, 0, 0]);
        if supported < 0 {
            return supported;
        }
        // Open it before the child exists, so that the child notices a worker that ends meanwhile.
        let descriptor = call(PIDFD_OPEN, [worker as usize, 0, 0, 0, 0]);
        if descriptor < 0 {
            return descriptor;
        }
        let mut mask = 0_u64;
        let every = ptr::from_ref(&EVERY_SIGNAL) as usize;
        let before = ptr::from_mut(&mut mask) as usize;
        call(
            number::RT_SIGPROCMASK,
            [SIG_BLOCK, every, before, MASK_BYTES, 0],
        );
        let child = call(number::CLONE, [CLONE_PARENT | SIGCHLD, 0, 0, 0, 0]);
        if child == 0 {
            keep(descriptor, dropped, count);
        }
        call(
            number::RT_SIGPROCMASK,
            [SIG_SETMASK, before, 0, MASK_BYTES, 0],
        );
        call(number::CLOSE, [descriptor as usize, 0, 0, 0, 0]);
        child
    }
}

/// Runs the keeper, with all signals blocked.
///
/// # Safety
/// The same as for [`baton_keep`], in its child.
unsafe fn keep(worker: isize, dropped: *const [usize; 2], count: usize) -> ! {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let descriptor = worker as usize;
        call(number::SETPGID, [0; 5]);
        call(
            number::PRCTL,
            [PR_SET_NAME, NAME.as_ptr() as usize, 0, 0, 0],
        );
        if descriptor > 0 {
            call(CLOSE_RANGE, [0, descriptor - 1, 0, 0, 0]);
        }
        call(CLOSE_RANGE, [descriptor + 1, LAST_DESCRIPTOR, 0, 0, 0]);
        for index in 0..count {
            let [address, bytes] = *dropped.add(index);
            call(number::MUNMAP, [address, bytes, 0, 0, 0]);
        }
        let mut wait = PollDescriptor {
            descriptor: worker as i32,
            events: POLLIN,
            found: 0,
        };
        while wait.found == 0 {
            let place = ptr::from_mut(&mut wait) as usize;
            call(number::PPOLL, [place, 1, 0, 0, 0]);
        }
        loop {
            call(number::EXIT_GROUP, [0; 5]);
        }
    }
}

/// # Safety
/// That of the system call with this number and these arguments.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn call(number: usize, arguments: [usize; 5]) -> isize {
    let result;
    // SAFETY: guaranteed by the caller.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// # Safety
/// That of the system call with this number and these arguments.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
unsafe fn call(number: usize, arguments: [usize; 5]) -> isize {
    let result;
    // SAFETY: guaranteed by the caller.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") arguments[0] => result,
            in("x1") arguments[1],
            in("x2") arguments[2],
            in("x3") arguments[3],
            in("x4") arguments[4],
            options(nostack),
        );
    }
    result
}
