//! Waiting for a time that may not be set.

use tokio::time::{Instant, sleep_until};

/// Completes at this time; without one, never. Cancel safe.
pub(crate) async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}
