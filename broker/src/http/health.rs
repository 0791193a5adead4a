//! For whatever watches the broker.

use super::Shared;
use axum::{Router, extract::State, http::StatusCode, routing::get};

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/health/live", get(|| async { "live\n" }))
        .route("/health/ready", get(ready))
        .route(
            "/version",
            get(|| async { concat!(env!("CARGO_PKG_VERSION"), "\n") }),
        )
}

/// The database answers and the loop runs.
async fn ready(State(shared): State<Shared>) -> (StatusCode, &'static str) {
    if shared.inbox.is_closed() || shared.stop.is_cancelled() {
        return (StatusCode::SERVICE_UNAVAILABLE, "the broker is ending\n");
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
