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
    /// By level, the highest first.
    waiting: [BTreeSet<SessionId>; 4],
    sums: Sums,
}

/// Numbers of sessions, and bytes of theirs.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Sums {
    /// Those who asked for memory and have not got it.
    pub(crate) growing: i64,
    pub(crate) away: i64,
    pub(crate) leaving: i64,
    pub(crate) coming: i64,
    pub(crate) bytes_on_gpu: i64,
    pub(crate) bytes_leaving: i64,
}

impl Sums {
    fn add(&mut self, session: &Session, times: i64) {
        let count = |is_so: bool| times * i64::from(is_so);
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
            waiting: Default::default(),
            sums: Sums::default(),
        }
    }

    pub(crate) fn sums(&self) -> &Sums {
        &self.sums
    }

    pub(crate) fn any_waits(&self) -> bool {
        self.waiting.iter().any(|level| !level.is_empty())
    }

    pub(crate) fn waiting(&self, level: usize) -> &BTreeSet<SessionId> {
        &self.waiting[level]
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
        self.enter(id, &session);
        self.all.insert(id, session);
    }

    pub(crate) fn remove(&mut self, id: SessionId) {
        if let Some(session) = self.all.remove(&id) {
            self.leave(id, &session);
        }
    }

    /// `None` when there is no such session.
    pub(crate) fn change<Said>(
        &mut self,
        id: SessionId,
        change: impl FnOnce(&mut Session) -> Said,
    ) -> Option<Said> {
        let mut session = self.all.get(&id)?.clone();
        self.leave(id, &session);
        let said = change(&mut session);
        self.enter(id, &session);
        self.all.insert(id, session);
        Some(said)
    }

    fn enter(&mut self, id: SessionId, session: &Session) {
        self.sums.add(session, 1);
        if session.computes() {
            self.computing.insert(id);
        } else if session.waits() {
            self.waiting[level(&self.levels, session)].insert(id);
        }
    }

    fn leave(&mut self, id: SessionId, session: &Session) {
        self.sums.add(session, -1);
        if session.computes() {
            self.computing.remove(&id);
        } else if session.waits() {
            self.waiting[level(&self.levels, session)].remove(&id);
        }
    }
}
