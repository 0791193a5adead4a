//! The filter of system calls: it refuses calls that sessions do not need and that could lead out of a sandbox.
//!
//! Three calls need an explanation. `memfd_create` is allowed because CUDA and Baton need it. `ptrace` is allowed
//! because the process namespace, or Landlock, limits it to the session's own processes. `clone3` keeps its flags in
//! memory, where a filter cannot read them. With bubblewrap, the limit of user namespaces (`--disable-userns`) prevents
//! that it creates namespaces. Without bubblewrap it fails with `ENOSYS`, and the C library uses `clone` instead.
//!
//! A session without namespaces of its own ([`Isolation::Landlock`]) shares identifiers with the whole machine. For it, the
//! filter also refuses the calls that name something by such an identifier, for example System V shared memory.

use crate::calls::bytes;
use nix::{
    libc,
    sys::memfd::{MFdFlags, memfd_create},
};
use std::{
    io::{self, Seek as _, Write as _},
    mem::offset_of,
    os::fd::OwnedFd,
};

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// Numbers from here on belong to the x32 interface, in which the calls below have other numbers.
#[cfg(target_arch = "x86_64")]
const OTHER_INTERFACE: u32 = 0x4000_0000;

/// Calls that fail with "not permitted".
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

/// Calls that fail as if the system did not have them, so that programs use others. `openat2` is one of them because it
/// keeps the mode of a new file in memory, where a filter cannot read it.
const ABSENT: &[libc::c_long] = &[
    libc::SYS_openat2,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
];

/// The families of sockets that a network namespace separates. Of the others, `AF_VSOCK` reaches the host of a virtual
/// machine from any namespace, and most belong to rarely used code of the system's kernel.
const ALLOWED_SOCKETS: &[libc::c_int] = &[
    libc::AF_UNIX,
    libc::AF_INET,
    libc::AF_INET6,
    libc::AF_NETLINK,
];

/// What isolates a session besides the filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Isolation {
    Namespaces,
    /// In the machine's namespaces. Calls that only the worker can check wait for it (`calls`).
    Landlock {
        has_network: bool,
    },
}

/// Calls that fail under Landlock as if the system did not have them. Most of them concern memory, queues and file
/// events of the whole machine; `clone3` is explained above.
const OF_THE_MACHINE: &[libc::c_long] = &[
    libc::SYS_clone3,
    libc::SYS_fanotify_init,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_inotify_init,
    libc::SYS_inotify_init1,
    libc::SYS_mq_open,
    libc::SYS_mq_unlink,
    libc::SYS_msgctl,
    libc::SYS_msgget,
    libc::SYS_msgrcv,
    libc::SYS_msgsnd,
    libc::SYS_semctl,
    libc::SYS_semget,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_shmat,
    libc::SYS_shmctl,
    libc::SYS_shmget,
    // Older and newer variants of calls that the worker checks.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    SYS_SETXATTRAT,
    SYS_REMOVEXATTRAT,
    SYS_FILE_SETATTR,
];
const SYS_SETXATTRAT: libc::c_long = 463;
const SYS_REMOVEXATTRAT: libc::c_long = 466;
const SYS_FILE_SETATTR: libc::c_long = 469;

/// Calls that fail with "not permitted" under Landlock, which does not check them: they would also reach files of the
/// worker's user that do not belong to the session.
const OF_THE_OWNER: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
];

/// Calls that fail under Landlock as if the file system had no extended attributes. Programs that copy files accept
/// that.
const ATTRIBUTES: &[libc::c_long] = &[
    libc::SYS_fremovexattr,
    libc::SYS_fsetxattr,
    libc::SYS_lremovexattr,
    libc::SYS_lsetxattr,
    libc::SYS_removexattr,
    libc::SYS_setxattr,
];

/// A call that can set the mode of a file, and which of its arguments matter. No session may set the set-user-ID or
/// set-group-ID bit: if another user of the machine can reach the file, that user could run it as the worker's user.
struct GivesMode {
    call: libc::c_long,
    mode: usize,
    /// The flags of a call whose mode counts only if it creates a file.
    flags: Option<usize>,
}

const CREATES: &[GivesMode] = &[
    #[cfg(target_arch = "x86_64")]
    GivesMode::new(libc::SYS_open, 2, Some(1)),
    GivesMode::new(libc::SYS_openat, 3, Some(2)),
    #[cfg(target_arch = "x86_64")]
    GivesMode::new(libc::SYS_creat, 1, None),
    #[cfg(target_arch = "x86_64")]
    GivesMode::new(libc::SYS_mknod, 1, None),
    GivesMode::new(libc::SYS_mknodat, 2, None),
];
/// Calls that change a mode. Under Landlock the filter lets them pass, because the worker makes the change itself and
/// removes the set-ID bits.
const CHANGES_MODE: &[GivesMode] = &[
    #[cfg(target_arch = "x86_64")]
    GivesMode::new(libc::SYS_chmod, 1, None),
    GivesMode::new(libc::SYS_fchmod, 1, None),
    GivesMode::new(libc::SYS_fchmodat, 2, None),
    GivesMode::new(SYS_FCHMODAT2, 2, None),
];
const SYS_FCHMODAT2: libc::c_long = 452;
const SET_ID: u32 = 0o6000;
/// The flags with which `open` creates a file. `O_TMPFILE` contains the bit of `O_DIRECTORY`, which alone creates
/// nothing.
const CREATE: u32 = (libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY)).cast_unsigned();

impl GivesMode {
    const fn new(call: libc::c_long, mode: usize, flags: Option<usize>) -> Self {
        Self { call, mode, flags }
    }
}

/// A call that fails with "not permitted" if this argument has one of these values.
struct DeniedValues {
    call: libc::c_long,
    argument: usize,
    values: &'static [u32],
}

/// Leases and notices about files. A lease delays every process that opens the file, also a file that the session can
/// only read.
const OF_FILES: DeniedValues = DeniedValues {
    call: libc::SYS_fcntl,
    argument: 1,
    values: &[
        libc::F_SETLEASE.cast_unsigned(),
        libc::F_NOTIFY.cast_unsigned(),
    ],
};
/// Under Landlock: calls that affect all processes of the user.
const OF_ALL: &[DeniedValues] = &[
    DeniedValues {
        call: libc::SYS_setpriority,
        argument: 0,
        values: &[libc::PRIO_USER],
    },
    DeniedValues {
        call: libc::SYS_ioprio_set,
        argument: 0,
        values: &[IOPRIO_WHO_USER],
    },
];
const IOPRIO_WHO_USER: u32 = 3;

/// The types of local sockets that are allowed under Landlock. Datagram sockets are not, because they can send to any
/// address without `connect`, which is the call that the worker checks.
const CONNECTED: &[libc::c_int] = &[libc::SOCK_STREAM, libc::SOCK_SEQPACKET];
/// The bits of the argument that contain the type; the others are flags.
const KIND: u32 = 0xf;

/// The flags that create a new namespace. `CLONE_NEWTIME` is missing because in `clone` its bit is part of a signal's
/// number; without a capability, `unshare` refuses it anyway.
const NEW_NAMESPACE: libc::c_int = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// A file in memory with the filter's program, for bubblewrap or for a process that confines itself.
pub(super) fn file(isolation: Isolation) -> io::Result<OwnedFd> {
    let mut file = std::fs::File::from(memfd_create(c"baton-filter", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(&bytes(&program(isolation)))?;
    file.rewind()?;
    Ok(file.into())
}

/// The filter's program for forks that enter a sandbox, in the system's binary form.
pub(super) fn of_forks() -> Vec<u8> {
    bytes(&program(Isolation::Namespaces))
}

/// Each part continues after itself for calls that it does not decide.
fn program(isolation: Isolation) -> Vec<libc::sock_filter> {
    let mut program = other_interfaces();
    program.extend(failing_calls(isolation));
    program.extend(set_id_bits(isolation));
    program.extend(new_namespaces());
    program.extend(denied_values(isolation));
    if let Isolation::Landlock { .. } = isolation {
        program.extend(local_sockets());
    }
    program.extend(socket_families(isolation));
    program
}

/// Refuses calls of other architectures, and loads the call's number.
fn other_interfaces() -> Vec<libc::sock_filter> {
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
    program
}

fn failing_calls(isolation: Isolation) -> Vec<libc::sock_filter> {
    let mut failing = vec![(DENIED, libc::EPERM), (ABSENT, libc::ENOSYS)];
    if let Isolation::Landlock { .. } = isolation {
        failing.extend([
            (OF_THE_MACHINE, libc::ENOSYS),
            (OF_THE_OWNER, libc::EPERM),
            (ATTRIBUTES, libc::ENOTSUP),
        ]);
    }
    let of_call = |call: libc::c_long, errno| [is_call(call, 1), fail(errno)];
    let failing = failing.into_iter();
    failing
        .flat_map(|(calls, errno)| calls.iter().flat_map(move |call| of_call(*call, errno)))
        .collect()
}

fn set_id_bits(isolation: Isolation) -> Vec<libc::sock_filter> {
    let mut modes = vec![CREATES];
    if isolation == Isolation::Namespaces {
        modes.push(CHANGES_MODE);
    }
    let mut program = Vec::new();
    for GivesMode { call, mode, flags } in modes.into_iter().flatten() {
        let creates =
            flags.map(|flags| [argument(flags), when(libc::BPF_JSET, CREATE, 1, 0), allow()]);
        let mut checks: Vec<_> = creates.into_iter().flatten().collect();
        checks.extend([
            argument(*mode),
            when(libc::BPF_JSET, SET_ID, 0, 1),
            fail(libc::EPERM),
            allow(),
        ]);
        program.push(is_call(*call, checks.len()));
        program.extend(checks);
    }
    program
}

fn new_namespaces() -> Vec<libc::sock_filter> {
    let of_call = |call| {
        [
            is_call(call, 4),
            argument(0),
            when(libc::BPF_JSET, NEW_NAMESPACE.cast_unsigned(), 0, 1),
            fail(libc::EPERM),
            allow(),
        ]
    };
    [libc::SYS_unshare, libc::SYS_clone].map(of_call).concat()
}

fn denied_values(isolation: Isolation) -> Vec<libc::sock_filter> {
    let mut denied = vec![&OF_FILES];
    if let Isolation::Landlock { .. } = isolation {
        denied.extend(OF_ALL);
    }
    let mut program = Vec::new();
    for of in denied {
        let mut checks = vec![argument(of.argument)];
        for value in of.values {
            checks.extend([when(libc::BPF_JEQ, *value, 0, 1), fail(libc::EPERM)]);
        }
        checks.push(allow());
        program.push(is_call(of.call, checks.len()));
        program.extend(checks);
    }
    program
}

/// Refuses sockets of other families, and allows everything else.
fn socket_families(isolation: Isolation) -> Vec<libc::sock_filter> {
    let mut families = ALLOWED_SOCKETS.to_vec();
    if let Isolation::Landlock { has_network: false } = isolation {
        families.retain(|family| !matches!(*family, libc::AF_INET | libc::AF_INET6));
    }
    let count = families.len() as u8;
    let mut program = vec![is_call(libc::SYS_socket, families.len() + 2), argument(0)];
    for (index, family) in (1..).zip(families) {
        // Skips the other families and the refusal.
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

/// Refuses local sockets of types other than [`CONNECTED`]. For other calls the program continues after this part.
fn local_sockets() -> Vec<libc::sock_filter> {
    let count = CONNECTED.len() as u8;
    let mut program = vec![
        when(libc::BPF_JEQ, libc::SYS_socketpair as u32, 1, 0),
        when(libc::BPF_JEQ, libc::SYS_socket as u32, 0, count + 6),
        argument(0),
        when(libc::BPF_JEQ, libc::AF_UNIX.cast_unsigned(), 0, count + 3),
        argument(1),
        instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, KIND),
    ];
    for (index, kind) in (1..).zip(CONNECTED) {
        program.push(when(
            libc::BPF_JEQ,
            kind.cast_unsigned(),
            count + 1 - index,
            0,
        ));
    }
    // The instructions that follow compare the call's number, so it is loaded again.
    program.extend([
        fail(libc::EPROTONOSUPPORT),
        load(offset_of!(libc::seccomp_data, nr)),
    ]);
    program
}

/// Loads the lower half of an argument. It comes first, because both architectures are little-endian.
fn argument(number: usize) -> libc::sock_filter {
    load(offset_of!(libc::seccomp_data, args) + number * size_of::<u64>())
}

fn load(offset: usize) -> libc::sock_filter {
    instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32)
}

fn allow() -> libc::sock_filter {
    answer(libc::SECCOMP_RET_ALLOW)
}

fn fail(errno: i32) -> libc::sock_filter {
    answer(libc::SECCOMP_RET_ERRNO | errno.cast_unsigned())
}

/// For other calls, skips this many instructions.
fn is_call(call: libc::c_long, skipped: usize) -> libc::sock_filter {
    when(libc::BPF_JEQ, call as u32, 0, skipped as u8)
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

/// A jump that skips `holds` instructions if the comparison is true, and `fails` instructions if it is false.
fn when(comparison: u32, k: u32, holds: u8, fails: u8) -> libc::sock_filter {
    libc::sock_filter {
        jt: holds,
        jf: fails,
        ..instruction(libc::BPF_JMP | comparison | libc::BPF_K, k)
    }
}
