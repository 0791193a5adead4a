//! What forms on pages do. The same commands as below `/v1`.
//!
//! A form carries a key that only a page of the same caller can know, and browsers say when a request comes from
//! elsewhere; so no foreign page acts with a person's cookie.

use super::{courses, layout::Page};
use crate::{
    api::{ApiError, act},
    dispatch::{Command, NotDone},
    http::{self, Caller, Shared},
    words,
};
use axum::{
    Extension, Form,
    extract::{State, rejection::FormRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use baton_protocol::{JobId, api::Problem};
use maud::html;
use std::collections::HashMap;

type Fields = HashMap<String, String>;

pub(super) async fn post(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    form: Result<Form<Fields>, FormRejection>,
) -> Result<Response, ApiError> {
    let fields = own_fields(&headers, &caller, form)?;
    let then = carry_out(&shared, &caller, &fields).await?;
    // The answer to a form is another page, so that going back sends nothing again.
    Ok((StatusCode::SEE_OTHER, [(header::LOCATION, then)]).into_response())
}

pub(super) async fn sign_out(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    form: Result<Form<Fields>, FormRejection>,
) -> Result<Response, ApiError> {
    own_fields(&headers, &caller, form)?;
    http::sign_out(&shared, &caller, &headers).await
}

fn own_fields(
    headers: &HeaderMap,
    caller: &Caller,
    form: Result<Form<Fields>, FormRejection>,
) -> Result<Fields, ApiError> {
    let wrong =
        |rejection: FormRejection| ApiError::of_body(rejection.status(), rejection.body_text());
    let Form(fields) = form.map_err(wrong)?;
    match is_own(headers, caller, &fields) {
        true => Ok(fields),
        false => Err(ApiError::Form),
    }
}

fn is_own(headers: &HeaderMap, caller: &Caller, fields: &Fields) -> bool {
    http::is_from_here(headers) && fields.get("key").is_some_and(|key| caller.is_form_key(key))
}

/// Returns where the browser goes from there.
async fn carry_out(shared: &Shared, caller: &Caller, fields: &Fields) -> Result<String, ApiError> {
    let field = |name: &str| fields.get(name).cloned().unwrap_or_default();
    let reason = field("reason").trim().to_owned();
    let job = || {
        let job = field("job");
        job.parse::<JobId>()
            .map_err(|_| ApiError::UnknownJob { job })
    };
    let worker = field("worker");
    let course = field("course");
    let to_job = |job: JobId| format!("job?id={job}");
    let to_workers = || "workers".to_owned();
    let (command, then) = match field("action").as_str() {
        "cancel" => {
            let job = job()?;
            let reason = Some(reason).filter(|reason| !reason.is_empty());
            (Command::Cancel { job, reason }, to_job(job))
        }
        "hold" => {
            let job = job()?;
            (Command::Hold { job, reason }, to_job(job))
        }
        "release" => {
            let job = job()?;
            (Command::Release { job }, to_job(job))
        }
        "move_to_front" => {
            let job = job()?;
            (Command::MoveToFront { job, reason }, to_job(job))
        }
        "drain" => (Command::Drain { worker, reason }, to_workers()),
        "resume" => (Command::Resume { worker }, to_workers()),
        "change_course" => {
            let change = courses::change(shared, caller, &course, fields).await?;
            let then = format!("course?{}", words::query(&[("name", course.clone())]));
            (Command::ChangeCourse { course, change }, then)
        }
        other => return Err(NotDone::Wrong(format!("There is no action {other:?}")).into()),
    };
    act(shared, caller, command).await?;
    Ok(then)
}

pub(super) fn refused(problem: &Problem, caller: &Caller) -> Response {
    let page = Page {
        here: "",
        title: "Not done".to_owned(),
        live: None,
        main: html! {
            section."card problem" {
                h1 { "Not done" }
                p { (problem.detail) "." }
                @if let Some(hint) = &problem.hint { p.quiet { (words::capital(hint)) "." } }
                p { a href="./" { "Back to what runs now" } }
            }
        },
    };
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_REQUEST);
    page.answer(status, caller)
}
