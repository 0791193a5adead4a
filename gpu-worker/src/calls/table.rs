//! The system calls that wait for the worker, and how their arguments are read.
//!
//! In: a number and six words. Out: what the process wants, with paths still in its memory.

use nix::libc;

/// Which system calls of a session wait.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Watched {
    /// Those that take names away.
    pub(crate) removals: bool,
    /// Those that open files.
    pub(crate) opens: bool,
    /// Those that no other rule can judge, in a session that shares its namespaces with all others.
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
    /// Waits only if this argument is not zero.
    pub(super) unless_zero: Option<usize>,
    decode: fn([u64; 6]) -> About,
}

/// What a call is about to do.
pub(crate) enum About {
    Open(PathOf, FlagsOf),
    /// The names that the call takes away or gives to something else.
    Removal(PathOf, Option<PathOf>),
    /// Another name for a file.
    Link(PathOf, PathOf),
    Mode(Target, u32),
    Times(Target, TimesOf),
    Connect(Connect),
    /// Something that concerns another thread or process.
    OfThread(i32),
}

/// A path in the memory of the process.
pub(crate) struct PathOf {
    /// An open folder to which the path is relative; none for the working directory.
    pub(crate) folder: Option<i32>,
    pub(crate) address: u64,
}

/// What the mode or the times of a file belong to.
pub(crate) enum Target {
    Open(i32),
    Named { path: PathOf, follows_links: bool },
}

/// Two times in the memory of the process; `None`: now.
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
    /// At the start of a structure.
    At(u64),
}

/// The system calls that take names away.
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

/// The system calls that open files.
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

/// The system calls that read a file without opening it.
const EXECUTIONS: &[Call] = &[
    Call::new(libc::SYS_truncate, |of| {
        About::Open(here(of[0]), known(0, 0))
    }),
    Call::new(libc::SYS_execve, |of| About::Open(here(of[0]), known(0, 0))),
    Call::new(libc::SYS_execveat, |of| {
        About::Open(at(of[0], of[1]), known(0, 0))
    }),
];

/// Since Linux 6.6, on every processor.
const SYS_FCHMODAT2: libc::c_long = 452;

/// The system calls that reach what belongs to the user, whoever of the user's sessions it is of. Landlock does not
/// judge them.
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

    /// Zero is the thread itself.
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

/// `None`: the call waits in no session.
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
