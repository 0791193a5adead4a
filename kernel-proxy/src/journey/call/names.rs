//! Names that a running cell looks up: what it lacks of them goes to it while it waits.
//!
//! Sending goes on beside everything else that may happen to a job, so an interrupt is passed on at once and the state
//! that the cell has made comes home, names included.
//!
//! **Invariant:** the notebook's table has gone on once its shim has answered, so what it said arrives or the call fails.

use std::pin::Pin;

use baton_protocol::StateVersion;
use baton_protocol::proxy::FromProxy;
use baton_protocol::shim::Snapshot;
use tokio_util::sync::CancellationToken;

use super::Journey;
use super::current::{Call, Stop};
use super::state::Home;
use crate::journey::failure::Failure;
use crate::journey::moving::{MovingError, Outgoing, Sent};

/// Reading the kernel's memory stops when this is dropped.
type Sending = Pin<Box<dyn Future<Output = (StateVersion, Result<Sent, MovingError>)> + Send>>;

impl Journey {
    pub(super) fn begin_names(
        &mut self,
        call: &Call<'_>,
        snapshot: Snapshot,
    ) -> Result<Sending, Stop> {
        let continues = |home: &Home| home.version.messages == snapshot.messages;
        let Some(Home { version, ledger }) = self.home.take().filter(continues) else {
            return Err(Failure::out_of_step(call.job).into());
        };
        let outgoing = Outgoing {
            base: version,
            snapshot,
            ledger,
        };
        let (moving, lanes, cancel) = (
            self.moving.clone(),
            self.link.lanes(),
            CancellationToken::new(),
        );
        Ok(Box::pin(async move {
            let _stop_when_dropped = cancel.clone().drop_guard();
            let sent = moving.send(outgoing, &lanes.await, &cancel).await;
            (version, sent)
        }))
    }

    pub(super) async fn send_names(
        &mut self,
        call: &mut Call<'_>,
        (base, sent): (StateVersion, Result<Sent, MovingError>),
    ) -> Result<(), Stop> {
        let sent = sent.map_err(|error| Failure::moving(&error, call.job))?;
        self.home = Some(Home {
            version: base.after_message(),
            ledger: sent.ledger,
        });
        call.names_held = sent.held;
        let (job, number) = (call.job, call.question.unwrap_or_default());
        let names = FromProxy::Names {
            job,
            number,
            state: sent.state,
        };
        self.link.answer(job, names).await;
        call.release().await
    }
}

/// What was sent, if anything is being sent.
pub(super) async fn sent(names: &mut Option<Sending>) -> (StateVersion, Result<Sent, MovingError>) {
    match names {
        Some(sending) => sending.await,
        None => std::future::pending().await,
    }
}
