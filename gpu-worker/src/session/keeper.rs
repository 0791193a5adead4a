//! A process that keeps what a cell left in its session, as the session forked it.
//!
//! In: its number, which the session says. Out: where the memory can be read, also after the session's end.
//!
//! **Invariant:** a [`Keeper`] is a child of this worker and was started by that session, so ending it harms nobody
//! else; it ends when the last [`Keeper`] is dropped.

use std::fs;
use std::sync::{Arc, Weak};

use nix::unistd::Pid;

use crate::processes;

#[derive(Debug)]
pub(crate) struct Keeper(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    process: Pid,
}

/// What a session knows of its keepers: they outlive it, and end by themselves.
#[derive(Debug, Default)]
pub(crate) struct Keepers(Vec<Weak<Kept>>);

impl Keepers {
    /// Code of a student may have said the number, so whose process it is does not follow from that.
    pub(crate) fn adopt(&mut self, process: u32, mark: &str) -> Option<Keeper> {
        let process = Pid::from_raw(i32::try_from(process).ok()?);
        let ours = parent_of(process) == Some(std::process::id());
        if !ours || !processes::is_marked(process, mark) {
            tracing::warn!(%process, "A session named a keeper process that does not belong to it");
            return None;
        }
        let kept = Arc::new(Kept { process });
        self.0.retain(|keeper| keeper.strong_count() > 0);
        self.0.push(Arc::downgrade(&kept));
        Some(Keeper(kept))
    }

    pub(crate) fn living(&self) -> Vec<Pid> {
        let living = self.0.iter().filter_map(Weak::upgrade);
        living.map(|kept| kept.process).collect()
    }
}

impl Keeper {
    pub(crate) fn process(&self) -> Pid {
        self.0.process
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        processes::end_children(vec![self.process]);
    }
}

fn parent_of(process: Pid) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    parent.trim().parse().ok()
}
