//! When to tell the worker that the notebook is still preparing an answer. A worker does not wait for a notebook that
//! gives no such sign.
//!
//! Bytes that are read or sent show that the proxy prepares an answer. The shim lists and pickles variables before that,
//! and only the time that it computes shows that it does not hang. While a background cell waits, the notebook computes
//! for other cells, too, so that shows nothing: the worker gives up the job, and the cell is submitted again when the
//! shim has answered.

use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// A small part of the time that a worker waits, so that signs may be late.
const INTERVAL: Duration = Duration::from_secs(10);
/// An idle kernel computes for less than this in an interval, and a pickling one for more, even on a busy machine.
/// In ticks of the system's clock, usually 10 ms.
const COMPUTES: u64 = 20;

pub(super) struct Signs {
    kernel_pid: i32,
    due: Instant,
    /// For how many ticks the kernel had computed when the last sign was due.
    ticks: u64,
}

impl Signs {
    pub(super) fn new(kernel_pid: i32) -> Self {
        Self {
            kernel_pid,
            due: Instant::now() + INTERVAL,
            ticks: ticks(kernel_pid),
        }
    }

    /// Completes when the next sign is due. Cancel safe.
    pub(super) async fn due(&self) {
        sleep_until(self.due).await;
    }

    /// Returns whether the kernel has computed since the last sign was due.
    pub(super) fn next(&mut self) -> bool {
        self.due = Instant::now() + INTERVAL;
        let now = ticks(self.kernel_pid);
        let before = std::mem::replace(&mut self.ticks, now);
        now.saturating_sub(before) >= COMPUTES
    }
}

/// For how long all threads of a process have computed; 0 if it has ended.
fn ticks(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain anything. See proc_pid_stat(5).
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let times = fields.split_whitespace().skip(11).take(2);
    times.filter_map(|time| time.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::process::Command;

    #[tokio::test]
    async fn only_a_kernel_that_computes_gives_signs() {
        let mut busy = Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let mut idle = Command::new("sleep").arg("600").spawn().unwrap();
        let signs = |pid: u32| Signs::new(pid.cast_signed());
        let (mut of_busy, mut of_idle) = (signs(busy.id()), signs(idle.id()));
        let deadline = Instant::now() + Duration::from_secs(60);
        while ticks(of_busy.kernel_pid) < of_busy.ticks + COMPUTES {
            assert!(Instant::now() < deadline, "this takes far too long");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(of_busy.next());
        assert!(!of_idle.next());
        for process in [&mut busy, &mut idle] {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }
}
