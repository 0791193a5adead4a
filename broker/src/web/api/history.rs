//! The data from which a course's needs are estimated.

use super::{ApiError, Asked, Refusal, ask};
use crate::{
    clock::unix_ms,
    engine::Event,
    past,
    web::{Caller, Shared},
};
use axum::{Extension, Json, extract::State};
use baton_broker_queue::Identity;
use baton_broker_store::{DAY_MS, HistoryFilter};
use baton_protocol::api::History;
use serde::Deserialize;
use utoipa::IntoParams;

/// Older cells are omitted.
const MOST_CELLS: u32 = 20_000;
const USUAL_DAYS: u32 = 7;
const MOST_DAYS: u32 = 366;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HistoryQuery {
    course: Option<String>,
    /// How many days until now; 7 by default.
    #[param(minimum = 1, maximum = 366)]
    days: Option<u32>,
}

/// When recent cells were submitted, started and ended, for staff and admins
#[utoipa::path(get, path = "/v1/history", operation_id = "history", params(HistoryQuery),
    responses((status = 200, body = History, description = "The answer"), Refusal))]
pub(super) async fn history(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Asked(asked): Asked<HistoryQuery>,
) -> Result<Json<History>, ApiError> {
    let days = match asked.days.unwrap_or(USUAL_DAYS) {
        days @ 1..=MOST_DAYS => days,
        _ => {
            return Err(ApiError::Query(format!(
                "`days` must be from 1 to {MOST_DAYS}"
            )));
        }
    };
    past(&shared, &caller.identity, asked.course, days)
        .await
        .map(Json)
}

/// The past of one course, or of all courses whose estimates the caller may see.
pub(crate) async fn past(
    shared: &Shared,
    asker: &Identity,
    course: Option<String>,
    days: u32,
) -> Result<History, ApiError> {
    let courses = asker.estimates(course);
    if courses.as_ref().is_some_and(Vec::is_empty) {
        return Err(ApiError::NotStaff);
    }
    let now_ms = unix_ms();
    let since_ms = now_ms - i64::from(days) * DAY_MS;
    let filter = HistoryFilter { courses, since_ms };
    let rows = shared.store.past().jobs(&filter, MOST_CELLS).await?;
    let workers = ask(shared, Event::Overview).await?.workers;
    let open = || workers.iter().filter(|worker| worker.is_open());
    let gpus: usize = open().map(|worker| worker.devices.len().max(1)).sum();
    Ok(History {
        cells: past::cells(rows),
        now_ms,
        gpus: u32::try_from(gpus).unwrap_or(u32::MAX),
        slots: open().map(|worker| worker.slots).sum(),
    })
}
