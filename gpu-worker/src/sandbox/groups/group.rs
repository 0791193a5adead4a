//! The control group of one session.
//!
//! In: limits. Out: files into which the session's first process writes to join the group, and a way to end every
//! process in it.
//!
//! In version 2, two groups below it separate the session's own processes, which end together when they exceed its
//! memory, from those that must outlive them: the processes that hold the sandbox, and keepers.
//!
//! **Invariant:** when a [`Group`] is dropped, every process in it ends, and the group is removed.

use super::{Base, Controller, Version};
use crate::sandbox::Limits;
use nix::{
    errno::Errno,
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs::{self, File},
    io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// The period of processor quotas, in microseconds.
const PERIOD_US: u64 = 100_000;

/// How much processor time a session gets while others want it, too. Sessions compete with each other and with their
/// worker, which has [`super::OWN_WEIGHT`].
#[derive(Debug, Clone, Copy)]
pub(crate) enum Share {
    OfCell,
    /// A tenth. Processes that a cell has left behind may run on, but not at the expense of other people's cells.
    BetweenCells,
}

impl Share {
    /// The file that sets it, and its value.
    fn setting(self, version: Version) -> (&'static str, &'static str) {
        match (version, self) {
            (Version::One, Self::OfCell) => ("cpu.shares", "1024"),
            (Version::One, Self::BetweenCells) => ("cpu.shares", "102"),
            (Version::Two, Self::OfCell) => ("cpu.weight", "100"),
            (Version::Two, Self::BetweenCells) => ("cpu.weight", "10"),
        }
    }
}

/// Groups below a group of version 2: the session's own processes, and those that outlive them.
const CELLS: &str = "cells";
const KEPT: &str = "kept";

/// How long killed processes may take to end, for example while the driver frees their memory.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Group {
    folders: Vec<Folder>,
    limits: Limits,
}

#[derive(Debug, Clone)]
struct Folder {
    path: PathBuf,
    version: Version,
    has_memory: bool,
    has_processes: bool,
    has_processors: bool,
}

impl Folder {
    /// The group that processes join.
    fn entrance(&self) -> PathBuf {
        match self.is_divided() {
            true => self.path.join(CELLS),
            false => self.path.clone(),
        }
    }

    fn is_divided(&self) -> bool {
        self.version == Version::Two && self.has_memory
    }

    fn divide(&self) -> io::Result<()> {
        fs::write(self.path.join("cgroup.subtree_control"), "+memory")?;
        for name in [CELLS, KEPT] {
            fs::create_dir(self.path.join(name))?;
        }
        // Systems older than Linux 4.19 end only a single process.
        set(&self.entrance().join("memory.oom.group"), "1")
    }

    /// The groups that contain processes.
    fn leaves(&self) -> Vec<PathBuf> {
        match self.is_divided() {
            true => [CELLS, KEPT].map(|name| self.path.join(name)).into(),
            false => vec![self.path.clone()],
        }
    }
}

impl Group {
    pub(super) fn create(bases: &[Base], name: &str, limits: Limits) -> io::Result<Self> {
        let mut group = Self {
            folders: Vec::new(),
            limits,
        };
        for base in bases {
            let path = base.folder.join(name);
            fs::create_dir(&path)?;
            for controller in &base.controllers {
                for (file, value) in settings(*controller, base.version, limits) {
                    set(&path.join(file), &value)?;
                }
            }
            let folder = Folder {
                path,
                version: base.version,
                has_memory: base.controllers.contains(&Controller::Memory),
                has_processes: base.controllers.contains(&Controller::Processes),
                has_processors: base.controllers.contains(&Controller::Processors),
            };
            // Pushed now, because what follows may fail, and then the group is removed.
            group.folders.push(folder.clone());
            if folder.is_divided() {
                folder.divide()?;
            }
        }
        Ok(group)
    }

    /// A process that writes `0` into each of these files joins the group.
    pub(crate) fn join_files(&self) -> io::Result<Vec<OwnedFd>> {
        let open = |folder: &Folder| {
            let join_file = File::options()
                .write(true)
                .open(folder.entrance().join("cgroup.procs"))?;
            Ok(join_file.into())
        };
        self.folders.iter().map(open).collect()
    }

    /// The session's own processes, which would end together; empty if the group is not divided.
    pub(crate) fn entered(&self) -> Vec<Pid> {
        let divided = self.folders.iter().filter(|folder| folder.is_divided());
        divided
            .flat_map(|folder| members(&folder.entrance()).unwrap_or_default())
            .collect()
    }

    /// Lets these processes outlive a session that exceeds its memory.
    pub(crate) fn keep(&self, processes: &[Pid]) -> io::Result<()> {
        for folder in self.folders.iter().filter(|folder| folder.is_divided()) {
            for process in processes {
                keep(folder, *process)?;
            }
        }
        Ok(())
    }

    pub(crate) fn set_share(&self, share: Share) -> io::Result<()> {
        for folder in self.folders.iter().filter(|folder| folder.has_processors) {
            let (file, value) = share.setting(folder.version);
            fs::write(folder.path.join(file), value)?;
        }
        Ok(())
    }

    pub(crate) fn limits_memory(&self) -> bool {
        let mut folders = self.folders.iter();
        self.limits.memory_bytes.is_some() && folders.any(|folder| folder.has_memory)
    }

    /// The memory limit, if the system has ended a process of the group because of it.
    pub(crate) fn exceeded_memory_bytes(&self) -> Option<u64> {
        let folder = self.folders.iter().find(|folder| folder.has_memory)?;
        let file = match folder.version {
            Version::One => "memory.oom_control",
            Version::Two => "memory.events",
        };
        let text = fs::read_to_string(folder.path.join(file)).ok()?;
        let mut counts = text.lines();
        let count = counts.find_map(|line| line.strip_prefix("oom_kill "))?;
        (count.trim() != "0").then_some(self.limits.memory_bytes)?
    }

    /// Kills every process in the group.
    pub(crate) fn kill(&self) {
        kill_all(&self.folders);
    }
}

fn keep(folder: &Folder, process: Pid) -> io::Result<()> {
    let kept = folder.path.join(KEPT).join("cgroup.procs");
    match fs::write(kept, process.to_string()) {
        // The process has ended.
        Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => Ok(()),
        written => written,
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let folders = std::mem::take(&mut self.folders);
        kill_all(&folders);
        if let Err(error) = std::thread::Builder::new().spawn(move || remove(&folders)) {
            tracing::warn!(%error, "A session's control group remains");
        }
    }
}

/// The files that set a limit, in the order in which they are written.
fn settings(
    controller: Controller,
    version: Version,
    limits: Limits,
) -> Vec<(&'static str, String)> {
    let memory = limits.memory_bytes.map(|bytes| bytes.to_string());
    let quota = limits.processors.map(|count| u64::from(count) * PERIOD_US);
    let (share, of_cell) = Share::OfCell.setting(version);
    let share = (share, of_cell.to_owned());
    match (controller, version) {
        (Controller::Memory, Version::Two) => {
            let most = memory.map(|bytes| ("memory.max", bytes));
            let swap = ("memory.swap.max", "0".to_owned());
            most.into_iter().chain([swap]).collect()
        }
        // Memory and swap together are limited to as much as memory alone. Without a limit of memory, or where swap is
        // not counted, the system prefers not to swap.
        (Controller::Memory, Version::One) => {
            let files = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"];
            let most = memory.into_iter();
            let most = most.flat_map(|bytes| files.map(|file| (file, bytes.clone())));
            let swap = ("memory.swappiness", "0".to_owned());
            most.chain([swap]).collect()
        }
        (Controller::Processes, _) => vec![("pids.max", limits.processes.to_string())],
        (Controller::Processors, Version::Two) => {
            let most = quota.map(|quota| ("cpu.max", format!("{quota} {PERIOD_US}")));
            most.into_iter().chain([share]).collect()
        }
        (Controller::Processors, Version::One) => quota
            .into_iter()
            .flat_map(|quota| {
                let period = ("cpu.cfs_period_us", PERIOD_US.to_string());
                [period, ("cpu.cfs_quota_us", quota.to_string())]
            })
            .chain([share])
            .collect(),
    }
}

/// Writes a value. A file that some systems do not have, for example those without swap, is skipped.
fn set(file: &Path, value: &str) -> io::Result<()> {
    const OPTIONAL: [&str; 4] = [
        "memory.memsw.limit_in_bytes",
        "memory.oom.group",
        "memory.swap.max",
        "memory.swappiness",
    ];
    let name = file.file_name().and_then(|name| name.to_str());
    let is_optional = name.is_some_and(|name| OPTIONAL.contains(&name));
    match file.exists() || !is_optional {
        true => fs::write(file, value),
        false => Ok(()),
    }
}

fn kill_all(folders: &[Folder]) {
    let at_once = folders.iter().any(|folder| {
        folder.version == Version::Two && fs::write(folder.path.join("cgroup.kill"), "1").is_ok()
    });
    if at_once {
        return;
    }
    // This prevents that a process starts another one meanwhile.
    for folder in folders.iter().filter(|folder| folder.has_processes) {
        let _ = fs::write(folder.path.join("pids.max"), "0");
    }
    for leaf in folders.iter().flat_map(Folder::leaves) {
        for member in members(&leaf).unwrap_or_default() {
            let _ = kill(member, Signal::SIGKILL);
        }
    }
}

/// Removes the groups, once the system has ended their processes.
fn remove(folders: &[Folder]) {
    let deadline = Instant::now() + PATIENCE;
    let is_gone = |folder: &Folder| is_removed(&folder.path);
    while !folders.iter().all(is_gone) {
        if Instant::now() > deadline {
            let folders: Vec<_> = folders.iter().map(|folder| &folder.path).collect();
            tracing::warn!(?folders, "Processes of a session do not end");
            return;
        }
        kill_all(folders);
        std::thread::sleep(POLL);
    }
}

/// Removes a group whose processes have ended, with the groups below it.
pub(super) fn is_removed(group: &Path) -> bool {
    for name in [CELLS, KEPT] {
        let _ = fs::remove_dir(group.join(name));
    }
    match fs::remove_dir(group) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

pub(super) fn members(folder: &Path) -> io::Result<Vec<Pid>> {
    let text = fs::read_to_string(folder.join("cgroup.procs"))?;
    let numbers = text.lines().filter_map(|line| line.parse().ok());
    // A process of another namespace has the number 0 here.
    Ok(numbers
        .filter(|number| *number > 0)
        .map(Pid::from_raw)
        .collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        memory_bytes: Some(4096),
        processes: 7,
        processors: Some(2),
        scratch_bytes: 0,
    };

    fn check(controller: Controller, version: Version, expected: &[(&str, &str)]) {
        let found = settings(controller, version, LIMITS);
        let found: Vec<_> = found
            .iter()
            .map(|(file, value)| (*file, value.as_str()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn each_limit_has_its_file() {
        use Controller::{Memory, Processes, Processors};
        let pids: &[(&str, &str)] = &[("pids.max", "7")];
        check(Processes, Version::One, pids);
        check(Processes, Version::Two, pids);
        let memory: &[(&str, &str)] = &[("memory.max", "4096"), ("memory.swap.max", "0")];
        check(Memory, Version::Two, memory);
        let memory: &[(&str, &str)] = &[
            ("memory.limit_in_bytes", "4096"),
            ("memory.memsw.limit_in_bytes", "4096"),
            ("memory.swappiness", "0"),
        ];
        check(Memory, Version::One, memory);
        let processors: &[(&str, &str)] = &[("cpu.max", "200000 100000"), ("cpu.weight", "100")];
        check(Processors, Version::Two, processors);
        let processors: &[(&str, &str)] = &[
            ("cpu.cfs_period_us", "100000"),
            ("cpu.cfs_quota_us", "200000"),
            ("cpu.shares", "1024"),
        ];
        check(Processors, Version::One, processors);
        let without = Limits {
            memory_bytes: None,
            processors: None,
            ..LIMITS
        };
        let unswapped = |file| vec![(file, "0".to_owned())];
        assert_eq!(
            settings(Memory, Version::Two, without),
            unswapped("memory.swap.max")
        );
        assert_eq!(
            settings(Memory, Version::One, without),
            unswapped("memory.swappiness")
        );
        assert_eq!(
            settings(Processors, Version::One, without),
            [("cpu.shares", "1024".to_owned())]
        );
    }

    /// A group of this version in an ordinary folder, which stands for a hierarchy.
    fn group(folder: &Path, version: Version) -> Group {
        let base = Base {
            folder: folder.to_owned(),
            version,
            controllers: Controller::ALL.to_vec(),
        };
        Group::create(&[base], "session", LIMITS).unwrap()
    }

    fn read(file: impl AsRef<Path>) -> String {
        fs::read_to_string(file).unwrap()
    }

    fn child() -> std::process::Child {
        let mut command = std::process::Command::new("sleep");
        command.arg("600").spawn().unwrap()
    }

    fn id(child: &std::process::Child) -> Pid {
        Pid::from_raw(child.id().cast_signed())
    }

    #[test]
    fn with_version_2_cells_are_separate_from_what_outlives_them() {
        let folder = tempfile::tempdir().unwrap();
        let group = group(folder.path(), Version::Two);
        let session = folder.path().join("session");
        for (file, value) in [
            ("memory.max", "4096"),
            ("pids.max", "7"),
            ("cpu.max", "200000 100000"),
            ("cpu.weight", "100"),
            ("cgroup.subtree_control", "+memory"),
        ] {
            assert_eq!(read(session.join(file)), value, "{file}");
        }
        let joins = session.join("cells/cgroup.procs");
        fs::write(&joins, "").unwrap();
        let join_files = group.join_files().unwrap();
        assert_eq!(join_files.len(), 1);
        io::Write::write_all(
            &mut &File::from(join_files.into_iter().next().unwrap()),
            b"17\n",
        )
        .unwrap();
        assert_eq!(read(joins), "17\n");
        assert_eq!(group.entered(), [Pid::from_raw(17)]);
        group.keep(&[Pid::from_raw(17)]).unwrap();
        assert_eq!(read(session.join("kept/cgroup.procs")), "17");
        assert!(group.limits_memory());
        assert_eq!(group.exceeded_memory_bytes(), None);
        fs::write(session.join("memory.events"), "oom 1\noom_kill 0\n").unwrap();
        assert_eq!(group.exceeded_memory_bytes(), None);
        fs::write(session.join("memory.events"), "oom 1\noom_kill 2\n").unwrap();
        assert_eq!(group.exceeded_memory_bytes(), Some(4096));
    }

    #[test]
    fn a_session_without_a_cell_has_a_tenth_of_the_share_of_one_with_a_cell() {
        for (version, file, values) in [
            (Version::One, "cpu.shares", ["1024", "102"]),
            (Version::Two, "cpu.weight", ["100", "10"]),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let group = group(folder.path(), version);
            let file = folder.path().join("session").join(file);
            let [of_cell, between] = values;
            assert_eq!(read(&file), of_cell);
            group.set_share(Share::BetweenCells).unwrap();
            assert_eq!(read(&file), between);
            group.set_share(Share::OfCell).unwrap();
            assert_eq!(read(&file), of_cell);
        }
    }

    #[test]
    fn with_version_2_the_system_ends_all_processes_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let group = group(folder.path(), Version::Two);
        let session = folder.path().join("session");
        let mut alone = child();
        fs::write(session.join("cells/cgroup.procs"), alone.id().to_string()).unwrap();
        group.kill();
        assert_eq!(read(session.join("cgroup.kill")), "1");
        assert_eq!(read(session.join("pids.max")), "7");
        // An ordinary folder kills nothing, and neither does the worker.
        assert!(alone.try_wait().unwrap().is_none());
        alone.kill().unwrap();
        alone.wait().unwrap();
    }

    #[test]
    fn with_version_1_the_worker_ends_each_process() {
        let folder = tempfile::tempdir().unwrap();
        let group = group(folder.path(), Version::One);
        let session = folder.path().join("session");
        let mut members = [child(), child()];
        let ids: Vec<_> = members.iter().map(|one| id(one).to_string()).collect();
        fs::write(session.join("cgroup.procs"), ids.join("\n")).unwrap();
        group.kill();
        assert_eq!(read(session.join("pids.max")), "0");
        for member in &mut members {
            let status = member.wait().unwrap();
            let signal = std::os::unix::process::ExitStatusExt::signal(&status);
            assert_eq!(signal, Some(Signal::SIGKILL as i32));
        }
    }
}
