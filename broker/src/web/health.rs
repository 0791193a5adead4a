//! Health checks for monitoring.

use super::Shared;
use crate::engine::Leadership;
use axum::{Router, extract::State, http::StatusCode, routing::get};
use std::time::Duration;
use tokio::time::timeout;

/// How long loading the jobs at the start may take before the health check fails.
const PATIENCE: Duration = Duration::from_secs(1);

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/health/live", get(|| async { "live\n" }))
        .route("/health/ready", get(ready))
        .route(
            "/version",
            get(|| async { concat!(env!("CARGO_PKG_VERSION"), "\n") }),
        )
}

/// Ready if the database answers and the loop runs.
async fn ready(State(mut shared): State<Shared>) -> (StatusCode, &'static str) {
    if shared.inbox.is_closed() || shared.stop.is_cancelled() {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "the broker is shutting down\n",
        );
    }
    let is_leader = shared
        .leadership
        .wait_for(|leadership| *leadership == Leadership::Leader);
    if timeout(PATIENCE, is_leader).await.is_err() {
        let text = "the database does not answer, or another broker is using it\n";
        return (StatusCode::SERVICE_UNAVAILABLE, text);
    }
    match shared.store.answers().await {
        Ok(()) => (StatusCode::OK, "ready\n"),
        Err(error) => {
            tracing::error!("The database does not answer: {error}");
            let text = "the database does not answer\n";
            (StatusCode::SERVICE_UNAVAILABLE, text)
        }
    }
}
