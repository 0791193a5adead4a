//! How much memory this machine has, and how much more of it this worker and its sessions may use.
//!
//! In: `/proc`, and the files of control groups.

use crate::processes;
use nix::unistd::Pid;
use std::{fs, path::Path, sync::LazyLock};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) used_bytes: u64,
    pub(crate) total_bytes: u64,
}

pub(crate) fn memory() -> Memory {
    memory_of(&fs::read_to_string("/proc/meminfo").unwrap_or_default())
}

/// All memory of this machine. Read once, when the worker starts, because later it may lack the descriptor to read it.
pub(crate) fn total_bytes() -> u64 {
    static TOTAL_BYTES: LazyLock<u64> = LazyLock::new(|| memory().total_bytes);
    *TOTAL_BYTES
}

/// How much more memory this process and its children can use: as much as the system has available, or less if
/// one of their control groups allows less.
pub(crate) fn available_bytes() -> u64 {
    let memory = memory();
    let available = memory.total_bytes - memory.used_bytes;
    allowed_to("self").map_or(available, |allowed| allowed.min(available))
}

/// How much more memory a session's process may use by its control groups and by `session_limit_bytes`,
/// regardless of what the system has available. 0 if the process id is not known.
pub(crate) fn left_to(process: Pid, session_limit_bytes: Option<u64>) -> u64 {
    if process.as_raw() <= 0 {
        return 0;
    }
    let left = |limit: u64| limit.saturating_sub(processes::resident_bytes(process, Some(limit)));
    let limits = [
        allowed_to(&process.to_string()),
        session_limit_bytes.map(left),
    ];
    limits.into_iter().flatten().min().unwrap_or(u64::MAX)
}

/// How much more the control groups of a process allow; `None` if they set no limit.
fn allowed_to(process: &str) -> Option<u64> {
    let groups = fs::read_to_string(format!("/proc/{process}/cgroup")).unwrap_or_default();
    let allowed = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        allowed_in(controllers, Path::new(path))
    });
    allowed.min()
}

/// How much more a group and its ancestors allow. In a container, the path may be the host's, so that only the
/// root exists.
fn allowed_in(controllers: &str, path: &Path) -> Option<u64> {
    let (root, limit, usage) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max", "memory.current"),
        some if some.split(',').any(|one| one == "memory") => (
            "/sys/fs/cgroup/memory",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
        ),
        _ => return None,
    };
    let groups = path.ancestors().filter_map(|group| {
        let folder = Path::new(root).join(group.strip_prefix("/").ok()?);
        let read = |name| fs::read_to_string(folder.join(name)).ok();
        left_of(&read(limit)?, &read(usage)?, &read("memory.stat")?)
    });
    groups.min()
}

/// How much more a group allows. Cached files that could be evicted do not count as used.
fn left_of(limit: &str, usage: &str, stat: &str) -> Option<u64> {
    let forgettable = stat.lines().find_map(|line| {
        let (name, bytes) = line.split_once(' ')?;
        let is_meant = matches!(name, "inactive_file" | "total_inactive_file");
        is_meant.then(|| bytes.parse::<u64>().ok())?
    });
    let used: u64 = usage.trim().parse().ok()?;
    let used = used.saturating_sub(forgettable.unwrap_or(0));
    // Version 2 writes `max` if there is no limit.
    Some(limit.trim().parse::<u64>().ok()?.saturating_sub(used))
}

fn memory_of(meminfo: &str) -> Memory {
    let bytes = |field: &str| -> u64 {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    };
    let total_bytes = bytes("MemTotal:");
    Memory {
        used_bytes: total_bytes.saturating_sub(bytes("MemAvailable:")),
        total_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_memory_is_what_is_not_available() {
        let text = "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    400 kB\n";
        let expected = Memory {
            used_bytes: 600 << 10,
            total_bytes: 1000 << 10,
        };
        assert_eq!(memory_of(text), expected);
        assert_eq!(memory_of("nonsense"), Memory::default());
    }

    #[test]
    fn a_limit_leaves_what_the_session_does_not_use() {
        let this = Pid::this();
        let used = processes::resident_bytes(this, None);
        let left = left_to(this, Some(2 * used));
        assert!(left > 0 && left < 2 * used);
        assert_eq!(left_to(this, Some(1)), 0);
        assert!(left_to(this, None) > left);
    }

    #[test]
    fn a_control_group_leaves_what_it_does_not_use() {
        let stat = "anon 5\ninactive_file 100\nactive_file 7\n";
        assert_eq!(left_of("1000\n", "400\n", stat), Some(700));
        assert_eq!(left_of("1000\n", "1200\n", ""), Some(0));
        assert_eq!(left_of("max\n", "400\n", stat), None);
        let available = available_bytes();
        assert!(available > 0 && available <= memory().total_bytes);
    }
}
