//! How much memory the control groups of a process allow: a container's limit is one of these, and the system does not
//! count it when it reports what is available.
//!
//! In: the files of control groups, of both versions.

use super::Room;
use std::{fs, path::Path};

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
    let (root, limit, usage) = match controllers {
        "" => (root.to_owned(), "memory.max", "memory.current"),
        some if some.split(',').any(|one| one == "memory") => (
            root.join("memory"),
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
        ),
        _ => return Room::UNLIMITED,
    };
    let rooms = path.ancestors().filter_map(|group| {
        let folder = root.join(group.strip_prefix("/").ok()?);
        let read = |name| fs::read_to_string(folder.join(name)).ok();
        left_of(&read(limit)?, &read(usage)?, &read("memory.stat")?)
    });
    rooms.fold(Room::UNLIMITED, Room::and)
}

/// What one group allows; `None` if it has no limit. Cached files that could be evicted do not count as used.
fn left_of(limit: &str, usage: &str, stat: &str) -> Option<Room> {
    let forgettable = stat.lines().find_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        let is_meant = matches!(name, "inactive_file" | "total_inactive_file");
        is_meant.then(|| bytes.parse::<u64>().ok())?
    });
    let used: u64 = usage.trim().parse().ok()?;
    let used = used.saturating_sub(forgettable.unwrap_or(0));
    // Version 2 writes `max` if there is no limit.
    let limit_bytes: u64 = limit.trim().parse().ok()?;
    Some(Room {
        limit_bytes,
        free_bytes: limit_bytes.saturating_sub(used),
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

    #[test]
    fn a_group_leaves_what_it_does_not_use() {
        let stat = "anon 5\ninactive_file 100\nactive_file 7\n";
        assert_eq!(left_of("1000\n", "400\n", stat), Some(room(1000, 700)));
        assert_eq!(left_of("1000\n", "1200\n", ""), Some(room(1000, 0)));
        assert_eq!(left_of("max\n", "400\n", stat), None);
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
