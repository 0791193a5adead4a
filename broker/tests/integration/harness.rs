//! Helpers for the tests. Every wait has a deadline.

mod broker;
mod peers;

pub(crate) use broker::{
    Broker, KilledBroker, MONITOR_TOKEN, POOL_TOKEN, Rules, not_being_written,
    serve_in_this_process, write_private,
};
pub(crate) use peers::{
    FakeProxy, FakeWorker, finished, output, outputs, started, state, submission,
};

use std::time::Duration;

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// A grace that does not end during a test.
pub(crate) const LONG_GRACE: Duration = Duration::from_secs(600);

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("{what} did not happen within {PATIENCE:?}"))
}
