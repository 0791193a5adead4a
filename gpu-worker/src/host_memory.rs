//! How much memory this machine has, and how much more of it this worker and its sessions may use.
//!
//! In: `/proc`, and the files of control groups.

use crate::processes;
use baton_chunks::memory::Room;
use nix::unistd::Pid;
use std::{fs, sync::LazyLock};

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
    available.min(Room::of_groups("self").free_bytes)
}

/// How much more memory a session's process may use by its control groups and by `session_limit_bytes`,
/// regardless of what the system has available. 0 if the process id is not known.
pub(crate) fn left_to(process: Pid, session_limit_bytes: Option<u64>) -> u64 {
    if process.as_raw() <= 0 {
        return 0;
    }
    let left = |limit: u64| limit.saturating_sub(processes::resident_bytes(process, Some(limit)));
    let allowed = Room::of_groups(&process.to_string()).free_bytes;
    allowed.min(session_limit_bytes.map_or(u64::MAX, left))
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
    fn what_is_available_is_less_than_all() {
        let available = available_bytes();
        assert!(available > 0 && available <= memory().total_bytes);
    }
}
