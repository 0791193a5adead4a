//! Names of the notebook that the cell looks up and was not given: asked for, received, and sent to the session.
//!
//! Meanwhile the cell waits, or one of its threads. Everything else that can happen to a running cell can still
//! happen.

use std::os::fd::AsFd;

use baton_chunks::Ledger;
use baton_protocol::shim::ToSession;
use baton_protocol::{Answer, Cell, Outcome, State};
use baton_transport::Received;

use super::{Phase, Run};
use crate::job::Ending;
use crate::messages;
use crate::questions::Answered;
use crate::transfer::{NotTransferred, receive_more};

/// The next answer; `None` if none can arrive. Cancel safe.
pub(super) async fn answer(names: &mut Option<Answered>) -> Option<State> {
    let Some(answered) = names else {
        return std::future::pending().await;
    };
    let answer = answered.await;
    *names = None;
    match answer {
        Ok(Answer::Names(state)) => Some(state),
        _ => None,
    }
}

impl Run<'_> {
    pub(super) async fn on_names(&mut self, names: Option<State>, cell: &Cell) {
        match (names, &mut self.phase) {
            (Some(state), Phase::Running { ledger, since }) if state.base() == self.version => {
                let ledger: Ledger = std::mem::take(ledger);
                self.phase = Phase::Fetching {
                    since: *since,
                    fetched: Box::pin(receive_more(&self.context.access, state, ledger)),
                };
            }
            (_, Phase::Running { .. }) => {
                let message_id = cell.message_id.clone();
                self.session.answer(ToSession::NoNames { message_id }).await;
            }
            _ => {}
        }
    }

    pub(super) async fn on_fetched(
        &mut self,
        fetched: Result<Received, NotTransferred>,
        cell: &Cell,
    ) -> Option<Ending> {
        let Phase::Fetching { since, .. } = self.phase else {
            return None;
        };
        let Received {
            file,
            delta,
            ledger,
        } = match fetched {
            Ok(received) => received,
            Err(error) => {
                tracing::warn!(%error, "Failed to fetch names that a cell looked up");
                let error = messages::state_lost(&error);
                return Some(Ending::without_state(Outcome::WorkerLost, error));
            }
        };
        self.phase = Phase::Running { ledger, since };
        self.version = self.version.after_message();
        let names = ToSession::Names {
            message_id: cell.message_id.clone(),
            delta,
        };
        // A broken connection is noticed at the next wait for the session.
        if let Err(error) = self.session.shim.send_with_file(&names, file.as_fd()).await {
            tracing::warn!(%error, "Failed to send a session the names that it looked up");
        }
        None
    }
}
