//! The deferred state that one notebook still lacks, oldest first.
//!
//! It belongs to the notebook's task and not to a session, so it does not vanish with a session that is lost later.
//! There can be several entries between a cell's end and the notebook's confirmation that it has what the cell
//! changed.
//!
//! **Invariant:** an entry is removed only when its job is closed, or when its bytes are known to be lost.

use super::deferred_state::DeferredState;
use crate::session::{Keeper, Session, TableState};
use baton_protocol::shim::Snapshot;
use futures_util::future::select_all;
use std::time::Duration;
use tokio::time::Instant;

#[derive(Default)]
pub(crate) struct Deferred(Vec<DeferredState>);

impl Deferred {
    /// A cell has ended. Its changes, or its own deferred state, include the deferred state of earlier cells.
    pub(crate) fn add(&mut self, state: Option<DeferredState>) {
        self.0.iter_mut().for_each(DeferredState::overtake);
        self.0.extend(state);
    }

    /// The session that ran the last cell reports that its deferred state can be read.
    pub(crate) fn on_ready(&mut self, snapshot: Snapshot, keeper: Option<Keeper>) {
        if let Some(state) = self.0.iter_mut().find(|state| state.is_copying()) {
            state.on_ready(snapshot, keeper);
        }
    }

    /// Another cell begins.
    pub(crate) fn pause(&mut self) {
        self.0.iter_mut().for_each(DeferredState::pause);
    }

    pub(crate) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Whether the session must stay alive and run nothing, because some deferred state is only there.
    pub(crate) fn needs_session(&self) -> bool {
        self.0.iter().any(DeferredState::needs_session)
    }

    /// When to look whether the session has had its time to hand over its deferred state.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.0.iter().filter_map(DeferredState::next_look).min()
    }

    /// Whether the session has had its time to hand over its deferred state. Time in which it waits for the GPU does not
    /// count, because it may have to copy tensors from there.
    pub(crate) async fn is_overdue(&mut self, session: Option<&Session>) -> bool {
        let waited = match session {
            Some(session) => session.waited_for_gpu().await,
            None => Duration::ZERO,
        };
        let mut is_overdue = false;
        for state in &mut self.0 {
            is_overdue |= state.is_overdue(waited);
        }
        is_overdue
    }

    /// The session has run another cell, or has ended.
    pub(crate) fn lose_session(&mut self) {
        self.0.iter_mut().for_each(DeferredState::lose_session);
        self.0.retain(|state| !state.is_over());
    }

    /// Sends what can be sent. Returns what the notebook has once it has applied that, or `None` when an entry is
    /// over. Never completes while there is nothing to send. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<TableState> {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let all = self.0.iter_mut().map(|state| Box::pin(state.next()));
        let (held, _, _) = select_all(all).await;
        self.0.retain(|state| !state.is_over());
        held
    }
}
