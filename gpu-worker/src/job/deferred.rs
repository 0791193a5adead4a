//! What cells of one notebook left out of their ends and the notebook still lacks, oldest first.
//!
//! It belongs to the notebook's task and not to a session: a session that is lost later takes nothing of it along.
//! There is more than one entry between a cell's end and the notebook's word that it has what that changed.
//!
//! **Invariant:** an entry goes only when its job is closed, or is known to be lost.

use baton_protocol::shim::Snapshot;
use futures_util::future::select_all;

use super::deferred_state::DeferredState;
use crate::session::{Held, Keeper};

#[derive(Default)]
pub(crate) struct Deferred(Vec<DeferredState>);

impl Deferred {
    /// A cell has ended. What earlier ones left is in what it changed, or left itself.
    pub(crate) fn add(&mut self, state: Option<DeferredState>) {
        self.0.iter_mut().for_each(DeferredState::overtake);
        self.0.extend(state);
    }

    /// The session that ran the last cell says that what it left can be read.
    pub(crate) fn settle(&mut self, snapshot: Snapshot, keeper: Option<Keeper>) {
        if let Some(state) = self.0.iter_mut().find(|state| state.is_settling()) {
            state.settle(snapshot, keeper);
        }
    }

    /// Another cell begins.
    pub(crate) fn pause(&mut self) {
        self.0.iter_mut().for_each(DeferredState::pause);
    }

    pub(crate) fn is_any(&self) -> bool {
        !self.0.is_empty()
    }

    /// Whether a session has to live, and to do nothing else.
    pub(crate) fn needs_session(&self) -> bool {
        self.0.iter().any(DeferredState::needs_session)
    }

    /// The session has gone on, or is gone.
    pub(crate) fn lose_session(&mut self) {
        self.0.iter_mut().for_each(DeferredState::lose_session);
        self.0.retain(|state| !state.is_over());
    }

    /// Sends what can be sent. What the session holds that left it, once the notebook has applied it; `None` when
    /// something is over. Waits for ever without anything to send. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Held> {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let all = self.0.iter_mut().map(|state| Box::pin(state.next()));
        let (held, _, _) = select_all(all).await;
        self.0.retain(|state| !state.is_over());
        held
    }
}
