//! A keeper: a process forked from a session, whose memory preserves the deferred state of a cell.
//!
//! In: its process id, which the session reports. Out: a process whose memory can be read, also after the session's
//! end.
//!
//! **Invariant:** a [`Keeper`] is a child of this worker, or lives in its session's sandbox, and was started by
//! that session, so ending it harms nothing else. It ends when the last [`Keeper`] is dropped.

use super::life::Enclosure;
use crate::processes;
use nix::unistd::Pid;
use std::sync::{Arc, Weak};

#[derive(Debug)]
pub(crate) struct Keeper(Arc<Kept>);

#[derive(Debug)]
struct Kept {
    process: Pid,
    /// The sandbox, without which the process would end.
    _enclosure: Option<Arc<Enclosure>>,
}

/// A session's keepers. They can outlive the session: each ends when its last [`Keeper`] is dropped.
#[derive(Debug, Default)]
pub(crate) struct Keepers(Vec<Weak<Kept>>);

impl Keepers {
    /// Adopts a process that the session names. The number may come from a student's code, so whether the process
    /// belongs to the session is checked here.
    pub(super) fn adopt(
        &mut self,
        process: u32,
        mark: &str,
        enclosure: Option<&Arc<Enclosure>>,
    ) -> Option<Keeper> {
        let said = Pid::from_raw(i32::try_from(process).ok()?);
        let process = match enclosure {
            Some(enclosure) => enclosure.process(said),
            None => {
                Some(said).filter(|process| processes::parent_of(*process) == Some(Pid::this()))
            }
        };
        let marked = process.filter(|process| processes::is_marked(*process, mark));
        let Some(process) = marked else {
            tracing::warn!(process = %said, "A session named a keeper process that does not belong to it");
            return None;
        };
        match enclosure {
            Some(enclosure) => enclosure.keep(process),
            None => processes::end_as_late_as(Pid::this(), process),
        }
        let kept = Arc::new(Kept {
            process,
            _enclosure: enclosure.cloned(),
        });
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
