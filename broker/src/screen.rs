//! Checks what the broker accepts from a notebook: messages that a worker can receive, only chunks
//! of its own person, within the quota, and at a limited rate.
//!
//! In: a message of a proxy. Out: the event for the loop, which also says if something is wrong
//! with the message.

use crate::{
    chunk_store::ChunkStore,
    engine::Event,
    in_flight::Booking,
    pace::{Pace, Verdict},
    quota::Quotas,
    submissions::Submissions,
};
use baton_broker_queue::{Account, ConnectionId, Unwelcome, fits, measured};
use baton_broker_store::{Store, StoreError};
use baton_protocol::{Answer, CHUNK_BYTES, ChunkHash, State, encoded_bytes, proxy::FromProxy};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

#[derive(Clone)]
pub(crate) struct Screen {
    pub(crate) account: Arc<Account>,
    pub(crate) store: Store,
    pub(crate) chunks: ChunkStore,
    pub(crate) quotas: Arc<Quotas>,
    pub(crate) submissions: Arc<Submissions>,
    pub(crate) pace: Pace,
    /// The person whose cells are counted; `None` for no limit.
    pub(crate) counted: Option<Arc<str>>,
}

impl Screen {
    /// Returns `None` to end the connection: the notebook sends too much, or the database does not answer.
    pub(crate) async fn event(
        self,
        connection: ConnectionId,
        message: FromProxy,
        booking: Booking,
    ) -> Option<Event> {
        match self.pace.count(Instant::now()) {
            Verdict::Wait(Duration::ZERO) => {}
            Verdict::Wait(wait) => sleep(wait).await,
            Verdict::TooMuch => {
                tracing::warn!(
                    "Disconnected a notebook of {}: it sends too many messages",
                    self.account.owner
                );
                return None;
            }
        }
        if let (FromProxy::Submit(_), Some(person)) = (&message, &self.counted) {
            sleep(self.submissions.wait(person, Instant::now())).await;
        }
        match self.check(&message).await {
            Ok(None) => Some(Event::FromProxy(connection, message, booking)),
            Ok(Some(why)) => Some(Event::Unwelcome(connection, message, why, booking)),
            Err(error) => {
                tracing::error!("Disconnected a notebook: {error}");
                None
            }
        }
    }

    async fn check(&self, message: &FromProxy) -> Result<Option<Unwelcome>, StoreError> {
        if let Err(why) = fits(message) {
            return Ok(Some(why));
        }
        let (stored_bytes, state) = match message {
            FromProxy::Submit(submission) => match measured(submission) {
                Ok(bytes) => (bytes, &submission.state),
                Err(why) => return Ok(Some(why)),
            },
            FromProxy::Answer {
                answer: Answer::State(state) | Answer::Names(state),
                ..
            } => (0, state),
            _ => return Ok(None),
        };
        if !self.holds_all(state).await? {
            return Ok(Some(Unwelcome::Foreign));
        }
        let new_bytes = (stored_bytes + encoded_bytes(state)) as u64;
        let exceeded = self.quotas.take(&self.account.owner, new_bytes).await?;
        Ok(exceeded.map(|quota| Unwelcome::Quota {
            would_be_bytes: quota.held_bytes + new_bytes,
            limit_bytes: quota.limit_bytes,
        }))
    }

    /// Whether the account holds each chunk of the state, with the size that the state names.
    async fn holds_all(&self, state: &State) -> Result<bool, StoreError> {
        let named: Vec<(ChunkHash, u64)> = state.sized_chunks().collect();
        if named.is_empty() {
            return Ok(true);
        }
        let hashes: Vec<ChunkHash> = named.iter().map(|(hash, _)| *hash).collect();
        let held = self
            .chunks
            .held(&self.store, &self.account, &hashes)
            .await?;
        let is_held = |(hash, bytes): &(ChunkHash, u64)| {
            *bytes <= CHUNK_BYTES as u64 && held.get(hash) == Some(bytes)
        };
        Ok(named.iter().all(is_held))
    }
}
