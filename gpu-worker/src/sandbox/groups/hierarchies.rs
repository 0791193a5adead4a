//! The control groups of this process: `/proc/self/cgroup` names them, `/proc/self/mountinfo` says where they are.

use std::{
    fs,
    path::{Path, PathBuf},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hierarchy {
    /// The group of this process.
    pub(super) folder: PathBuf,
    pub(super) version: Version,
    pub(super) controllers: Vec<String>,
}

/// Version 2 comes last.
pub(super) fn hierarchies_of_this_process() -> Vec<Hierarchy> {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let mut found = hierarchies(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
    for hierarchy in &mut found {
        if hierarchy.version == Version::Two {
            let file = hierarchy.folder.join("cgroup.controllers");
            let names = fs::read_to_string(file).unwrap_or_default();
            hierarchy.controllers = names.split_whitespace().map(str::to_owned).collect();
        }
    }
    found
}

/// Without the controllers of version 2, which are listed in a file of the group.
fn hierarchies(mounts: &str, groups: &str) -> Vec<Hierarchy> {
    let mut found: Vec<_> = groups
        .lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, group) = (fields.next()?, fields.next()?);
            let version = match controllers {
                "" => Version::Two,
                _ => Version::One,
            };
            let folder = mounts.lines().find_map(|mount| {
                let mount = Mount::parse(mount)?;
                mount
                    .has(version, controllers)
                    .then(|| mount.folder_of(group))?
            })?;
            let controllers = controllers.split(',').map(str::to_owned).collect();
            Some(Hierarchy {
                folder,
                version,
                controllers,
            })
        })
        .collect();
    found.sort_by_key(|hierarchy| hierarchy.version == Version::Two);
    found
}

/// A line such as `36 35 0:30 ROOT PLACE rw shared:1 - cgroup cgroup rw,cpu,cpuacct`.
struct Mount<'a> {
    root: &'a str,
    place: &'a str,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (own, of_file_system) = line.split_once(" - ")?;
        let mut own = own.split(' ').skip(3);
        let mut of_file_system = of_file_system.split(' ');
        Some(Self {
            root: own.next()?,
            place: own.next()?,
            kind: of_file_system.next()?,
            options: of_file_system.nth(1)?,
        })
    }

    fn has(&self, version: Version, controllers: &str) -> bool {
        match version {
            Version::Two => self.kind == "cgroup2",
            Version::One => {
                self.kind == "cgroup"
                    && controllers
                        .split(',')
                        .all(|name| self.options.split(',').any(|option| option == name))
            }
        }
    }

    /// `None` for a group outside of the mounted part.
    fn folder_of(&self, group: &str) -> Option<PathBuf> {
        let below = Path::new(group).strip_prefix(self.root).ok()?;
        Some(Path::new(self.place).join(below))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_found_where_they_are_mounted() {
        let mounts = "\
21 1 0:20 / /proc rw - proc proc rw
30 24 0:26 / /sys/fs/cgroup/unified rw,nosuid shared:9 - cgroup2 cgroup2 rw
31 24 0:27 / /sys/fs/cgroup/cpu,cpuacct rw shared:10 - cgroup cgroup rw,cpu,cpuacct
32 24 0:28 /docker/7 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
33 24 0:29 /docker/7 /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids";
        let groups = "\
4:pids:/elsewhere
3:memory:/docker/7/inner
2:cpu,cpuacct:/
1:name=systemd:/
0::/system.slice/baton-worker.service";
        let found = hierarchies(mounts, groups);
        let folders: Vec<_> = found
            .iter()
            .map(|hierarchy| hierarchy.folder.to_str().unwrap_or_default())
            .collect();
        assert_eq!(
            folders,
            [
                "/sys/fs/cgroup/memory/inner",
                "/sys/fs/cgroup/cpu,cpuacct/",
                "/sys/fs/cgroup/unified/system.slice/baton-worker.service",
            ]
        );
        assert_eq!(found[1].controllers, ["cpu", "cpuacct"]);
        assert_eq!(hierarchies("", groups), []);
    }
}
