//! Judges the system calls of a session that shares its namespaces with all others and that Landlock does not judge.
//!
//! In: a call that waits. Out: what it returns. What the worker allows it does itself, with what it has looked at: the
//! arguments of a call that goes on could be others by then.
//!
//! * Modes and times of files belong to the user, not to the session: only those of its own folders may be changed.
//! * Local sockets have names in the file system: only those in its own folders may be connected to.
//! * `/dev/shm` is one folder for all: each session gets files of a folder of its own under the names there.
//! * Scheduling and limits of other processes belong to the user, too: a process may change its own.
//!
//! **Invariant:** a call goes on only if its arguments say all that it does, or if Landlock judges it as well.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FcntlArg, OFlag, fcntl, open, openat};
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{UnixAddr, bind, getsockopt, sockopt};
use nix::sys::stat::{FchmodatFlags, Mode, UtimensatFlags, fchmodat, fstat, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, linkat, unlinkat};

use tokio::process::Command;

use super::{SandboxError, sys};
use crate::calls::{
    self, About, Answer, Connect, FlagsOf, Later, Notification, PathOf, Target, TimesOf, Waiting,
    Watched, Watching, Works, file_of, read_memory, read_text,
};
use crate::processes;

const SHARED_MEMORY: &str = "/dev/shm";

/// What a call that creates shared memory may ask for besides.
const OPEN_FLAGS: i32 = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_NONBLOCK;

#[derive(Debug)]
pub(crate) struct Guard {
    /// What the session may write to, as the system calls it.
    own: Vec<PathBuf>,
    /// Services of the machine that it may use.
    services: Vec<PathBuf>,
    shared_memory: File,
    has_network: bool,
}

/// An error once a call waits no more: what was found until then may be another thread's.
type Still<'a> = &'a dyn Fn() -> io::Result<()>;

/// An answer, or when to ask again.
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

    /// `otherwise`: what becomes of a call that it has nothing against.
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
            About::Open(path, flags) => self.open_shared_memory(thread, path, *flags)?,
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
                true => Answer::GoOn,
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

    /// Names the file that is meant, if it lies there.
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
        // Who runs such a file would become the worker's user.
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

    /// Leads to the file itself, whatever has its name by now. Fails if it is not the session's.
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
        // One without a name, such as one in memory, is open here because the session had it open.
        let is_open_only = matches!(target, Target::Open(_)) && fstat(&file)?.st_nlink == 0;
        match is_open_only || is_in(&self.own, &file)? {
            true => Ok(file),
            false => Err(Errno::EPERM.into()),
        }
    }

    // ---- sockets

    /// Connects the session's own socket, which is another descriptor here, with what is meant by its address.
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
                    // The listener is the worker's own, and the system would name the worker as the other end. A socket
                    // with a name of the session's own could claim to be another one's.
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

    /// Leads to the socket with this name, if it is the session's. One with an abstract name is not: those are the
    /// machine's.
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

fn is_in(folders: &[PathBuf], file: &OwnedFd) -> io::Result<bool> {
    let place = fs::read_link(path_of(file))?;
    Ok(folders.iter().any(|folder| place.starts_with(folder)))
}

impl SandboxError {
    pub(crate) fn without_guard() -> Self {
        Self::NotConfined {
            said: "system calls cannot wait for the worker (seccomp's user notification)"
                .to_owned(),
        }
    }
}

/// Answers the calls of processes that have nothing of a notebook.
pub(crate) struct Guarded {
    works: Works,
    watching: Watching,
}

/// Whether they are answered.
pub(crate) struct Answered(Works);

pub(crate) fn guarded(guard: Guard) -> io::Result<Guarded> {
    let judge =
        move |call: Notification, waiting: Waiting| guard.answer(&call, waiting, Waiting::go_on);
    let (works, watching) = calls::watch(Guard::WATCHED, judge)?;
    Ok(Guarded { works, watching })
}

impl Guarded {
    /// For a process that `command` starts.
    pub(crate) fn before(self, command: &mut Command) -> Answered {
        self.watching.before(command);
        Answered(self.works)
    }

    /// For a process that installs the filter itself: the program, and where the listener goes.
    pub(crate) fn into_parts(self) -> (Vec<u8>, OwnedFd, Answered) {
        let (program, place) = self.watching.into_parts();
        (program, place, Answered(self.works))
    }
}

impl Answered {
    /// Call it when the process has started and the command was dropped.
    pub(crate) async fn required(self) -> Result<(), SandboxError> {
        match self.0.known().await {
            true => Ok(()),
            false => Err(SandboxError::without_guard()),
        }
    }
}

/// A connection that a thread of the session waits for.
struct Attempt {
    socket: OwnedFd,
    address: Vec<u8>,
    /// What a local address leads to.
    _file: Option<OwnedFd>,
    /// As the session has set it.
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

    /// `None`: not yet.
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
        // The thread that judges must not wait.
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
            // The listener has too many that wait.
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

/// As `connect` takes it.
fn local_address(file: &OwnedFd) -> Vec<u8> {
    let mut address = (libc::AF_UNIX as u16).to_ne_bytes().to_vec();
    address.extend(path_of(file).as_bytes());
    address.push(0);
    address
}

fn bind_abstract(socket: &OwnedFd, name: &[u8]) -> nix::Result<()> {
    bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name)?)
}

/// The worker's own way to a file that it has found.
fn path_of(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// A path as the session means it, for this process.
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
        // An absolute path takes the place of the folder.
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

/// Whether a process may change that of the other: its own, and that of what it started.
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
