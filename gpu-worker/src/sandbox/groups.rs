//! Control groups: what each session may use of the machine, and a reliable end for all of its processes.
//!
//! In: the groups that this worker may create. Out: one [`Group`] for each session.
//!
//! **Invariant:** a worker changes no groups except its own and those that it creates.

mod group;
mod hierarchies;

use self::hierarchies::{Hierarchy, Version, hierarchies_of_this_process};
use super::Limits;
use crate::processes;
use nix::unistd::Pid;
use std::{
    fmt::{self, Display},
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub(crate) use self::group::{Group, Share};

/// The group into which a worker moves itself, because in version 2 only groups without processes can limit those
/// below. systemd's `DelegateSubgroup=` may name it, too.
const OWN: &str = "worker";
/// The worker's processor weight; a session has a tenth of it. So the work of sessions does not slow down
/// what the worker does for all of them.
const OWN_WEIGHT: &str = "1000";
/// Names of sessions' groups begin with this, followed by their worker's process id.
const PREFIX: &str = "baton-";

/// How long an ending worker waits for the processes of its sessions.
const LAST_PATIENCE: Duration = Duration::from_secs(5);

/// What a group limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Controller {
    Memory,
    Processes,
    Processors,
}

impl Controller {
    const ALL: [Self; 3] = [Self::Memory, Self::Processes, Self::Processors];

    fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Processes => "pids",
            Self::Processors => "cpu",
        }
    }
}

impl Display for Controller {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Memory => "memory",
            Self::Processes => "processes",
            Self::Processors => "processor time",
        })
    }
}

/// A folder in which the groups of sessions are created.
#[derive(Debug)]
struct Base {
    folder: PathBuf,
    version: Version,
    controllers: Vec<Controller>,
}

#[derive(Debug)]
pub(super) struct Groups {
    bases: Vec<Base>,
    limits: Limits,
}

impl Groups {
    /// Finds the groups that this worker may create. [`Groups::unlimited`] lists what they do not limit.
    pub(super) fn open(limits: Limits) -> Self {
        Self::below(&hierarchies_of_this_process(), limits)
    }

    fn below(hierarchies: &[Hierarchy], limits: Limits) -> Self {
        let bases: Vec<_> = bases_wanted(hierarchies)
            .into_iter()
            .filter_map(|base| match prepare(&base) {
                Ok(folder) => Some(Base { folder, ..base }),
                Err(error) => {
                    tracing::debug!(folder = %base.folder.display(), %error, "No control groups here");
                    None
                }
            })
            .collect();
        for base in &bases {
            remove_leftovers(&base.folder);
        }
        Self { bases, limits }
    }

    /// What sessions can use without a limit, although there should be one.
    pub(super) fn unlimited(&self) -> Vec<Controller> {
        let wanted = |controller: &Controller| match controller {
            Controller::Memory => self.limits.memory_bytes.is_some(),
            Controller::Processes => true,
            Controller::Processors => self.limits.processors.is_some(),
        };
        let mut controllers = Controller::ALL.to_vec();
        controllers.retain(|controller| wanted(controller) && !self.has(*controller));
        controllers
    }

    pub(super) fn has(&self, controller: Controller) -> bool {
        let mut bases = self.bases.iter();
        bases.any(|base| base.controllers.contains(&controller))
    }

    /// Returns `None` if this worker may not create groups.
    pub(super) fn create(&self) -> io::Result<Option<Group>> {
        if self.bases.is_empty() {
            return Ok(None);
        }
        let name = format!("{PREFIX}{}-{}", Pid::this(), uuid::Uuid::new_v4().simple());
        Group::create(&self.bases, &name, self.limits).map(Some)
    }
}

impl Drop for Groups {
    /// Waits, so that the groups of ended sessions are removed before the worker ends, if their processes end in
    /// time.
    fn drop(&mut self) {
        let prefix = format!("{PREFIX}{}-", Pid::this());
        let has_own = |base: &Base| {
            let mut entries = fs::read_dir(&base.folder).into_iter().flatten().flatten();
            entries.any(|entry| entry.file_name().to_string_lossy().starts_with(&prefix))
        };
        let deadline = Instant::now() + LAST_PATIENCE;
        while self.bases.iter().any(has_own) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Uses version 2 if it has the controller, otherwise version 1. Version 2 is used even without controllers,
/// because it ends a group's processes at once.
fn bases_wanted(hierarchies: &[Hierarchy]) -> Vec<Base> {
    let mut bases: Vec<Base> = Vec::new();
    let newest_first = || hierarchies.iter().rev();
    for controller in Controller::ALL {
        let has = |hierarchy: &&Hierarchy| {
            let mut names = hierarchy.controllers.iter();
            names.any(|name| name == controller.name())
        };
        let Some(hierarchy) = newest_first().find(has) else {
            continue;
        };
        match bases
            .iter_mut()
            .find(|base| base.folder == hierarchy.folder)
        {
            Some(base) => base.controllers.push(controller),
            None => bases.push(Base {
                folder: hierarchy.folder.clone(),
                version: hierarchy.version,
                controllers: vec![controller],
            }),
        }
    }
    let unified = newest_first().find(|hierarchy| hierarchy.version == Version::Two);
    if let Some(unified) = unified
        && !bases.iter().any(|base| base.version == Version::Two)
    {
        bases.push(Base {
            folder: unified.folder.clone(),
            version: Version::Two,
            controllers: Vec::new(),
        });
    }
    bases
}

/// Returns the folder in which groups with this base's controllers can be created.
fn prepare(base: &Base) -> io::Result<PathBuf> {
    let folder = match (base.folder.file_name(), base.folder.parent()) {
        (Some(name), Some(parent)) if name == OWN && base.version == Version::Two => parent,
        _ => &base.folder,
    };
    if base.version == Version::Two && !base.controllers.is_empty() {
        let is_root_of_all = !folder.join("cgroup.events").exists();
        if folder == base.folder && !is_root_of_all {
            move_into(folder, &folder.join(OWN))?;
        }
        for controller in &base.controllers {
            let enabled = format!("+{}", controller.name());
            fs::write(folder.join("cgroup.subtree_control"), enabled)?;
        }
        if base.controllers.contains(&Controller::Processors) && !is_root_of_all {
            let written = fs::write(folder.join(OWN).join("cpu.weight"), OWN_WEIGHT);
            if let Err(error) = written {
                tracing::debug!(%error, "The worker has no larger share of the processor than a session");
            }
        }
    }
    let trial = folder.join(format!("{PREFIX}{}", Pid::this()));
    fs::create_dir(&trial)?;
    fs::remove_dir(&trial)?;
    Ok(folder.to_owned())
}

/// Moves this worker and its children one group down, if no other process is in its group.
fn move_into(folder: &Path, own: &Path) -> io::Result<()> {
    let members = group::members(folder)?;
    let mut family = processes::below(Pid::this());
    family.push(Pid::this());
    if members.iter().any(|member| !family.contains(member)) {
        return Err(io::Error::other(
            "other processes are in this worker's group",
        ));
    }
    match fs::create_dir(own) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for member in members {
        fs::write(own.join("cgroup.procs"), member.to_string())?;
    }
    Ok(())
}

/// Removes groups of workers that were killed. Groups that are not empty belong to a living worker, and stay.
fn remove_leftovers(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let worker = name.to_str().and_then(|name| {
            let (worker, _) = name.strip_prefix(PREFIX)?.split_once('-')?;
            worker.parse::<u32>().ok()
        });
        if worker.is_some_and(|worker| !Path::new(&format!("/proc/{worker}")).exists()) {
            let _ = group::is_removed(&entry.path());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        memory_bytes: Some(4096),
        processes: 7,
        processors: None,
        scratch_bytes: 0,
    };

    fn hierarchy(folder: &str, version: Version, controllers: &[&str]) -> Hierarchy {
        Hierarchy {
            folder: folder.into(),
            version,
            controllers: controllers.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    fn check(hierarchies: &[Hierarchy], expected: &[(&str, &[Controller])]) {
        let bases = bases_wanted(hierarchies);
        let found: Vec<_> = bases
            .iter()
            .map(|base| (base.folder.to_str().unwrap_or_default(), &*base.controllers))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn version_2_goes_before_version_1() {
        use Controller::{Memory, Processes, Processors};
        let first = hierarchy("/one/memory", Version::One, &["memory"]);
        let both = hierarchy("/one/cpu", Version::One, &["cpu", "cpuacct"]);
        let all = hierarchy("/two", Version::Two, &["cpu", "io", "memory", "pids"]);
        let none = hierarchy("/two", Version::Two, &[]);
        let controllers: &[Controller] = &[Memory, Processes, Processors];
        check(&[first.clone(), all], &[("/two", controllers)]);
        check(
            &[first.clone(), both, none],
            &[
                ("/one/memory", &[Memory]),
                ("/one/cpu", &[Processors]),
                ("/two", &[]),
            ],
        );
        check(&[first], &[("/one/memory", &[Memory])]);
        check(&[], &[]);
    }

    /// An ordinary folder that stands for a group of version 2 with these processes.
    fn delegated(folder: &Path, processes: &str) -> Hierarchy {
        fs::write(folder.join("cgroup.events"), "").unwrap();
        fs::write(folder.join("cgroup.procs"), processes).unwrap();
        let folder = folder.to_str().unwrap();
        hierarchy(folder, Version::Two, &["cpu", "memory", "pids"])
    }

    #[test]
    fn a_worker_alone_in_its_group_moves_down_and_makes_groups_for_sessions() {
        let folder = tempfile::tempdir().unwrap();
        let this = Pid::this().to_string();
        let groups = Groups::below(&[delegated(folder.path(), &this)], LIMITS);
        assert_eq!(groups.unlimited(), []);
        let read = |file: &str| fs::read_to_string(folder.path().join(file)).unwrap();
        assert_eq!(read("worker/cgroup.procs"), this);
        assert_eq!(read("worker/cpu.weight"), OWN_WEIGHT);
        let session = groups.create().unwrap().unwrap();
        let is_group = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with(PREFIX);
        let made = fs::read_dir(folder.path()).unwrap();
        let made: Vec<_> = made
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| is_group(name))
            .collect();
        assert_eq!(made.len(), 1);
        assert!(folder.path().join(&made[0]).join("cells").is_dir());
        // Ordinary folders with files are not removed like groups.
        folder.close().unwrap();
        drop(session);
    }

    #[test]
    fn a_worker_that_shares_its_group_limits_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let groups = Groups::below(&[delegated(folder.path(), "1")], LIMITS);
        let missing = [Controller::Memory, Controller::Processes];
        assert_eq!(groups.unlimited(), missing);
        assert!(groups.create().unwrap().is_none());
    }
}
