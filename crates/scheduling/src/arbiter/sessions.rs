//! All sessions, with sums and lists over them.
//!
//! Each change updates the sums and the lists of sessions that compute and wait, so that no decision counts
//! sessions again. Sessions join and leave rarely, so they are stored in one vector in the order of their ids,
//! and the lists hold indices into it.
//!
//! **Invariant:** what sums and lists depend on changes only in [`Sessions::change`].

use crate::arbiter::{
    SessionId,
    accounts::Account,
    session::{Release, Residency, Session},
    settings::level,
};
use std::{ops::Index, time::Duration};

#[derive(Debug)]
pub(crate) struct Sessions {
    ids: Vec<SessionId>,
    /// In the order of their ids.
    all: Vec<Session>,
    levels: [Duration; 3],
    /// Indices in `all`, in order.
    computing: Vec<usize>,
    /// The same for waiting sessions, by level, the highest first.
    waiting: [Vec<usize>; 4],
    sums: Sums,
}

/// Counts of sessions, and sums of their bytes.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Sessions that asked for memory and have no answer yet.
    pub(crate) growing: i64,
    pub(crate) swapped_out: i64,
    /// Sessions that are chosen to leave the GPU, and have memory there or have not been told.
    pub(crate) chosen: i64,
    pub(crate) leaving: i64,
    pub(crate) coming: i64,
    pub(crate) bytes_on_gpu: i64,
    pub(crate) bytes_leaving: i64,
    /// All memory of sessions, on the GPU or not, including requested allocations and memory that cannot leave
    /// the GPU.
    pub(crate) bytes_wanted: i64,
    /// Sessions that compete for the GPU; see [`Session::is_rival`].
    pub(crate) rivals: i64,
    /// Sessions that are making places on the host ahead of a move.
    pub(crate) pinning: i64,
    pub(crate) places_bytes: i64,
    /// The part of `places_bytes` that was made ahead.
    pub(crate) ahead_bytes: i64,
}

/// The list in which a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum List {
    Computing,
    /// With the level.
    Waiting(usize),
}

impl Sums {
    fn of(session: &Session) -> Self {
        let leaving = matches!(session.residency, Residency::Leaving { .. });
        let coming = matches!(session.residency, Residency::Coming { .. });
        Self {
            growing: i64::from(session.growing_bytes > 0),
            swapped_out: i64::from(session.is_swapped_out()),
            chosen: i64::from(session.release == Release::Chosen),
            leaving: i64::from(leaving),
            coming: i64::from(coming),
            bytes_on_gpu: session.bytes_on_gpu() as i64,
            bytes_leaving: session.bytes_leaving() as i64,
            bytes_wanted: (session.fixed_bytes + session.bytes + session.growing_bytes) as i64,
            rivals: i64::from(session.is_rival()),
            pinning: i64::from(session.ahead.asked.is_some()),
            places_bytes: session.places_bytes() as i64,
            ahead_bytes: session.ahead_bytes() as i64,
        }
    }

    fn add(&mut self, other: Self, times: i64) {
        self.growing += times * other.growing;
        self.swapped_out += times * other.swapped_out;
        self.chosen += times * other.chosen;
        self.leaving += times * other.leaving;
        self.coming += times * other.coming;
        self.bytes_on_gpu += times * other.bytes_on_gpu;
        self.bytes_leaving += times * other.bytes_leaving;
        self.bytes_wanted += times * other.bytes_wanted;
        self.rivals += times * other.rivals;
        self.pinning += times * other.pinning;
        self.places_bytes += times * other.places_bytes;
        self.ahead_bytes += times * other.ahead_bytes;
    }
}

impl Index<&SessionId> for Sessions {
    type Output = Session;

    fn index(&self, id: &SessionId) -> &Session {
        self.get(id).expect("it is one of them")
    }
}

impl Sessions {
    pub(crate) fn new(levels: [Duration; 3]) -> Self {
        Self {
            ids: Vec::new(),
            all: Vec::new(),
            levels,
            computing: Vec::new(),
            waiting: Default::default(),
            sums: Sums::default(),
        }
    }

    pub(crate) fn get(&self, id: &SessionId) -> Option<&Session> {
        let index = self.ids.binary_search(id).ok()?;
        Some(&self.all[index])
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Session> {
        self.all.iter()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&SessionId, &Session)> + Clone {
        self.ids.iter().zip(&self.all)
    }

    pub(crate) fn sums(&self) -> &Sums {
        &self.sums
    }

    pub(crate) fn any_waits(&self) -> bool {
        (0..self.waiting.len()).any(|level| self.any_waits_in(level))
    }

    pub(crate) fn any_waits_in(&self, level: usize) -> bool {
        !self.waiting[level].is_empty()
    }

    pub(crate) fn waiting(&self, level: usize) -> impl Iterator<Item = (SessionId, &Session)> {
        self.at(&self.waiting[level])
    }

    /// Sessions whose work may be on the GPU: always few.
    pub(crate) fn computing(&self) -> impl Iterator<Item = (SessionId, &Session)> {
        self.at(&self.computing)
    }

    pub(crate) fn count_computing(&self) -> usize {
        self.computing.len()
    }

    fn at(&self, indices: &[usize]) -> impl Iterator<Item = (SessionId, &Session)> {
        indices
            .iter()
            .map(|index| (self.ids[*index], &self.all[*index]))
    }

    /// Charges this much GPU time to each session that computes.
    pub(crate) fn charge(
        &mut self,
        each: Duration,
        now: Duration,
        mut charged: impl FnMut(Account),
    ) {
        for index in &self.computing {
            let session = &mut self.all[*index];
            session.attained += each;
            session.used_at = now;
            charged(session.account);
        }
    }

    pub(crate) fn insert(&mut self, id: SessionId, session: Session) {
        self.remove(id);
        let index = self.ids.partition_point(|other| *other < id);
        self.ids.insert(index, id);
        self.all.insert(index, session);
        self.count();
    }

    pub(crate) fn remove(&mut self, id: SessionId) {
        if let Ok(index) = self.ids.binary_search(&id) {
            self.ids.remove(index);
            self.all.remove(index);
            self.count();
        }
    }

    /// `None` when there is no such session.
    pub(crate) fn change<Said>(
        &mut self,
        id: SessionId,
        change: impl FnOnce(&mut Session) -> Said,
    ) -> Option<Said> {
        let index = self.ids.binary_search(&id).ok()?;
        let session = &mut self.all[index];
        let sums = Sums::of(session);
        let list = list_of(&self.levels, session);
        let said = change(session);
        let new_sums = Sums::of(session);
        let new_list = list_of(&self.levels, session);
        if new_sums != sums {
            self.sums.add(sums, -1);
            self.sums.add(new_sums, 1);
        }
        if new_list != list {
            self.leave(index, list);
            self.enter(index, new_list);
        }
        Some(said)
    }

    /// Computes sums and lists anew, because indices have changed.
    fn count(&mut self) {
        self.sums = Sums::default();
        self.computing.clear();
        self.waiting.iter_mut().for_each(Vec::clear);
        for index in 0..self.all.len() {
            self.sums.add(Sums::of(&self.all[index]), 1);
            self.enter(index, list_of(&self.levels, &self.all[index]));
        }
    }

    fn enter(&mut self, index: usize, list: Option<List>) {
        if let Some(list) = list {
            let indices = self.priorities_of(list);
            let at = indices.partition_point(|other| *other < index);
            indices.insert(at, index);
        }
    }

    fn leave(&mut self, index: usize, list: Option<List>) {
        if let Some(list) = list {
            self.priorities_of(list).retain(|other| *other != index);
        }
    }

    fn priorities_of(&mut self, list: List) -> &mut Vec<usize> {
        match list {
            List::Computing => &mut self.computing,
            List::Waiting(level) => &mut self.waiting[level],
        }
    }
}

fn list_of(levels: &[Duration], session: &Session) -> Option<List> {
    if session.computes() {
        Some(List::Computing)
    } else if session.waits() {
        Some(List::Waiting(level(levels, session.attained)))
    } else {
        None
    }
}
