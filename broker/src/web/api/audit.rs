//! The audit log.

use super::{ApiError, Asked, Refusal, paging};
use crate::web::{Caller, Shared};
use axum::{Extension, Json, extract::State};
use baton_broker_store::AuditRow;
use baton_protocol::api::{Act, Page};
use serde::Deserialize;
use utoipa::IntoParams;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct AuditQuery {
    course: Option<String>,
    /// How many at most; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// The `next` of the previous page.
    after: Option<String>,
}

/// Cancels, and actions by staff, in the caller's courses, newest first
#[utoipa::path(get, path = "/v1/audit", operation_id = "audit", params(AuditQuery),
    responses((status = 200, body = Page<Act>, description = "The answer"), Refusal))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Asked(asked): Asked<AuditQuery>,
) -> Result<Json<Page<Act>>, ApiError> {
    let size = paging::size(asked.limit)?;
    let before = asked.after.map(|after| after.parse()).transpose();
    let before = before.map_err(|_| paging::wrong_cursor())?;
    let rows = shared
        .store
        .audit_log()
        .entries(&caller.identity, asked.course.as_deref(), before, size + 1)
        .await?;
    let cursor = |row: &AuditRow| row.number.to_string();
    Ok(Json(paging::page(rows, size, cursor, act)))
}

fn act(row: AuditRow) -> Act {
    let entry = row.entry;
    Act {
        at_ms: entry.at_ms,
        person: entry.person,
        action: entry.action,
        course: super::named(entry.course),
        subject: entry.subject,
        detail: entry.detail,
    }
}
