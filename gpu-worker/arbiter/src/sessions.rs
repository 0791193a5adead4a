//! All sessions, and what is true of them together.
//!
//! Sums and the list of those who compute are kept with each change, so that no decision counts sessions again.
//!
//! **Invariant:** a session changes in [`Sessions::change`] and nowhere else.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Deref,
    time::Duration,
};

use crate::{
    SessionId,
    session::{Residency, Session},
    turns::level,
};

#[derive(Debug)]
pub(crate) struct Sessions {
    all: BTreeMap<SessionId, Session>,
    levels: [Duration; 3],
    computing: BTreeSet<SessionId>,
    sums: Sums,
}

/// Numbers of sessions, and bytes of theirs.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Sums {
    /// By level, the highest first.
    pub(crate) waiting: [i64; 4],
    /// Those who asked for memory and have not got it.
    pub(crate) growing: i64,
    pub(crate) away: i64,
    pub(crate) leaving: i64,
    pub(crate) coming: i64,
    pub(crate) bytes_on_gpu: i64,
    pub(crate) bytes_leaving: i64,
}

impl Sums {
    fn add(&mut self, session: &Session, level: usize, times: i64) {
        let count = |is_so: bool| times * i64::from(is_so);
        self.waiting[level] += count(session.waits());
        self.growing += count(session.growing_bytes > 0);
        self.away += count(session.is_away());
        let leaving = matches!(session.residency, Residency::Leaving { .. });
        self.leaving += count(leaving);
        self.coming += count(matches!(session.residency, Residency::Coming { .. }));
        self.bytes_on_gpu += times * session.bytes_on_gpu() as i64;
        self.bytes_leaving += count(leaving) * session.bytes as i64;
    }
}

impl Deref for Sessions {
    type Target = BTreeMap<SessionId, Session>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl Sessions {
    pub(crate) fn new(levels: [Duration; 3]) -> Self {
        Self {
            all: BTreeMap::new(),
            levels,
            computing: BTreeSet::new(),
            sums: Sums::default(),
        }
    }

    pub(crate) fn sums(&self) -> &Sums {
        &self.sums
    }

    pub(crate) fn any_waits(&self) -> bool {
        self.sums.waiting.iter().any(|count| *count > 0)
    }

    /// Whose work may be on the GPU: few, whoever else is there.
    pub(crate) fn computing(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.computing.iter().map(|id| (*id, &self.all[id]))
    }

    pub(crate) fn count_computing(&self) -> usize {
        self.computing.len()
    }

    /// For changing each of them.
    pub(crate) fn ids_computing(&self) -> Vec<SessionId> {
        self.computing.iter().copied().collect()
    }

    pub(crate) fn insert(&mut self, id: SessionId, session: Session) {
        self.remove(id);
        self.sums.add(&session, level(&self.levels, &session), 1);
        self.all.insert(id, session);
    }

    pub(crate) fn remove(&mut self, id: SessionId) {
        if let Some(session) = self.all.remove(&id) {
            self.sums.add(&session, level(&self.levels, &session), -1);
            self.computing.remove(&id);
        }
    }

    /// `None` when there is no such session.
    pub(crate) fn change<Said>(
        &mut self,
        id: SessionId,
        change: impl FnOnce(&mut Session) -> Said,
    ) -> Option<Said> {
        let session = self.all.get_mut(&id)?;
        self.sums.add(session, level(&self.levels, session), -1);
        let computed = session.computes();
        let said = change(session);
        self.sums.add(session, level(&self.levels, session), 1);
        match (computed, session.computes()) {
            (false, true) => _ = self.computing.insert(id),
            (true, false) => _ = self.computing.remove(&id),
            _ => {}
        }
        Some(said)
    }
}
