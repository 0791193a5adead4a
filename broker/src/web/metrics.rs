//! `/metrics`, for Prometheus.

use super::{ApiError, Shared, api::ask};
use crate::engine::Event;
use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use baton_broker_queue::Identity;
use prometheus_client::encoding::prometheus_text::CONTENT_TYPE;

/// For admins, the broker's own token and monitors, because courses are named here.
pub(super) async fn show(State(shared): State<Shared>) -> Result<Response, ApiError> {
    let present = ask(&shared, Event::Overview).await?;
    // A monitor is in no course.
    let courses = ask(&shared, |answer| {
        Event::Courses(Identity::operator(), answer)
    });
    let courses = courses.await?;
    let text = shared.metrics.text(&present, &courses, &shared.pools.all());
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response())
}
