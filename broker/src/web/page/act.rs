//! The forms of pages. They send the same commands as the API below `/v1`.
//!
//! Each form contains a key that only pages for the same caller have, and browsers report which
//! site sent a request. So no other site's page can act with a person's cookie.

use super::{
    allowances, courses, facts,
    form::{Fields, Refused},
    job,
    layout::Page,
    workers,
};
use crate::{
    web::{self, ApiError, Caller, Shared, api::act},
    words,
};
use axum::{
    Extension, Form,
    extract::{State, rejection::FormRejection},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use baton_broker_queue::{Command, NotDone, courses::Wrong};
use baton_protocol::{JobId, api::Problem};
use maud::html;

pub(super) async fn post(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    form: Result<Form<Fields>, FormRejection>,
) -> Result<Response, ApiError> {
    let fields = own_fields(&headers, &caller, form)?;
    match carry_out(&shared, &caller, &fields).await {
        // Redirect to a page, so that going back or reloading does not send the form again.
        Ok(then) => Ok((StatusCode::SEE_OTHER, [(header::LOCATION, then)]).into_response()),
        Err(error) => match Refused::of(&error, fields) {
            Some(refused) => show_again(&shared, &caller, &refused, error.status()).await,
            None => Err(error),
        },
    }
}

/// The page of the form, with the entered values and what is wrong with them.
async fn show_again(
    shared: &Shared,
    caller: &Caller,
    refused: &Refused,
    status: StatusCode,
) -> Result<Response, ApiError> {
    let page = match refused.field("action") {
        "drain" | "resume" => {
            let facts = facts::look(shared, caller).await?;
            workers::page(&facts, caller, Some(refused))
        }
        "change_course" | "grant" | "revoke" => {
            let name = refused.field("course");
            courses::page_of(shared, caller, name, Some(refused)).await?
        }
        _ => {
            let unknown = || ApiError::UnknownJob {
                job: refused.field("job").to_owned(),
            };
            let id = refused.field("job").parse().map_err(|_| unknown())?;
            let job = job::look(shared, caller, id).await?.ok_or_else(unknown)?;
            job::page(&job, caller, Some(refused))
        }
    };
    Ok(page.answer(status, caller))
}

pub(super) async fn sign_out(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    form: Result<Form<Fields>, FormRejection>,
) -> Result<Response, ApiError> {
    own_fields(&headers, &caller, form)?;
    web::sign_out(&shared, &caller, &headers).await
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
    web::is_from_here(headers) && fields.get("key").is_some_and(|key| caller.is_form_key(key))
}

/// Returns the address of the page to show next.
async fn carry_out(shared: &Shared, caller: &Caller, fields: &Fields) -> Result<String, ApiError> {
    let command = command(shared, caller, fields).await?;
    let then = page_after(&command);
    match act(shared, caller, command).await {
        Err(ApiError::NotDone(NotDone::UnknownJob(job))) => {
            // The loop has forgotten finished jobs, but the page still shows them.
            let known = shared.store.jobs().detail(&caller.identity, job).await?;
            Err(known
                .map_or(NotDone::UnknownJob(job), |_| NotDone::Over)
                .into())
        }
        done => done.map(|_| then),
    }
}

/// What a form asks for.
async fn command(shared: &Shared, caller: &Caller, fields: &Fields) -> Result<Command, ApiError> {
    let field = |name: &str| fields.get(name).cloned().unwrap_or_default();
    let (worker, course) = (field("worker"), field("course"));
    let reason = field("reason").trim().to_owned();
    let job = || {
        let job = field("job");
        job.parse::<JobId>()
            .map_err(|_| ApiError::UnknownJob { job })
    };
    Ok(match field("action").as_str() {
        "cancel" => Command::Cancel {
            job: job()?,
            reason: Some(reason).filter(|reason| !reason.is_empty()),
        },
        "hold" => Command::Hold {
            job: job()?,
            reason,
        },
        "release" => Command::Release { job: job()? },
        "move_to_front" => Command::MoveToFront {
            job: job()?,
            reason,
        },
        "drain" => Command::Drain { worker, reason },
        "resume" => Command::Resume { worker },
        "change_course" => Command::ChangeCourse {
            change: courses::change(shared, caller, &course, fields).await?,
            course,
        },
        "grant" | "revoke" => allowances::command(shared, course, fields)?,
        other => {
            let says = format!("{other:?} is unknown");
            return Err(NotDone::from(Wrong::new("action", says)).into());
        }
    })
}

/// The address of the page with the command's form, and the form's position, so that the page does not scroll.
fn page_after(command: &Command) -> String {
    let of_course =
        |course: &str| format!("course?{}", words::query(&[("name", course.to_owned())]));
    match command {
        Command::Cancel { job, .. }
        | Command::Hold { job, .. }
        | Command::Release { job }
        | Command::MoveToFront { job, .. } => format!("job?id={job}#act"),
        Command::Drain { worker, .. } | Command::Resume { worker } => {
            format!("workers#act-{}", words::coded(worker))
        }
        Command::ChangeCourse { course, .. } => of_course(course) + "#settings",
        Command::Grant { course, .. } | Command::Revoke { course, .. } => {
            of_course(course) + "#allowances"
        }
    }
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
                p { a href="./" { "Back to the first page" } }
            }
        },
    };
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_REQUEST);
    page.answer(status, caller)
}
