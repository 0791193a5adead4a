//! Checks what the broker accepts from a notebook: only chunks of its own person, within the quota,
//! and at a limited rate.
//!
//! In: a message of a proxy. Out: the event for the loop, which also says if something is wrong
//! with the message.

use crate::{chunk_store::ChunkStore, engine::Event, pace::Verdict, quota::Quotas};
use baton_broker_queue::{Account, ConnectionId, Unwelcome, measured};
use baton_broker_store::{Store, StoreError};
use baton_protocol::{Answer, CHUNK_BYTES, ChunkHash, State, encode, proxy::FromProxy};
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

#[derive(Clone)]
pub(crate) struct Screen {
    account: Arc<Account>,
    store: Store,
    chunks: ChunkStore,
    quotas: Arc<Quotas>,
}

impl Screen {
    pub(crate) fn new(
        account: Account,
        store: Store,
        chunks: ChunkStore,
        quotas: Arc<Quotas>,
    ) -> Self {
        Self {
            account: Arc::new(account),
            store,
            chunks,
            quotas,
        }
    }

    /// Returns `None` to end the connection: the notebook sends too much, or the database does not answer.
    pub(crate) async fn event(
        self,
        connection: ConnectionId,
        message: FromProxy,
        verdict: Verdict,
    ) -> Option<Event> {
        match verdict {
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
        match self.check(&message).await {
            Ok(None) => Some(Event::FromProxy(connection, message)),
            Ok(Some(why)) => Some(Event::Unwelcome(connection, message, why)),
            Err(error) => {
                tracing::error!("Disconnected a notebook: {error}");
                None
            }
        }
    }

    async fn check(&self, message: &FromProxy) -> Result<Option<Unwelcome>, StoreError> {
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
        let new_bytes = (stored_bytes + encode(state).len()) as u64;
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
