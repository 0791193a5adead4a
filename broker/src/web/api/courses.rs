//! What courses may use.

use super::{ApiError, Refusal, ask, paging};
use crate::{
    engine::Event,
    web::{Caller, Shared},
};
use axum::{Extension, Json, extract::State};
use baton_protocol::api::{Course, Page};

/// The caller's courses, by name; all courses for admins
#[utoipa::path(get, path = "/v1/courses", operation_id = "courses",
    responses((status = 200, body = Page<Course>, description = "The answer"), Refusal))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Page<Course>>, ApiError> {
    Ok(Json(paging::whole(of(&shared, &caller).await?)))
}

pub(crate) async fn of(shared: &Shared, caller: &Caller) -> Result<Vec<Course>, ApiError> {
    let who = caller.identity.clone();
    ask(shared, |answer| Event::Courses(who, answer)).await
}
