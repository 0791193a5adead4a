//! When people come together, and how long they wait then.

use super::{ApiError, Refusal, paging};
use crate::{
    http::{Caller, Shared},
    timetable,
};
use axum::{Extension, Json, extract::State};
use baton_protocol::api::{LessonOutlook, Page};

/// The next lessons of the courses whose staff the caller is, and how long their people would wait
#[utoipa::path(get, path = "/v1/timetable", operation_id = "timetable",
    responses((status = 200, body = Page<LessonOutlook>, description = "The answer"), Refusal))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Page<LessonOutlook>>, ApiError> {
    Ok(Json(paging::whole(
        timetable::outlooks(&shared, &caller).await?,
    )))
}
