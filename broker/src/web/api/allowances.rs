//! GPU time that staff grant beyond the budget of their course.

use super::{ApiError, Refusal, act, actions::Body, ask, paging};
use crate::{
    engine::Event,
    web::{Caller, Shared},
};
use axum::{
    Extension, Json,
    extract::{Path, State},
};
use baton_broker_queue::Command;
use baton_protocol::api::{Allowance, NewAllowance, Page, Revocation};

/// GPU time that staff of a course granted, by person
///
/// Students see what they and everyone in the course got.
#[utoipa::path(get, path = "/v1/courses/{course}/allowances", operation_id = "allowances", params(("course" = String, Path)),
    responses((status = 200, body = Page<Allowance>, description = "The answer"), Refusal))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(course): Path<String>,
) -> Result<Json<Page<Allowance>>, ApiError> {
    let allowances = of(&shared, &caller, course).await?;
    Ok(Json(paging::whole(allowances)))
}

/// Grant GPU time beyond the budget, to one person or to everyone in a course
///
/// For its staff, up to most_allowance of the courses file. It replaces an earlier allowance of the same person.
#[utoipa::path(post, path = "/v1/courses/{course}/allowances", operation_id = "grant", params(("course" = String, Path)),
    request_body = NewAllowance, responses((status = 200, body = Page<Allowance>, description = "All allowances of the course"), Refusal))]
pub(super) async fn grant(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(course): Path<String>,
    Body(new): Body<NewAllowance>,
) -> Result<Json<Page<Allowance>>, ApiError> {
    let command = Command::Grant {
        course: course.clone(),
        person: new.person,
        gpu_time_ms: new.gpu_time_ms,
        until_ms: new.until_ms,
    };
    act(&shared, &caller, command).await?;
    list(State(shared), Extension(caller), Path(course)).await
}

/// Revoke an allowance
///
/// For staff of the course. Running cells continue.
#[utoipa::path(post, path = "/v1/courses/{course}/allowances/revoke", operation_id = "revoke", params(("course" = String, Path)),
    request_body = Revocation, responses((status = 200, body = Page<Allowance>, description = "The remaining allowances"), Refusal))]
pub(super) async fn revoke(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(course): Path<String>,
    Body(revocation): Body<Revocation>,
) -> Result<Json<Page<Allowance>>, ApiError> {
    let command = Command::Revoke {
        course: course.clone(),
        person: revocation.person,
    };
    act(&shared, &caller, command).await?;
    list(State(shared), Extension(caller), Path(course)).await
}

pub(crate) async fn of(
    shared: &Shared,
    caller: &Caller,
    course: String,
) -> Result<Vec<Allowance>, ApiError> {
    let who = caller.identity.clone();
    let allowances = ask(shared, |answer| Event::Allowances(who, course, answer)).await?;
    Ok(allowances?)
}
