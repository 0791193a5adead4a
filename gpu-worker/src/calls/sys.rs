//! Seccomp's user notification: the worker learns of a system call before the system carries it out.
//!
//! The session's process installs a filter between fork and exec, and its children inherit it. Each call that the
//! filter names waits until the worker either lets it continue or sets its result.
#![allow(unsafe_code)]

use super::table::{About, Watched, about};
use nix::{
    libc,
    sys::socket::{ControlMessageOwned, MsgFlags, recvmsg},
};
use std::{
    io::{self, IoSliceMut},
    mem::{offset_of, size_of, zeroed},
    os::{
        fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
        unix::net::UnixStream,
    },
};
use tokio::process::Command;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// A thread that waits in one of the watched calls.
pub(crate) struct Notification {
    pub(super) id: u64,
    /// The id of the thread that waits.
    pub(crate) thread: i32,
    pub(crate) about: About,
}

/// The flag of `pidfd_open` for a descriptor of a single thread, since Linux 6.9.
const PIDFD_THREAD: libc::c_int = libc::O_EXCL;

/// How a session's first process installs its filter, and where it sends the listener.
pub(crate) struct Watching {
    watched: Watched,
    to_worker: UnixStream,
    /// The other end of the connection, of which the process must close its copy.
    from_session: RawFd,
}

impl Watching {
    pub(crate) fn new(watched: Watched, to_worker: UnixStream, from_session: &UnixStream) -> Self {
        Self {
            watched,
            to_worker,
            from_session: from_session.as_raw_fd(),
        }
    }

    /// For a process that `command` starts.
    pub(crate) fn before(self, command: &mut Command) {
        watch(command, self);
    }

    /// For a process that installs the filter itself: the filter's program, and the socket to which the process sends
    /// the listener.
    pub(crate) fn into_parts(self) -> (Vec<u8>, OwnedFd) {
        (bytes(&program(self.watched)), self.to_worker.into())
    }
}

/// Lets the process that `command` starts install the filter and send its listener to the other end of `to_worker`. If
/// the system does not allow the filter, the process starts without it, and the worker sees the connection close.
///
/// The child closes its copies of the listener and of both ends of the connection (`to_worker` and `from_session`),
/// because its own `execve` may wait for an answer. If the worker is killed at that moment, the system lets the call
/// fail only when the last copy of the listener is closed. With a copy in the child, the child would wait for ever.
fn watch(command: &mut Command, watching: Watching) {
    let Watching {
        watched,
        to_worker,
        from_session,
    } = watching;
    let filter = program(watched);
    let in_child = move || {
        if let Ok(listener) = install(&filter) {
            let sent = send(to_worker.as_raw_fd(), listener);
            for copy in [listener, to_worker.as_raw_fd(), from_session] {
                // SAFETY: this process executes another program or ends, so nothing uses these descriptors again.
                unsafe { libc::close(copy) };
            }
            sent?;
        }
        Ok(())
    };
    // SAFETY: the closure only makes system calls that are safe between fork and exec; it allocates nothing and
    // takes no lock.
    unsafe { command.pre_exec(in_child) };
}

/// A program of classic BPF in the system's binary form.
pub(crate) fn bytes(program: &[libc::sock_filter]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(size_of_val(program));
    for instruction in program {
        bytes.extend(instruction.code.to_ne_bytes());
        bytes.extend([instruction.jt, instruction.jf]);
        bytes.extend(instruction.k.to_ne_bytes());
    }
    bytes
}

fn program(watched: Watched) -> Vec<libc::sock_filter> {
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    let jump = |k: u32, jt: u8, jf: u8| libc::sock_filter {
        code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
        jt,
        jf,
        k,
    };
    let load = |offset: usize| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset as u32);
    let answer = |value: u32| statement(libc::BPF_RET | libc::BPF_K, value);
    let mut filter = vec![
        load(offset_of!(libc::seccomp_data, arch)),
        // Calls of another architecture have other numbers, so none of them waits.
        jump(ARCHITECTURE, 1, 0),
        answer(libc::SECCOMP_RET_ALLOW),
        load(offset_of!(libc::seccomp_data, nr)),
    ];
    for call in watched.calls() {
        let number = call.number as u32;
        match call.unless_zero {
            None => filter.push(jump(number, 0, 1)),
            Some(argument) => filter.extend([
                jump(number, 0, 4),
                // The lower half comes first, because both architectures are little-endian.
                load(offset_of!(libc::seccomp_data, args) + argument * size_of::<u64>()),
                jump(0, 0, 1),
                answer(libc::SECCOMP_RET_ALLOW),
            ]),
        }
        filter.push(answer(libc::SECCOMP_RET_USER_NOTIF));
    }
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    filter
}

fn install(filter: &[libc::sock_filter]) -> io::Result<RawFd> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    let seccomp = || {
        // SAFETY: the program and its filter live until the call returns.
        let listener = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_NEW_LISTENER,
                &raw const program,
            )
        };
        if listener < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(listener as RawFd)
    };
    seccomp().or_else(|_| {
        // Without administrator rights, a process may install a filter only if it can gain no more rights.
        // SAFETY: a system call with numbers only.
        unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
        seccomp()
    })
}

/// Sends a descriptor with `SCM_RIGHTS`, without allocating.
fn send(socket: RawFd, file: RawFd) -> io::Result<()> {
    #[repr(C)]
    struct Control {
        header: libc::cmsghdr,
        file: libc::c_int,
        padding: libc::c_int,
    }
    // SAFETY: all of these are plain numbers and pointers, for which zero is a value.
    let (mut control, mut message): (Control, libc::msghdr) = unsafe { (zeroed(), zeroed()) };
    control.header.cmsg_level = libc::SOL_SOCKET;
    control.header.cmsg_type = libc::SCM_RIGHTS;
    control.header.cmsg_len = (size_of::<libc::cmsghdr>() + size_of::<libc::c_int>()) as _;
    control.file = file;
    let mut byte = [b'!'];
    let mut slice = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    message.msg_iov = &raw mut slice;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>() as _;
    // SAFETY: everything that the message points to lives until the call returns.
    match unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_NOSIGNAL) } {
        1 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Waits for the listener that the session sends. `None` if the session could not install its filter.
pub(crate) fn receive_listener(from_session: &UnixStream) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut slices = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!([RawFd; 1]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let received = recvmsg::<()>(
        from_session.as_raw_fd(),
        &mut slices,
        Some(&mut space),
        flags,
    )
    .ok()?;
    for message in received.cmsgs().ok()? {
        if let ControlMessageOwned::ScmRights(files) = message {
            // SAFETY: the system has just created this descriptor for this process, and nothing else owns it.
            return files
                .first()
                .map(|raw| unsafe { OwnedFd::from_raw_fd(*raw) });
        }
    }
    None
}

/// The next call that waits. `None` if its thread has ended, or if no answer is needed.
pub(super) fn receive(listener: &OwnedFd) -> io::Result<Option<Notification>> {
    // SAFETY: the structure contains only numbers, for which zero is valid; the system requires zeros.
    let mut received: libc::seccomp_notif = unsafe { zeroed() };
    // SAFETY: the system writes only to the structure, which has the size that the system expects.
    let result = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_RECV,
            &raw mut received,
        )
    };
    if result != 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            Some(libc::ENOENT | libc::EINTR) => Ok(None),
            _ => Err(error),
        };
    }
    let number = libc::c_long::from(received.data.nr);
    let Some(about) = about(number, received.data.args) else {
        resume(listener, received.id);
        return Ok(None);
    };
    Ok(Some(Notification {
        id: received.id,
        thread: received.pid as i32,
        about,
    }))
}

/// Lets the system carry out the call.
pub(super) fn resume(listener: &OwnedFd, id: u64) {
    respond(
        listener,
        id,
        0,
        libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
    );
}

/// Lets the call fail with this error number.
pub(super) fn refuse(listener: &OwnedFd, id: u64, errno: i32) {
    respond(listener, id, -errno, 0);
}

/// Lets the call return zero, because the worker has carried it out.
pub(super) fn is_done(listener: &OwnedFd, id: u64) {
    respond(listener, id, 0, 0);
}

/// Lets the call return a new descriptor of this file in the process that waits.
pub(super) fn give(listener: &OwnedFd, id: u64, file: BorrowedFd<'_>, closes_on_exec: bool) {
    let given = libc::seccomp_notif_addfd {
        id,
        flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
        srcfd: file.as_raw_fd().cast_unsigned(),
        newfd: 0,
        newfd_flags: if closes_on_exec {
            libc::O_CLOEXEC as u32
        } else {
            0
        },
    };
    // SAFETY: the structure lives until the call returns.
    let result = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_ADDFD,
            &raw const given,
        )
    };
    if result < 0 {
        refuse(listener, id, libc::EMFILE);
    }
}

/// Whether the call still waits.
pub(super) fn waits(listener: &OwnedFd, id: u64) -> bool {
    // SAFETY: the number lives until the call returns.
    let result = unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_ID_VALID,
            &raw const id,
        )
    };
    result == 0
}

/// A copy of a thread's descriptor with this number.
pub(crate) fn file_of(thread: i32, number: i32) -> io::Result<OwnedFd> {
    let owned = |descriptor: libc::c_long| match RawFd::try_from(descriptor) {
        // SAFETY: the system just opened it for this process.
        Ok(descriptor @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    };
    // SAFETY: a system call with numbers only.
    let process = unsafe { libc::syscall(libc::SYS_pidfd_open, thread, PIDFD_THREAD) };
    let process = owned(process)?;
    // SAFETY: as above.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), number, 0) })
}

/// Answers a call. Errors are ignored, because they mean that the call no longer waits.
fn respond(listener: &OwnedFd, id: u64, error: i32, flags: u32) {
    let mut response = libc::seccomp_notif_resp {
        id,
        val: 0,
        error,
        flags,
    };
    // SAFETY: as in `receive`.
    unsafe {
        libc::ioctl(
            listener.as_raw_fd(),
            libc::SECCOMP_IOCTL_NOTIF_SEND,
            &raw mut response,
        );
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const EVERYTHING: Watched = Watched {
        removals: true,
        opens: true,
        shared: true,
    };

    /// Starts a program with a filter, on a separate thread, because the start blocks until the program's `execve` is
    /// answered.
    fn start() -> (UnixStream, std::thread::JoinHandle<io::Result<()>>) {
        let (from_session, to_worker) = UnixStream::pair().unwrap();
        let mut command = Command::new("true");
        let watching = Watching::new(EVERYTHING, to_worker, &from_session);
        watching.before(&mut command);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let starts = move || {
            let _inside = runtime.enter();
            command.spawn().map(drop)
        };
        (from_session, std::thread::spawn(starts))
    }

    /// If a worker is killed, the system closes the worker's copies in this way.
    #[test]
    fn a_start_fails_when_the_worker_closes_the_listener_without_an_answer() {
        let (from_session, start) = start();
        let listener = receive_listener(&from_session).unwrap();
        drop((from_session, listener));
        let error = start.join().unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSYS));
    }
}
