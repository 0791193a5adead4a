//! How much memory the control groups of a process allow. A container's limit is one of these, and `/proc/meminfo`
//! ignores it.
//!
//! In: the files of control groups, of both versions.

use super::Room;
use std::{fs, path::Path};

/// How the files of one version of control groups are named.
struct Names {
    limit: &'static str,
    usage: &'static str,
    /// The lines of `memory.stat` that count cached files, in the group and all groups below it.
    cached: [&'static str; 2],
}

const FIRST_VERSION: Names = Names {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cached: ["total_active_file", "total_inactive_file"],
};
const SECOND_VERSION: Names = Names {
    limit: "memory.max",
    usage: "memory.current",
    cached: ["active_file", "inactive_file"],
};

/// What the control groups of a process allow. `process`: its id, or `self`.
pub(super) fn room_of(process: &str) -> Room {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
    room_in(Path::new("/sys/fs/cgroup"), &groups)
}

/// `groups`: one line for each hierarchy, with its controllers and the path of the process's group.
fn room_in(root: &Path, groups: &str) -> Room {
    let rooms = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        Some(room_of_group(root, controllers, Path::new(path)))
    });
    rooms.fold(Room::UNLIMITED, Room::and)
}

/// What a group and its ancestors allow. In a container, the path may be the host's, so that only the root exists.
fn room_of_group(root: &Path, controllers: &str, path: &Path) -> Room {
    let (root, names) = match controllers {
        "" => (root.to_owned(), SECOND_VERSION),
        some if some.split(',').any(|one| one == "memory") => (root.join("memory"), FIRST_VERSION),
        _ => return Room::UNLIMITED,
    };
    let rooms = path.ancestors().filter_map(|group| {
        let folder = root.join(group.strip_prefix("/").ok()?);
        left_in(&folder, &names)
    });
    rooms.fold(Room::UNLIMITED, Room::and)
}

/// What one group allows; `None` if it has no limit. Cached files do not count as used, because the system evicts them
/// before the group lacks memory.
fn left_in(folder: &Path, names: &Names) -> Option<Room> {
    let read = |name| fs::read_to_string(folder.join(name)).ok();
    let number = |name| read(name)?.trim().parse::<u64>().ok();
    // Version 2 writes `max` if there is no limit. Then nothing else is read, because the system computes the
    // statistics of all groups below this one whenever they are read.
    let limit_bytes = number(names.limit)?;
    let used_bytes = number(names.usage)?;
    let stat = read("memory.stat")?;
    let evictable = stat.lines().filter_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        let is_evictable = names.cached.contains(&name);
        is_evictable.then(|| bytes.parse::<u64>().ok())?
    });
    let used_bytes = used_bytes.saturating_sub(evictable.sum());
    Some(Room {
        limit_bytes,
        free_bytes: limit_bytes.saturating_sub(used_bytes),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn room(limit_bytes: u64, free_bytes: u64) -> Room {
        Room {
            limit_bytes,
            free_bytes,
        }
    }

    fn check_left(names: &Names, files: &[(&str, &str)], expected: Option<Room>) {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        assert_eq!(left_in(folder.path(), names), expected, "{files:?}");
    }

    #[test]
    fn a_group_leaves_what_it_does_not_use() {
        let check = |limit, usage, stat, expected| {
            let files = [
                ("memory.max", limit),
                ("memory.current", usage),
                ("memory.stat", stat),
            ];
            check_left(&SECOND_VERSION, &files, expected);
        };
        let stat = "anon 5\nfile 900\ninactive_file 100\nactive_file 70\n";
        check("1000\n", "400\n", stat, Some(room(1000, 770)));
        check("1000\n", "1200\n", "", Some(room(1000, 0)));
        check("max\n", "400\n", stat, None);
    }

    #[test]
    fn in_the_first_version_the_groups_below_count_too() {
        let stat =
            "inactive_file 1\nactive_file 2\ntotal_inactive_file 100\ntotal_active_file 70\n";
        let files = [
            ("memory.limit_in_bytes", "1000\n"),
            ("memory.usage_in_bytes", "400\n"),
            ("memory.stat", stat),
        ];
        check_left(&FIRST_VERSION, &files, Some(room(1000, 770)));
    }

    #[test]
    fn every_group_on_the_way_to_the_root_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = |path: &str, files: [(&str, &str); 2]| {
            let folder = root.path().join(path);
            fs::create_dir_all(&folder).unwrap();
            for (name, text) in files.into_iter().chain([("memory.stat", "")]) {
                fs::write(folder.join(name), text).unwrap();
            }
        };
        let second = |limit, usage| [("memory.max", limit), ("memory.current", usage)];
        group("pod", second("1000", "900"));
        group("pod/container", second("500", "100"));
        group("pod/free", second("max", "100"));
        let first = |limit, usage| {
            [
                ("memory.limit_in_bytes", limit),
                ("memory.usage_in_bytes", usage),
            ]
        };
        group("memory", first("2000", "1"));
        group("memory/docker", first("9223372036854771712", "1"));
        let check = |groups: &str, expected: Room| {
            assert_eq!(room_in(root.path(), groups), expected, "{groups}");
        };
        check("0::/pod/container\n", room(500, 100));
        check("0::/pod/free\n", room(1000, 100));
        check("3:cpu,memory:/docker\n2:cpuset:/pod\n", room(2000, 1999));
        // The container sees its own group as the root of the first version.
        check("3:memory:/docker/of/the/host\n0::/\n", room(2000, 1999));
        check("", Room::UNLIMITED);
    }
}
