//! The system calls that a session has no use for: each of them has led out of sandboxes.
//!
//! `memfd_create` is not among them, because CUDA and Baton need it. Neither is `ptrace`: the process namespace leaves it
//! nothing but the session's own processes. `clone3` keeps its arguments in memory, where no filter sees them; the limit
//! of user namespaces (`--disable-userns`) stops it.

use std::io::{self, Seek as _, Write as _};
use std::mem::offset_of;
use std::os::fd::OwnedFd;

use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Numbers from here on belong to the x32 interface, which would lead around the list below.
#[cfg(target_arch = "x86_64")]
const OTHER_INTERFACE: u32 = 0x4000_0000;

/// They fail with "not permitted".
const DENIED: &[libc::c_long] = &[
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_keyctl,
    libc::SYS_perf_event_open,
    libc::SYS_request_key,
    libc::SYS_userfaultfd,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_open_by_handle_at,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    // Mounts and namespaces.
    libc::SYS_chroot,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_pivot_root,
    libc::SYS_setns,
    libc::SYS_umount2,
    // The machine itself.
    libc::SYS_acct,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_reboot,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
];

/// They fail as on a system that does not have them, so programs do without.
const ABSENT: &[libc::c_long] = &[
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
];

/// A network namespace separates these. `AF_VSOCK` leads past it to the machine's host, others to little-used code of
/// the kernel.
const ALLOWED_SOCKETS: &[libc::c_int] = &[
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

/// Makes a new namespace of any kind. `CLONE_NEWTIME` is not here, because `clone` takes its bit for a signal.
const NEW_NAMESPACE: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// A file with the filter's program, as bubblewrap reads it.
pub(super) fn file() -> io::Result<OwnedFd> {
    let mut file = std::fs::File::from(memfd_create(c"baton-filter", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(&bytes(&program()))?;
    file.rewind()?;
    Ok(file.into())
}

/// The filter's program, as the system stores it.
pub(super) fn of_forks() -> Vec<u8> {
    bytes(&program())
}

/// A program of classic BPF as the system stores it.
pub(crate) fn bytes(program: &[libc::sock_filter]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(program));
    for instruction in program {
        bytes.extend(instruction.code.to_ne_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_ne_bytes());
    }
    bytes
}

fn program() -> Vec<libc::sock_filter> {
    let load =
        |offset: usize| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32);
    let fail = |errno: i32| answer(libc::SECCOMP_RET_ERRNO | errno.cast_unsigned());
    let mut program = vec![
        load(offset_of!(libc::seccomp_data, arch)),
        when(libc::BPF_JEQ, ARCHITECTURE, 1, 0),
        fail(libc::ENOSYS),
        load(offset_of!(libc::seccomp_data, nr)),
    ];
    #[cfg(target_arch = "x86_64")]
    program.extend([
        when(libc::BPF_JGE, OTHER_INTERFACE, 0, 1),
        fail(libc::ENOSYS),
    ]);
    for (calls, errno) in [(DENIED, libc::EPERM), (ABSENT, libc::ENOSYS)] {
        for call in calls {
            program.extend([when(libc::BPF_JEQ, *call as u32, 0, 1), fail(errno)]);
        }
    }
    let allow = || answer(libc::SECCOMP_RET_ALLOW);
    // Both processors keep the lower half first.
    let first_argument = || load(offset_of!(libc::seccomp_data, args));
    for call in [libc::SYS_unshare, libc::SYS_clone] {
        program.extend([
            when(libc::BPF_JEQ, call as u32, 0, 4),
            first_argument(),
            when(libc::BPF_JSET, NEW_NAMESPACE.cast_unsigned(), 0, 1),
            fail(libc::EPERM),
            allow(),
        ]);
    }
    let count = ALLOWED_SOCKETS.len() as u8;
    program.extend([
        when(libc::BPF_JEQ, libc::SYS_socket as u32, 0, count + 2),
        first_argument(),
    ]);
    for (index, family) in (1..).zip(ALLOWED_SOCKETS) {
        // Over the other families and the refusal.
        program.push(when(
            libc::BPF_JEQ,
            family.cast_unsigned(),
            count + 1 - index,
            0,
        ));
    }
    program.extend([fail(libc::EAFNOSUPPORT), allow()]);
    program
}

fn answer(value: u32) -> libc::sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, value)
}

fn instruction(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Skips so many instructions when the comparison holds, or when it does not.
fn when(comparison: u32, k: u32, holds: u8, fails: u8) -> libc::sock_filter {
    libc::sock_filter {
        jt: holds,
        jf: fails,
        ..instruction(libc::BPF_JMP | comparison | libc::BPF_K, k)
    }
}
