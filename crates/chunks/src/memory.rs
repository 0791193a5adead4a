//! Reads the memory of a child process, and finds out how much memory a state may take.

mod control_groups;

use crate::StateError;
use baton_protocol::shim::{Stream, StreamPart};
use nix::{
    errno::Errno,
    sys::uio::{RemoteIoVec, process_vm_readv},
    unistd::Pid,
};
use std::{io::IoSliceMut, ops::Range};

/// Fills `buffer` from `address` in the memory of process `pid`.
pub fn read(pid: i32, address: u64, buffer: &mut [u8]) -> Result<(), StateError> {
    let mut done = 0;
    while done < buffer.len() {
        let rest = &mut buffer[done..];
        let bytes = rest.len();
        let from = address.wrapping_add(done as u64);
        match read_some(pid, from, rest) {
            Ok(0) => return Err(failed(pid, from, bytes, Errno::EFAULT)),
            Ok(count) => done += count,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(failed(pid, from, bytes, error)),
        }
    }
    Ok(())
}

/// Fills `buffer` with the bytes of all `ranges` in order. Ranges are offsets from `address`, and
/// there are few of them.
pub fn read_ranges(
    pid: i32,
    address: u64,
    ranges: &[Range<u64>],
    buffer: &mut Vec<u8>,
) -> Result<(), StateError> {
    let length =
        |range: &Range<u64>| usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    buffer.resize(ranges.iter().map(length).sum(), 0);
    let remote = ranges.iter().map(|range| {
        let base = usize::try_from(address.wrapping_add(range.start)).map_err(|_| Errno::EFAULT)?;
        let len = length(range);
        Ok(RemoteIoVec { base, len })
    });
    let count = remote.collect::<nix::Result<Vec<_>>>().and_then(|remote| {
        let local = &mut [IoSliceMut::new(buffer)];
        process_vm_readv(Pid::from_raw(pid), local, &remote)
    });
    if count == Ok(buffer.len()) {
        return Ok(());
    }
    // Read one by one, to finish an incomplete read or to find out which range fails.
    let mut rest = buffer.as_mut_slice();
    for range in ranges {
        let (room, after) = rest.split_at_mut(length(range));
        read(pid, address.wrapping_add(range.start), room)?;
        rest = after;
    }
    Ok(())
}

/// Fills `buffer` with the pickle stream from `offset` on.
pub fn read_stream(
    pid: i32,
    stream: &Stream,
    mut offset: u64,
    mut buffer: &mut [u8],
) -> Result<(), StateError> {
    for part in &stream.0 {
        let bytes = part.bytes();
        if offset >= bytes {
            offset -= bytes;
            continue;
        }
        let count =
            usize::try_from(bytes - offset).map_or(buffer.len(), |rest| rest.min(buffer.len()));
        let (room, rest) = buffer.split_at_mut(count);
        match part {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "less than the part's length"
            )]
            StreamPart::Here(part) => room.copy_from_slice(&part[offset as usize..][..count]),
            StreamPart::At { address, .. } => read(pid, address.wrapping_add(offset), room)?,
        }
        (buffer, offset) = (rest, 0);
    }
    Ok(())
}

fn read_some(pid: i32, address: u64, buffer: &mut [u8]) -> nix::Result<usize> {
    let remote = RemoteIoVec {
        base: usize::try_from(address).map_err(|_| Errno::EFAULT)?,
        len: buffer.len(),
    };
    process_vm_readv(
        Pid::from_raw(pid),
        &mut [IoSliceMut::new(buffer)],
        &[remote],
    )
}

fn failed(pid: i32, address: u64, bytes: usize, error: Errno) -> StateError {
    match error {
        Errno::EPERM | Errno::ENOSYS => StateError::MemoryNotPermitted {
            pid,
            ptrace_scope: ptrace_scope(),
        },
        Errno::ESRCH => StateError::ProcessGone { pid },
        source => StateError::Memory {
            pid,
            address,
            bytes,
            source,
        },
    }
}

/// Who may read the memory of other processes: 0 and 1 let a parent read its child. `None` if the
/// system has no such setting.
#[must_use]
pub fn ptrace_scope() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .ok()
        .map(|text| text.trim().to_owned())
}

/// How much memory this process can use at the moment; unlimited if the operating system reports nothing.
#[must_use]
pub fn available_bytes() -> u64 {
    Room::of_this_process().free_bytes
}

/// How much memory a state may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// What it may take at most, however long it waits.
    pub limit_bytes: u64,
    /// What is free at the moment.
    pub free_bytes: u64,
}

impl Room {
    pub const UNLIMITED: Self = Self {
        limit_bytes: u64::MAX,
        free_bytes: u64::MAX,
    };

    /// The memory of this machine, as the operating system reports it, or less if the control groups of this process
    /// allow less; unlimited if nothing is reported.
    #[must_use]
    pub fn of_this_process() -> Self {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Self::of_machine(&meminfo).and(Self::of_groups("self"))
    }

    /// Swap counts, too: a state there is better than none.
    fn of_machine(meminfo: &str) -> Self {
        let bytes = |field: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(field));
            let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
            kib.map(|kib| kib << 10)
        };
        let with_swap = |memory: &str, swap: &str| {
            let memory_bytes = bytes(memory).unwrap_or(u64::MAX);
            memory_bytes.saturating_add(bytes(swap).unwrap_or(0))
        };
        Self {
            limit_bytes: with_swap("MemTotal:", "SwapTotal:"),
            free_bytes: with_swap("MemAvailable:", "SwapFree:"),
        }
    }

    /// What the control groups of a process allow, regardless of the machine; unlimited if they set no limit.
    /// `process`: its id, or `self`.
    #[must_use]
    pub fn of_groups(process: &str) -> Self {
        control_groups::room_of(process)
    }

    /// What both allow.
    fn and(self, other: Self) -> Self {
        Self {
            limit_bytes: self.limit_bytes.min(other.limit_bytes),
            free_bytes: self.free_bytes.min(other.free_bytes),
        }
    }

    /// # Errors
    /// [`StateError::NoRoom`] if so many bytes never fit, [`StateError::MemoryFull`] if they do not fit now.
    pub fn check(self, bytes: u64) -> Result<(), StateError> {
        let Self {
            limit_bytes,
            free_bytes,
        } = self;
        match bytes {
            _ if bytes > limit_bytes => Err(StateError::NoRoom { bytes, limit_bytes }),
            _ if bytes > free_bytes => Err(StateError::MemoryFull),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_memory_and_swap() {
        let check = |meminfo: &str, (limit_kib, free_kib): (u64, u64)| {
            let expected = Room {
                limit_bytes: limit_kib << 10,
                free_bytes: free_kib << 10,
            };
            assert_eq!(Room::of_machine(meminfo), expected, "{meminfo}");
        };
        let memory = "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\n";
        check(memory, (1000, 400));
        let swap = "SwapCached: 7 kB\nSwapTotal: 200 kB\nSwapFree: 50 kB\n";
        check(&format!("{memory}{swap}"), (1200, 450));
        assert_eq!(Room::of_machine(""), Room::UNLIMITED);
    }
}
