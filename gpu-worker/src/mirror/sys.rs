//! Notices a file before a process opens it or removes its name: seccomp's user notification.
//!
//! The session gets a filter between fork and exec, which its children inherit. Each system call that opens a file
//! by name, and each that removes or changes a name, waits until the worker permits it.
#![allow(unsafe_code)]

use std::io::{self, IoSliceMut};
use std::mem::{offset_of, size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::libc;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use tokio::process::Command;

use crate::sandbox::bytes;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// The system calls that remove names, and which of their arguments are the folder and the path.
const REMOVALS: &[Call] = &[
    #[cfg(target_arch = "x86_64")]
    Call::removal(libc::SYS_unlink, None, 0),
    #[cfg(target_arch = "x86_64")]
    Call::removal(libc::SYS_rmdir, None, 0),
    Call::removal(libc::SYS_unlinkat, Some(0), 1),
    #[cfg(target_arch = "x86_64")]
    Call::renaming(libc::SYS_rename, (None, 0), (None, 1)),
    #[cfg(target_arch = "x86_64")]
    Call::renaming(libc::SYS_renameat, (Some(0), 1), (Some(2), 3)),
    Call::renaming(libc::SYS_renameat2, (Some(0), 1), (Some(2), 3)),
];

/// The system calls that open files, and which of their arguments are the folder, the path and the flags.
const OPENS: &[Call] = &[
    #[cfg(target_arch = "x86_64")]
    Call::open(libc::SYS_open, None, 0, Flags::Argument(1)),
    #[cfg(target_arch = "x86_64")]
    Call::open(libc::SYS_creat, None, 0, Flags::Emptying),
    Call::open(libc::SYS_openat, Some(0), 1, Flags::Argument(2)),
    Call::open(libc::SYS_openat2, Some(0), 1, Flags::InMemory(2)),
    Call::open(libc::SYS_truncate, None, 0, Flags::None),
    Call::open(libc::SYS_execve, None, 0, Flags::None),
    Call::open(libc::SYS_execveat, Some(0), 1, Flags::None),
];

const MOST_CALLS: usize = REMOVALS.len() + OPENS.len();

/// Which system calls wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watched {
    Removals,
    RemovalsAndOpens,
}

impl Watched {
    fn calls(self) -> impl Iterator<Item = &'static Call> {
        let opens = match self {
            Self::Removals => &[],
            Self::RemovalsAndOpens => OPENS,
        };
        REMOVALS.iter().chain(opens)
    }
}

struct Call {
    number: libc::c_long,
    path: Path,
    purpose: Purpose,
}

/// The numbers of the arguments that are a folder, if the call takes one, and a path.
type Path = (Option<usize>, usize);

enum Purpose {
    Open(Flags),
    Removal,
    Renaming(Path),
}

impl Call {
    const fn open(number: libc::c_long, folder: Option<usize>, path: usize, flags: Flags) -> Self {
        Self {
            number,
            path: (folder, path),
            purpose: Purpose::Open(flags),
        }
    }

    const fn removal(number: libc::c_long, folder: Option<usize>, path: usize) -> Self {
        Self {
            number,
            path: (folder, path),
            purpose: Purpose::Removal,
        }
    }

    const fn renaming(number: libc::c_long, from: Path, to: Path) -> Self {
        Self {
            number,
            path: from,
            purpose: Purpose::Renaming(to),
        }
    }
}

#[derive(Clone, Copy)]
enum Flags {
    None,
    Emptying,
    Argument(usize),
    /// In memory, at the start of a structure.
    InMemory(usize),
}

/// A process is about to make one of the watched calls.
pub(super) struct Notification {
    pub(super) id: u64,
    /// The thread that waits.
    pub(super) thread: i32,
    pub(super) about: About,
}

pub(super) enum About {
    Open(PathOf, FlagsOf),
    /// The names that the call removes or gives to something else.
    Removal(PathOf, Option<PathOf>),
}

/// A path in the memory of the process.
pub(super) struct PathOf {
    /// An open folder to which the path is relative; `None` for the working directory.
    pub(super) folder: Option<i32>,
    pub(super) address: u64,
}

pub(super) enum FlagsOf {
    Known(i32),
    At(u64),
}

/// How a session's first process installs its filter, and where it sends the listener.
pub(crate) struct Watching {
    watched: Watched,
    to_worker: UnixStream,
    /// The other end, which the process must not keep.
    from_session: RawFd,
}

impl Watching {
    pub(super) fn new(watched: Watched, to_worker: UnixStream, from_session: &UnixStream) -> Self {
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

    /// For a process that installs the filter itself: the program, and where the listener goes.
    pub(crate) fn into_parts(self) -> (Vec<u8>, OwnedFd) {
        let (filter, length) = program(self.watched);
        (bytes(&filter[..length]), self.to_worker.into())
    }
}

/// Makes the session's process install the filter and send its listener to the other end of `to_worker`. If the
/// system does not allow the filter, the session starts without it.
///
/// The child closes its copies of the listener and of both ends of the connection, including `from_session`. Its
/// own `execve` waits for an answer, and the system lets a waiting call fail only when the last copy of its
/// listener is closed. With a copy of its own, the child of a worker that is killed at that moment would wait for
/// ever.
fn watch(command: &mut Command, watching: Watching) {
    let Watching {
        watched,
        to_worker,
        from_session,
    } = watching;
    let in_child = move || {
        if let Ok(listener) = install(watched) {
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

fn program(watched: Watched) -> ([libc::sock_filter; 5 + MOST_CALLS], usize) {
    let count = watched.calls().count();
    let length = 5 + count;
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
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut filter = [statement(0, 0); 5 + MOST_CALLS];
    filter[0] = statement(load, offset_of!(libc::seccomp_data, arch) as u32);
    // Calls of another architecture pass, because their numbers and arguments mean something else.
    filter[1] = jump(ARCHITECTURE, 0, count as u8 + 1);
    filter[2] = statement(load, offset_of!(libc::seccomp_data, nr) as u32);
    for (index, call) in watched.calls().enumerate() {
        let to_notify = (count - index) as u8;
        filter[3 + index] = jump(call.number as u32, to_notify, 0);
    }
    filter[length - 2] = statement(answer, libc::SECCOMP_RET_ALLOW);
    filter[length - 1] = statement(answer, libc::SECCOMP_RET_USER_NOTIF);
    (filter, length)
}

fn install(watched: Watched) -> io::Result<RawFd> {
    let (mut filter, length) = program(watched);
    let program = libc::sock_fprog {
        len: length as u16,
        filter: filter.as_mut_ptr(),
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
        // Without being the administrator, only a process that can gain no more rights may install a filter.
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

/// Waits for the listener that the session sends. Returns `None` if the session could not install its filter.
pub(super) fn receive_listener(from_session: &UnixStream) -> Option<OwnedFd> {
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
            // SAFETY: the kernel has just made this descriptor for this process; nothing else owns it.
            return files
                .first()
                .map(|raw| unsafe { OwnedFd::from_raw_fd(*raw) });
        }
    }
    None
}

/// Returns `None` if the process that waited is gone.
pub(super) fn receive(listener: &OwnedFd) -> io::Result<Option<Notification>> {
    // SAFETY: plain numbers; the kernel wants them to be zero.
    let mut received: libc::seccomp_notif = unsafe { zeroed() };
    // SAFETY: the structure has the size that the kernel has expected since the version that introduced it.
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
    let arguments = received.data.args;
    let mut calls = Watched::RemovalsAndOpens.calls();
    let Some(call) = calls.find(|call| call.number == number) else {
        go_on(listener, received.id);
        return Ok(None);
    };
    let path_of = |(folder, path): Path| {
        let folder = folder.map(|index| arguments[index] as i32);
        PathOf {
            folder: folder.filter(|folder| *folder != libc::AT_FDCWD),
            address: arguments[path],
        }
    };
    let path = path_of(call.path);
    Ok(Some(Notification {
        id: received.id,
        thread: received.pid as i32,
        about: match call.purpose {
            Purpose::Removal => About::Removal(path, None),
            Purpose::Renaming(to) => About::Removal(path, Some(path_of(to))),
            Purpose::Open(flags) => About::Open(
                path,
                match flags {
                    Flags::None => FlagsOf::Known(0),
                    Flags::Emptying => FlagsOf::Known(libc::O_WRONLY | libc::O_TRUNC),
                    Flags::Argument(index) => FlagsOf::Known(arguments[index] as i32),
                    Flags::InMemory(index) => FlagsOf::At(arguments[index]),
                },
            ),
        },
    }))
}

/// Lets the system call continue.
pub(super) fn go_on(listener: &OwnedFd, id: u64) {
    respond(
        listener,
        id,
        0,
        libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32,
    );
}

/// Makes the system call fail with this number.
pub(super) fn refuse(listener: &OwnedFd, id: u64, errno: i32) {
    respond(listener, id, -errno, 0);
}

/// A process that no longer waits needs no answer, so errors are ignored.
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

    /// Starts a program under a filter, on a thread of its own: its start ends only when its `execve` has an answer.
    fn start() -> (UnixStream, std::thread::JoinHandle<io::Result<()>>) {
        let (from_session, to_worker) = UnixStream::pair().unwrap();
        let mut command = Command::new("true");
        let watching = Watching::new(Watched::RemovalsAndOpens, to_worker, &from_session);
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

    /// The test closes the worker's copies, as its end would.
    #[test]
    fn a_start_fails_when_the_worker_closes_the_listener_without_an_answer() {
        let (from_session, start) = start();
        let listener = receive_listener(&from_session).unwrap();
        drop((from_session, listener));
        let error = start.join().unwrap().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSYS));
    }
}
