//! The connection to the broker, which is opened again when it breaks.
//!
//! In: what the worker sends. Out: what the broker sends, once it has welcomed the worker. A broken connection is
//! replaced after a pause. Messages sent meanwhile are dropped; the caller learns of the new connection by its
//! `Welcome`.

use baton_protocol::worker::{FromWorker, ToWorker};
use baton_transport::{Backoff, Connection, Dial, LinkError, connect};
use futures_util::future::BoxFuture;
use std::time::Duration;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

const PATH: &str = "/v1/worker";

/// A connection that lived for this long was a good one: the next pause is short.
const GOOD: Duration = Duration::from_secs(10);

pub(crate) struct Link {
    dial: Dial,
    state: State,
    backoff: Backoff,
    /// Whether the broker has welcomed the worker on this connection.
    open: watch::Sender<bool>,
    /// Whether a failure has been logged since the last success.
    logged: bool,
}

enum State {
    Closed {
        try_at: Instant,
    },
    Opening(BoxFuture<'static, Result<BrokerConnection, LinkError>>),
    Open {
        connection: Box<BrokerConnection>,
        since: Instant,
    },
}

type BrokerConnection = Connection<ToWorker, FromWorker>;

pub(crate) enum LinkEvent {
    /// There is a new connection, and the worker must send its hello first.
    Opened,
    Message(Box<ToWorker>),
}

impl Link {
    pub(crate) fn new(dial: Dial) -> Self {
        Self {
            dial,
            state: State::Closed {
                try_at: Instant::now(),
            },
            backoff: Backoff::default(),
            open: watch::Sender::new(false),
            logged: false,
        }
    }

    /// Whether the broker has welcomed the worker on this connection.
    pub(crate) fn is_open(&self) -> bool {
        *self.open.borrow()
    }

    /// Follows [`Self::is_open`].
    pub(crate) fn watch(&self) -> watch::Receiver<bool> {
        self.open.subscribe()
    }

    /// Receives the broker's next message, across any number of connections. Fails only if trying again is useless.
    /// Cancel safe.
    pub(crate) async fn receive(&mut self) -> Result<LinkEvent, LinkError> {
        loop {
            match &mut self.state {
                State::Closed { try_at } => {
                    sleep_until(*try_at).await;
                    let dial = self.dial.clone();
                    self.state =
                        State::Opening(Box::pin(async move { connect(&dial, PATH).await }));
                }
                State::Opening(attempt) => {
                    let connection = attempt.await;
                    if self.opened(connection)? {
                        return Ok(LinkEvent::Opened);
                    }
                }
                State::Open { connection, .. } => match connection.receive().await {
                    Ok(Some(message)) => {
                        self.open
                            .send_if_modified(|open| !std::mem::replace(open, true));
                        return Ok(LinkEvent::Message(Box::new(message)));
                    }
                    Ok(None) => self.broke("it was closed"),
                    Err(error) => self.broke(&error.to_string()),
                },
            }
        }
    }

    /// The first message on a connection.
    pub(crate) async fn send_hello(&mut self, hello: &FromWorker) {
        log_lost(self.send_now(hello).await);
    }

    /// Sends a message if the broker has welcomed the worker. The caller repeats what must arrive after the next
    /// `Welcome`.
    pub(crate) async fn send(&mut self, message: &FromWorker) {
        log_lost(self.try_send(message).await);
    }

    /// Like [`Self::send`], for a message that must not be missing.
    ///
    /// # Errors
    /// [`LinkError::TooLarge`]: the broker would not accept the message, over no connection.
    pub(crate) async fn try_send(&mut self, message: &FromWorker) -> Result<(), LinkError> {
        match self.is_open() {
            true => self.send_now(message).await,
            false => Ok(()),
        }
    }

    async fn send_now(&mut self, message: &FromWorker) -> Result<(), LinkError> {
        let State::Open { connection, .. } = &mut self.state else {
            return Ok(());
        };
        match connection.send(message).await {
            Err(error) if !matches!(error, LinkError::TooLarge { .. }) => {
                self.broke(&error.to_string());
                Ok(())
            }
            result => result,
        }
    }

    pub(crate) async fn close(self) {
        if let State::Open { connection, .. } = self.state {
            connection.close().await;
        }
    }

    fn opened(&mut self, result: Result<BrokerConnection, LinkError>) -> Result<bool, LinkError> {
        match result {
            Ok(connection) => {
                self.logged = false;
                self.state = State::Open {
                    connection: Box::new(connection),
                    since: Instant::now(),
                };
                Ok(true)
            }
            Err(error @ LinkError::Unauthorized { .. }) => Err(error),
            Err(error) => {
                if !std::mem::replace(&mut self.logged, true) {
                    tracing::warn!(%error, "No connection to the broker yet; retrying");
                }
                self.pause();
                Ok(false)
            }
        }
    }

    /// The connection is replaced, so the broker gets a new hello.
    pub(crate) fn broke(&mut self, reason: &str) {
        tracing::warn!(reason, "The connection to the broker was lost");
        let was_open = self.open.send_replace(false);
        if was_open
            && let State::Open { since, .. } = &self.state
            && since.elapsed() > GOOD
        {
            self.backoff.reset();
        }
        self.pause();
    }

    fn pause(&mut self) {
        self.state = State::Closed {
            try_at: Instant::now() + self.backoff.next_delay(),
        };
    }
}

fn log_lost(result: Result<(), LinkError>) {
    if let Err(error) = result {
        tracing::error!(%error, "A message to the broker is lost");
    }
}
