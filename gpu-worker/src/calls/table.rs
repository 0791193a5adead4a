//! The system calls that wait for the worker, and the meaning of their arguments.
//!
//! In: the number of a call and its six arguments. Out: what the process wants to do. Paths are given as addresses in
//! the memory of the process.

use nix::libc;

/// Which system calls of a session wait.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Watched {
    /// Calls that remove or rename files.
    pub(crate) removals: bool,
    /// Calls that open files or use their contents.
    pub(crate) opens: bool,
    /// Calls that only the worker can check, in a session under Landlock.
    pub(crate) shared: bool,
}

impl Watched {
    pub(super) fn calls(self) -> impl Iterator<Item = &'static Call> {
        let kinds = [
            (self.removals || self.shared, REMOVALS),
            (self.opens || self.shared, OPENS),
            (self.opens, EXECUTIONS),
            (self.shared, SHARED),
        ];
        kinds
            .into_iter()
            .filter(|(is_watched, _)| *is_watched)
            .flat_map(|(_, calls)| calls)
    }
}

pub(super) struct Call {
    pub(super) number: libc::c_long,
    /// The call waits only if the argument with this index is not zero.
    pub(super) unless_zero: Option<usize>,
    decode: fn([u64; 6]) -> About,
}

/// What a call is about to do.
pub(crate) enum About {
    Open(PathOf, FlagsOf),
    /// The path that the call removes or renames, and the new path of a file that is renamed.
    Removal(PathOf, Option<PathOf>),
    /// A file, and the new name that it gets besides.
    Link(PathOf, PathOf),
    Mode(Target, u32),
    Times(Target, TimesOf),
    Connect(Connect),
    /// Scheduling or limits of the thread or process with this id.
    OfThread(i32),
}

/// A path in the memory of the process.
pub(crate) struct PathOf {
    /// The descriptor of the folder to which the path is relative; `None` for the working directory.
    pub(crate) folder: Option<i32>,
    pub(crate) address: u64,
}

/// The file whose mode or times a call changes.
pub(crate) enum Target {
    Open(i32),
    Named { path: PathOf, follows_links: bool },
}

/// The address of two times in the memory of the process; `None` means now.
pub(crate) struct TimesOf(pub(crate) Option<u64>);

pub(crate) struct Connect {
    pub(crate) socket: i32,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

#[derive(Clone, Copy)]
pub(crate) enum FlagsOf {
    Known {
        flags: i32,
        mode: u32,
    },
    /// The address of a structure that begins with the flags.
    At(u64),
}

/// Calls that remove or rename files.
const REMOVALS: &[Call] = &[
    #[cfg(target_arch = "x86_64")]
    Call::new(libc::SYS_unlink, |of| About::Removal(here(of[0]), None)),
    #[cfg(target_arch = "x86_64")]
    Call::new(libc::SYS_rmdir, |of| About::Removal(here(of[0]), None)),
    Call::new(libc::SYS_unlinkat, |of| {
        About::Removal(at(of[0], of[1]), None)
    }),
    #[cfg(target_arch = "x86_64")]
    Call::new(libc::SYS_rename, |of| {
        About::Removal(here(of[0]), Some(here(of[1])))
    }),
    #[cfg(target_arch = "x86_64")]
    Call::new(libc::SYS_renameat, |of| {
        About::Removal(at(of[0], of[1]), Some(at(of[2], of[3])))
    }),
    Call::new(libc::SYS_renameat2, |of| {
        About::Removal(at(of[0], of[1]), Some(at(of[2], of[3])))
    }),
];

/// Calls that open files.
const OPENS: &[Call] = &[
    #[cfg(target_arch = "x86_64")]
    Call::new(libc::SYS_open, |of| {
        About::Open(here(of[0]), known(of[1], of[2]))
    }),
    #[cfg(target_arch = "x86_64")]
    Call::new(libc::SYS_creat, |of| {
        let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
        About::Open(here(of[0]), known(flags as u64, of[1]))
    }),
    Call::new(libc::SYS_openat, |of| {
        About::Open(at(of[0], of[1]), known(of[2], of[3]))
    }),
    Call::new(libc::SYS_openat2, |of| {
        About::Open(at(of[0], of[1]), FlagsOf::At(of[2]))
    }),
];

/// Calls that use the contents of a file by its path, without opening it.
const EXECUTIONS: &[Call] = &[
    Call::new(libc::SYS_truncate, |of| {
        About::Open(here(of[0]), known(0, 0))
    }),
    Call::new(libc::SYS_execve, |of| About::Open(here(of[0]), known(0, 0))),
    Call::new(libc::SYS_execveat, |of| {
        About::Open(at(of[0], of[1]), known(0, 0))
    }),
];

/// The number on all architectures, since Linux 6.6.
const SYS_FCHMODAT2: libc::c_long = 452;

/// Calls that can reach everything of the same user, also what belongs to another session. Landlock does not check
/// them.
const SHARED: &[Call] = &[
    #[cfg(target_arch = "x86_64")]
    Call::new(libc::SYS_link, |of| About::Link(here(of[0]), here(of[1]))),
    Call::new(libc::SYS_linkat, |of| {
        About::Link(at(of[0], of[1]), at(of[2], of[3]))
    }),
    #[cfg(target_arch = "x86_64")]
    Call::new(libc::SYS_chmod, |of| {
        About::Mode(named(here(of[0]), 0), of[1] as u32)
    }),
    Call::new(libc::SYS_fchmod, |of| {
        About::Mode(Target::Open(of[0] as i32), of[1] as u32)
    }),
    Call::new(libc::SYS_fchmodat, |of| {
        About::Mode(named(at(of[0], of[1]), 0), of[2] as u32)
    }),
    Call::new(SYS_FCHMODAT2, |of| {
        About::Mode(named(at(of[0], of[1]), of[3] as i32), of[2] as u32)
    }),
    Call::new(libc::SYS_utimensat, |of| {
        let target = match of[1] {
            0 => Target::Open(of[0] as i32),
            path => named(at(of[0], path), of[3] as i32),
        };
        About::Times(target, TimesOf((of[2] != 0).then_some(of[2])))
    }),
    Call::new(libc::SYS_connect, |of| {
        About::Connect(Connect {
            socket: of[0] as i32,
            address: of[1],
            bytes: of[2] & u64::from(u32::MAX),
        })
    }),
    Call::of_thread(libc::SYS_ioprio_set, 1, |of| About::OfThread(of[1] as i32)),
    Call::of_thread(libc::SYS_prlimit64, 0, |of| About::OfThread(of[0] as i32)),
    Call::of_thread(libc::SYS_sched_setaffinity, 0, |of| {
        About::OfThread(of[0] as i32)
    }),
    Call::of_thread(libc::SYS_sched_setattr, 0, |of| {
        About::OfThread(of[0] as i32)
    }),
    Call::of_thread(libc::SYS_sched_setparam, 0, |of| {
        About::OfThread(of[0] as i32)
    }),
    Call::of_thread(libc::SYS_sched_setscheduler, 0, |of| {
        About::OfThread(of[0] as i32)
    }),
    Call::of_thread(libc::SYS_setpriority, 1, |of| About::OfThread(of[1] as i32)),
];

impl Call {
    const fn new(number: libc::c_long, decode: fn([u64; 6]) -> About) -> Self {
        Self {
            number,
            unless_zero: None,
            decode,
        }
    }

    /// A call that names a thread or process in this argument. Zero means the caller, for which no check is needed.
    const fn of_thread(
        number: libc::c_long,
        argument: usize,
        decode: fn([u64; 6]) -> About,
    ) -> Self {
        Self {
            number,
            unless_zero: Some(argument),
            decode,
        }
    }
}

/// What a call is about to do; `None` for a call that waits in no session.
pub(super) fn about(number: libc::c_long, arguments: [u64; 6]) -> Option<About> {
    let mut calls = [REMOVALS, OPENS, EXECUTIONS, SHARED].into_iter().flatten();
    let call = calls.find(|call| call.number == number)?;
    Some((call.decode)(arguments))
}

fn here(address: u64) -> PathOf {
    PathOf {
        folder: None,
        address,
    }
}

fn at(folder: u64, address: u64) -> PathOf {
    let folder = folder as i32;
    PathOf {
        folder: (folder != libc::AT_FDCWD).then_some(folder),
        address,
    }
}

fn named(path: PathOf, flags: i32) -> Target {
    Target::Named {
        path,
        follows_links: flags & libc::AT_SYMLINK_NOFOLLOW == 0,
    }
}

fn known(flags: u64, mode: u64) -> FlagsOf {
    FlagsOf::Known {
        flags: flags as i32,
        mode: mode as u32,
    }
}
