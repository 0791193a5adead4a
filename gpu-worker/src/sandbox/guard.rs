//! Checks the system calls of sessions under Landlock that Landlock itself does not check.
//!
//! All sessions of a worker have the same user and namespaces, so without these checks one session could change what
//! belongs to another:
//!
//! * Modes and times of files: a session may change them only in its own folders.
//! * Local sockets with a path: a session may connect to those in its own folders, and to the GPU's services.
//! * Files in `/dev/shm`: each session has a folder of its own, whose files it finds under names in `/dev/shm`.
//! * Names of threads: a process may write those of its own threads in `/proc`, where it may write nothing else.
//! * Scheduling and limits: a process may change its own and those of its children.
//!
//! In: a system call that waits. Out: its result. The worker does what it allows itself, with the file that it has
//! checked. If the call continued instead, the system would read the path again, and another thread of the session
//! could have changed it.
//!
//! **Invariant:** a call continues only if its decision rests on numbers in registers, which cannot change, or if
//! Landlock checks it as well.

use super::{SandboxError, sys};
use crate::{
    calls::{
        self, About, Answer, Connect, FlagsOf, Later, Notification, PathOf, Target, TimesOf,
        Waiting, Watched, Watching, Works, file_of, read_memory, read_text,
    },
    processes,
};
use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, FcntlArg, OFlag, fcntl, open, openat},
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        socket::{UnixAddr, bind, getsockopt, sockopt},
        stat::{FchmodatFlags, Mode, UtimensatFlags, fchmodat, fstat, utimensat},
        time::TimeSpec,
    },
    unistd::{UnlinkatFlags, linkat, unlinkat},
};
use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::ffi::{OsStrExt as _, OsStringExt as _},
    },
    path::{Component, Path, PathBuf},
};
use tokio::process::Command;

const SHARED_MEMORY: &str = "/dev/shm";

/// The flags of `open` that the worker passes on for a file in shared memory. (`O_CLOEXEC` is set for the descriptor
/// that the session gets.)
const OPEN_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK;

#[derive(Debug)]
pub(crate) struct Guard {
    /// Folders to which the session may write, without symbolic links.
    own: Vec<PathBuf>,
    /// Sockets of the GPU's services, or folders of such sockets, to which the session may connect.
    services: Vec<PathBuf>,
    shared_memory: File,
    has_network: bool,
}

/// Returns an error if the call no longer waits. The thread may then have ended and its id may belong to another
/// thread, so what the worker has found under this id must not be used.
type Still<'a> = &'a dyn Fn() -> io::Result<()>;

/// An answer, or a function that returns the answer once there is one.
enum Judgement {
    Now(Answer),
    Later(Box<dyn FnMut() -> Option<Answer>>),
}

impl Guard {
    pub(super) fn open<'a>(
        own: impl Iterator<Item = &'a Path>,
        services: impl Iterator<Item = &'a Path>,
        shared_memory: &Path,
        has_network: bool,
    ) -> io::Result<Self> {
        let found = |path: &Path| path.canonicalize().ok();
        Ok(Self {
            own: own.filter_map(found).collect(),
            services: services.filter_map(found).collect(),
            shared_memory: File::open(shared_memory)?,
            has_network,
        })
    }

    pub(crate) const WATCHED: Watched = Watched {
        removals: false,
        opens: false,
        shared: true,
    };

    /// Answers a call, or returns it if the answer takes longer. `otherwise` is called for calls to which no check
    /// applies.
    pub(crate) fn answer(
        &self,
        call: &Notification,
        waiting: Waiting,
        otherwise: impl FnOnce(Waiting),
    ) -> Option<Later> {
        let judgement = self.judge(call, &|| match waiting.is_waited_for() {
            true => Ok(()),
            false => Err(Errno::ESRCH.into()),
        });
        match judgement {
            None => otherwise(waiting),
            Some(Judgement::Now(answer)) => waiting.answer(&answer),
            Some(Judgement::Later(again)) => return Some(Later { waiting, again }),
        }
        None
    }

    fn judge(&self, call: &Notification, still: &dyn Fn() -> io::Result<()>) -> Option<Judgement> {
        let thread = call.thread;
        let done = |result: io::Result<()>| match result {
            Ok(()) => Answer::Done,
            Err(error) => refusal(&error),
        };
        let answer = match &call.about {
            About::Open(path, flags) => self
                .open_shared_memory(thread, path, *flags)
                .or_else(|| open_thread_name(thread, path, *flags, still))?,
            About::Removal(path, None) => {
                let name = self.name_in_shared_memory(thread, path)?;
                let removed = unlinkat(&self.shared_memory, &*name, UnlinkatFlags::NoRemoveDir);
                done(removed.map_err(Into::into))
            }
            About::Removal(..) => return None,
            About::Link(path, to) => {
                let names = [path, to].map(|path| self.name_in_shared_memory(thread, path));
                let [Some(name), Some(other)] = names else {
                    return None;
                };
                let folder = &self.shared_memory;
                let linked = linkat(folder, &*name, folder, &*other, AtFlags::empty());
                done(linked.map_err(Into::into))
            }
            About::Mode(target, mode) => done(self.change_mode(thread, target, *mode, still)),
            About::Times(target, times) => done(self.change_times(thread, target, times, still)),
            About::Connect(wanted) => match self.connect(thread, wanted, still) {
                Ok(judgement) => return Some(judgement),
                Err(error) => refusal(&error),
            },
            About::OfThread(other) => match may_change(thread, *other) {
                true => Answer::Resume,
                false => Answer::Refuse(libc::EPERM),
            },
        };
        Some(Judgement::Now(answer))
    }

    // ---- shared memory

    fn open_shared_memory(&self, thread: i32, path: &PathOf, flags: FlagsOf) -> Option<Answer> {
        let FlagsOf::Known { flags, mode } = flags else {
            return None;
        };
        let name = self.name_in_shared_memory(thread, path)?;
        let own = OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
        let wanted = OFlag::from_bits_truncate(flags & OPEN_FLAGS) | own;
        let mode = Mode::from_bits_truncate(mode & 0o777);
        Some(match openat(&self.shared_memory, &*name, wanted, mode) {
            Ok(file) => Answer::Give {
                file,
                closes_on_exec: flags & libc::O_CLOEXEC != 0,
            },
            Err(errno) => Answer::Refuse(errno as i32),
        })
    }

    /// The name of the file, if the path is directly in `/dev/shm`.
    fn name_in_shared_memory(&self, thread: i32, path: &PathOf) -> Option<OsString> {
        let path = OsString::from_vec(read_text(thread, path.address)?);
        let below = Path::new(&path).strip_prefix(SHARED_MEMORY).ok()?;
        let mut parts = below.components();
        match (parts.next(), parts.next()) {
            (Some(Component::Normal(name)), None) => Some(name.to_owned()),
            _ => None,
        }
    }

    // ---- files

    fn change_mode(
        &self,
        thread: i32,
        target: &Target,
        mode: u32,
        still: Still<'_>,
    ) -> io::Result<()> {
        let file = self.own_file(thread, target)?;
        still()?;
        // A program with a set-user-ID or set-group-ID bit would run as the worker's user, whoever starts it.
        let mode = Mode::from_bits_truncate(mode & 0o1777);
        let path = path_of(&file);
        Ok(fchmodat(
            AT_FDCWD,
            &*path,
            mode,
            FchmodatFlags::FollowSymlink,
        )?)
    }

    fn change_times(
        &self,
        thread: i32,
        target: &Target,
        times: &TimesOf,
        still: Still<'_>,
    ) -> io::Result<()> {
        let [accessed, modified] = match times.0 {
            None => [TimeSpec::UTIME_NOW; 2],
            Some(address) => two_times(thread, address).ok_or(Errno::EFAULT)?,
        };
        let file = self.own_file(thread, target)?;
        still()?;
        let (path, follow) = (path_of(&file), UtimensatFlags::FollowSymlink);
        Ok(utimensat(AT_FDCWD, &*path, &accessed, &modified, follow)?)
    }

    /// Opens the file with `O_PATH`, so that a later change of the path has no effect. Fails if the file is not in one
    /// of the session's own folders.
    fn own_file(&self, thread: i32, target: &Target) -> io::Result<OwnedFd> {
        let (path, follows_links) = match target {
            Target::Open(number) => (resolved(thread, Some(*number), Path::new("")), true),
            Target::Named {
                path,
                follows_links,
            } => {
                let name = read_text(thread, path.address).ok_or(Errno::EFAULT)?;
                let is_folder_itself = name.is_empty();
                let name = PathBuf::from(OsString::from_vec(name));
                let path = resolved(thread, path.folder, &name);
                (path, *follows_links || is_folder_itself)
            }
        };
        let mut flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
        flags.set(OFlag::O_NOFOLLOW, !follows_links);
        let file = open(&path, flags, Mode::empty())?;
        // A file without a name, such as one in memory, can be reached only because the session has it open.
        let is_open_only = matches!(target, Target::Open(_)) && fstat(&file)?.st_nlink == 0;
        match is_open_only || is_in(&self.own, &file)? {
            true => Ok(file),
            false => Err(Errno::EPERM.into()),
        }
    }

    // ---- sockets

    /// Connects the session's own socket, of which the worker has a copy, to the address that it has checked.
    fn connect(&self, thread: i32, wanted: &Connect, still: Still<'_>) -> io::Result<Judgement> {
        let bytes = wanted.bytes.min(size_of::<libc::sockaddr_storage>() as u64);
        let address = read_memory(thread, wanted.address, bytes);
        let family = address.first_chunk().copied().map(u16::from_ne_bytes);
        let family = i32::from(family.ok_or(Errno::EINVAL)?);
        match family {
            libc::AF_UNIX => {
                let file = self.own_socket(thread, &address[2..])?;
                let socket = file_of(thread, wanted.socket)?;
                let process = processes::process_of(thread);
                still()?;
                if is_in(&self.services, &file)? {
                    // The listener would see the worker as its peer, because the worker connects. So the worker gives
                    // the socket a name that contains the session's process id. That fails if the session has named the
                    // socket already, so a session cannot claim to be another one.
                    let process = process.ok_or(Errno::ESRCH)?;
                    bind_abstract(&socket, &processes::calling_card(process))?;
                }
                Ok(connect(Attempt::new(
                    socket,
                    local_address(&file),
                    Some(file),
                )?))
            }
            libc::AF_INET | libc::AF_INET6 | libc::AF_UNSPEC if self.has_network => {
                let socket = file_of(thread, wanted.socket)?;
                still()?;
                Ok(connect(Attempt::new(socket, address, None)?))
            }
            _ => Err(Errno::EACCES.into()),
        }
    }

    /// Opens the socket with this path, if the session may connect to it. Abstract names are refused, because all
    /// processes of the machine share them.
    fn own_socket(&self, thread: i32, name: &[u8]) -> io::Result<OwnedFd> {
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        if name.is_empty() {
            return Err(Errno::EACCES.into());
        }
        let path = resolved(thread, None, Path::new(OsStr::from_bytes(name)));
        let file = open(&path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?;
        match is_in(&self.own, &file)? || is_in(&self.services, &file)? {
            true => Ok(file),
            false => Err(Errno::EACCES.into()),
        }
    }
}

/// Opens the name of a thread of the same process for writing. CUDA does not start without naming its threads.
fn open_thread_name(
    thread: i32,
    path: &PathOf,
    flags: FlagsOf,
    still: Still<'_>,
) -> Option<Answer> {
    let FlagsOf::Known { flags, .. } = flags else {
        return None;
    };
    if flags & libc::O_ACCMODE == libc::O_RDONLY {
        return None;
    }
    let path = String::from_utf8(read_text(thread, path.address)?).ok()?;
    let number = path
        .strip_prefix("/proc/self/task/")?
        .strip_suffix("/comm")?;
    let process = processes::process_of(thread)?;
    // The system finds only threads of this process here.
    let path = format!("/proc/{process}/task/{}/comm", number.parse::<u32>().ok()?);
    let access = OFlag::from_bits_truncate(flags & libc::O_ACCMODE) | OFlag::O_CLOEXEC;
    let opened = open(&*path, access, Mode::empty()).map_err(io::Error::from);
    Some(match still().and(opened) {
        Ok(file) => Answer::Give {
            file,
            closes_on_exec: flags & libc::O_CLOEXEC != 0,
        },
        Err(error) => refusal(&error),
    })
}

fn is_in(folders: &[PathBuf], file: &OwnedFd) -> io::Result<bool> {
    let place = fs::read_link(path_of(file))?;
    Ok(folders.iter().any(|folder| place.starts_with(folder)))
}

pub(crate) fn without_guard() -> SandboxError {
    SandboxError::NotConfined {
        said: "system calls cannot wait for the worker (seccomp's user notification)".to_owned(),
    }
}

/// Answers the calls of a process that belongs to no notebook.
pub(crate) struct Guarded {
    works: Works,
    watching: Watching,
}

/// Whether the calls are answered.
pub(crate) struct Answered(Works);

pub(crate) fn guarded(guard: Guard) -> io::Result<Guarded> {
    let judge =
        move |call: Notification, waiting: Waiting| guard.answer(&call, waiting, Waiting::resume);
    let (works, watching) = calls::watch(Guard::WATCHED, judge)?;
    Ok(Guarded { works, watching })
}

impl Guarded {
    /// For a process that `command` starts.
    pub(crate) fn before(self, command: &mut Command) -> Answered {
        self.watching.before(command);
        Answered(self.works)
    }

    /// For a process that installs the filter itself: the filter's program, and the socket to which the process sends
    /// the listener.
    pub(crate) fn into_parts(self) -> (Vec<u8>, OwnedFd, Answered) {
        let (program, place) = self.watching.into_parts();
        (program, place, Answered(self.works))
    }
}

impl Answered {
    /// Must be called after the process has started and the command was dropped.
    ///
    /// # Errors
    /// If the process could not install its filter.
    pub(crate) async fn required(self) -> Result<(), SandboxError> {
        match self.0.known().await {
            true => Ok(()),
            false => Err(without_guard()),
        }
    }
}

/// A connection that a thread of the session waits for.
struct Attempt {
    socket: OwnedFd,
    address: Vec<u8>,
    /// The socket's file, which `address` names by its descriptor.
    _file: Option<OwnedFd>,
    /// The socket's status flags, as the session has set them.
    flags: OFlag,
    is_on_its_way: bool,
}

impl Attempt {
    fn new(socket: OwnedFd, address: Vec<u8>, file: Option<OwnedFd>) -> io::Result<Self> {
        let flags = OFlag::from_bits_retain(fcntl(&socket, FcntlArg::F_GETFL)?);
        Ok(Self {
            socket,
            address,
            _file: file,
            flags,
            is_on_its_way: false,
        })
    }

    /// `None` while the connection is not complete.
    fn result(&mut self) -> io::Result<Option<()>> {
        let waits = !self.flags.contains(OFlag::O_NONBLOCK);
        if self.is_on_its_way {
            let mut ready = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
            if poll(&mut ready, PollTimeout::ZERO)? == 0 {
                return Ok(None);
            }
            return match getsockopt(&self.socket, sockopt::SocketError)? {
                0 => Ok(Some(())),
                error => Err(io::Error::from_raw_os_error(error)),
            };
        }
        // One thread answers all calls of the session, so it must not wait.
        if waits {
            let flags = self.flags | OFlag::O_NONBLOCK;
            fcntl(&self.socket, FcntlArg::F_SETFL(flags))?;
        }
        let connected = sys::connect(&self.socket, &self.address);
        if waits {
            fcntl(&self.socket, FcntlArg::F_SETFL(self.flags))?;
        }
        match connected {
            Ok(()) => Ok(Some(())),
            Err(error) if waits && error.raw_os_error() == Some(libc::EINPROGRESS) => {
                self.is_on_its_way = true;
                Ok(None)
            }
            // The listener's queue is full.
            Err(error) if waits && error.raw_os_error() == Some(libc::EAGAIN) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn answer(&mut self) -> Option<Answer> {
        match self.result() {
            Ok(None) => None,
            Ok(Some(())) => Some(Answer::Done),
            Err(error) => Some(refusal(&error)),
        }
    }
}

fn connect(mut attempt: Attempt) -> Judgement {
    match attempt.answer() {
        Some(answer) => Judgement::Now(answer),
        None => Judgement::Later(Box::new(move || attempt.answer())),
    }
}

/// The address of a local socket's file, as `connect(2)` takes it.
fn local_address(file: &OwnedFd) -> Vec<u8> {
    let mut address = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
    address.extend(path_of(file).as_bytes());
    address.push(0);
    address
}

fn bind_abstract(socket: &OwnedFd, name: &[u8]) -> nix::Result<()> {
    bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name)?)
}

/// A path by which the worker reaches exactly this file.
fn path_of(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Translates a path of the session into one that means the same for this process.
fn resolved(thread: i32, folder: Option<i32>, path: &Path) -> PathBuf {
    let of_thread = PathBuf::from(format!("/proc/{thread}"));
    for own in ["/proc/self", "/proc/thread-self"] {
        if let Ok(below) = path.strip_prefix(own) {
            return of_thread.join(below);
        }
    }
    let folder = match folder {
        Some(folder) => format!("fd/{folder}"),
        None => "cwd".to_owned(),
    };
    match path.as_os_str().is_empty() {
        true => of_thread.join(folder),
        // `join` with an absolute path drops the folder.
        false => of_thread.join(folder).join(path),
    }
}

fn two_times(thread: i32, address: u64) -> Option<[TimeSpec; 2]> {
    let bytes = read_memory(thread, address, 32);
    let mut words = bytes.chunks_exact(8).map(|word| {
        let word = word.try_into().unwrap_or_default();
        i64::from_ne_bytes(word)
    });
    let mut time = || Some(TimeSpec::new(words.next()?, words.next()?));
    Some([time()?, time()?])
}

/// Whether a thread may change scheduling and limits of another one: it may if both are in the same process, or if the
/// other process is a child of its own.
fn may_change(thread: i32, other: i32) -> bool {
    let (Some(process), Some(other)) =
        (processes::process_of(thread), processes::process_of(other))
    else {
        return false;
    };
    process == other || processes::parent_of(other) == Some(process)
}

fn refusal(error: &io::Error) -> Answer {
    Answer::Refuse(error.raw_os_error().unwrap_or(libc::EIO))
}
