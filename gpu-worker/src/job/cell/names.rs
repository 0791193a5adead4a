//! Names of the notebook that the cell looks up and was not given: asked for, received, and sent to the session.
//!
//! Meanwhile the cell waits, or one of its threads. Everything else that can happen to a running cell can still
//! happen.

use std::os::fd::AsFd;

use baton_chunks::Ledger;
use baton_protocol::shim::ToSession;
use baton_protocol::{Cell, JobEvent, Outcome};

use super::{Phase, Run};
use crate::job::{Ending, Names, Order};
use crate::messages;
use crate::transfer::Assembled;
use crate::transfer::TransferError;
use crate::transfer::receive_more;

impl Run<'_> {
    pub(super) fn ask_for(&mut self, names: Vec<String>, order: &Order) {
        self.questions += 1;
        let number = self.questions;
        self.asks = true;
        self.ask(JobEvent::NamesWanted { number, names }, order);
    }

    /// A reconnect can repeat an answer. Only the answer to the last question counts, and only once.
    pub(super) fn on_names(&mut self, names: Option<Names>) {
        let Some(Names { number, state }) = names else {
            return;
        };
        if !self.asks || number != self.questions || state.base() != self.version {
            return;
        }
        self.asks = false;
        if let Phase::Running { ledger, since } = &mut self.phase {
            let ledger: Ledger = std::mem::take(ledger);
            self.phase = Phase::Fetching {
                since: *since,
                fetched: Box::pin(receive_more(&self.context.access, state, ledger)),
            };
        }
    }

    /// The notebook kernel has ended, so no answer can arrive.
    pub(super) async fn no_names(&mut self, cell: &Cell) {
        self.asks = false;
        let message_id = cell.message_id.clone();
        self.session.answer(ToSession::NoNames { message_id }).await;
    }

    pub(super) async fn on_fetched(
        &mut self,
        fetched: Result<Assembled, TransferError>,
        cell: &Cell,
    ) -> Option<Ending> {
        let Phase::Fetching { since, .. } = self.phase else {
            return None;
        };
        let Assembled {
            file,
            delta,
            ledger,
        } = match fetched {
            Ok(assembled) => assembled,
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
