//! The disk under the store, asked beside the load: how long a small write takes until it is safe, as that of a commit.
//!
//! A cell that waited while such a write hung waited for the disk, or for the processors, which [`Disk::late`] tells apart.

use anyhow::Context;
use hdrhistogram::Histogram;
use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::PathBuf,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Between two writes.
const PAUSE: Duration = Duration::from_millis(20);
/// Longer ones hang. Those of a commit on a disk that does not are a few milliseconds.
const HANGS: Duration = Duration::from_millis(50);

pub(crate) struct Probe {
    stop: Sender<()>,
    thread: JoinHandle<anyhow::Result<Disk>>,
}

pub(crate) struct Disk {
    /// Microseconds.
    pub(crate) writes: Histogram<u64>,
    /// Microseconds that the probe itself was woken too late: the processors were busy.
    pub(crate) late: Histogram<u64>,
    hung: Vec<(Instant, Instant)>,
}

impl Probe {
    /// Writes into a new file in the folder until it is asked.
    pub(crate) fn start(path: PathBuf) -> anyhow::Result<Self> {
        let file = File::create(path).context("Failed to ask the disk")?;
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || watch(&file, &stopped));
        Ok(Self { stop, thread })
    }

    pub(crate) fn finish(self) -> anyhow::Result<Disk> {
        drop(self.stop);
        self.thread.join().expect("it does not panic")
    }
}

fn watch(file: &File, stopped: &Receiver<()>) -> anyhow::Result<Disk> {
    let mut disk = Disk {
        writes: Histogram::new(3)?,
        late: Histogram::new(3)?,
        hung: Vec::new(),
    };
    let block = [7; 8192];
    loop {
        let due = Instant::now() + PAUSE;
        if stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Disconnected) {
            return Ok(disk);
        }
        let begun = Instant::now();
        file.write_all_at(&block, 0)?;
        file.sync_data()?;
        let ended = Instant::now();
        disk.late.record(crate::microseconds(begun - due))?;
        disk.writes.record(crate::microseconds(ended - begun))?;
        if ended - begun >= HANGS {
            disk.hung.push((begun, ended));
        }
    }
}

impl Disk {
    /// Whether a write hung at any time between these.
    pub(crate) fn hung(&self, from: Instant, to: Instant) -> bool {
        // In order, and none overlaps another.
        let next = self.hung.partition_point(|(_, ended)| *ended < from);
        self.hung.get(next).is_some_and(|(begun, _)| *begun <= to)
    }

    /// The part of the time in which it hung.
    pub(crate) fn hung_for(&self) -> Duration {
        self.hung.iter().map(|(begun, ended)| *ended - *begun).sum()
    }
}
