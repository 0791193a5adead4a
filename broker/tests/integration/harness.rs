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
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(5);
/// A grace that does not end during a test.
pub(crate) const LONG_GRACE: Duration = Duration::from_secs(600);

/// Looks again and again until there is something, and returns it.
pub(crate) async fn wait_for<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    within(what, async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(PAUSE).await;
        }
    })
    .await
}

/// Looks again and again until the condition is true.
pub(crate) async fn wait_until(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    wait_for(what, async || is_true().await.then_some(())).await;
}

pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .unwrap_or_else(|_| panic!("{what} did not happen within {PATIENCE:?}"))
}
