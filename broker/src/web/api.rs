//! The API for programs: jobs, workers, courses and usage, as JSON below `/v1`.
//!
//! In: requests with filters. Out: pages of [`baton_protocol::api`] types with what the caller may
//! see, and errors as problem documents. Routes and their documentation are one list, so they
//! always match. The routes of saved states, which notebooks also use, are in [`states`].

mod actions;
mod allowances;
mod audit;
mod courses;
mod environments;
mod history;
mod jobs;
mod paging;
mod pools;
mod public;
mod timetable;
mod usage;
mod workers;

pub(crate) use actions::act;
pub(crate) use allowances::of as allowances_of;
pub(crate) use courses::of as courses_of;
pub(crate) use history::past;
pub(crate) use timetable::outlooks as lesson_outlooks;
pub(crate) use usage::day_of;

use crate::{
    engine::Event,
    web::{ApiError, Shared, attachable, states},
};
use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, FromRequestParts, Query},
    http::request::Parts,
    routing::{any, get, post},
};
use baton_protocol::api::Problem;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use utoipa::{
    IntoResponses, Modify, OpenApi,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};
use utoipa_axum::{
    router::{OpenApiRouter, UtoipaMethodRouterExt},
    routes,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Baton",
        version = "1",
        description = "Which jobs run and wait, why, for how long, and how much each person used. People see \
                       their own jobs, staff see those of their courses, and admins see all. Names that end with \
                       _ms are milliseconds; points in time are milliseconds since 1970.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    components(schemas(Problem)),
    security(("token" = [])),
    modifiers(&Token),
)]
struct Document;

/// The documentation of every error.
#[derive(IntoResponses)]
#[response(
    status = "default",
    description = "What went wrong, and what to do",
    content_type = "application/problem+json"
)]
#[expect(dead_code, reason = "a description is never made")]
pub(crate) struct Refusal(Problem);

struct Token;

impl Modify for Token {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new()
            .scheme(HttpAuthScheme::Bearer)
            .description(Some("The token of a person, or the broker's own"))
            .build();
        let components = document.components.get_or_insert_default();
        components.add_security_scheme("token", SecurityScheme::Http(scheme));
    }
}

pub(crate) fn routes() -> Router<Shared> {
    let mut document = Document::openapi();
    document.merge(states::Description::openapi());
    document.merge(attachable::Description::openapi());
    document.merge(pools::ForPrograms::openapi());
    let (router, document) = OpenApiRouter::with_openapi(document)
        .routes(routes!(jobs::list))
        .routes(routes!(jobs::one))
        .routes(routes!(jobs::explanation))
        .routes(routes!(workers::list))
        .routes(routes!(pools::list))
        .routes(routes!(pools::resume))
        .routes(routes!(pools::test))
        .routes(routes!(courses::list))
        .routes(routes!(environments::list))
        .routes(routes!(environments::lock))
        .routes(routes!(timetable::list))
        .routes(routes!(usage::list))
        .routes(routes!(history::history))
        .routes(routes!(audit::list))
        .routes(routes!(actions::cancel))
        .routes(routes!(actions::hold))
        .routes(routes!(actions::release))
        .routes(routes!(actions::move_to_front))
        .routes(routes!(actions::drain))
        .routes(routes!(actions::resume))
        .routes(routes!(actions::change_course))
        .routes(routes!(allowances::list, allowances::grant))
        .routes(routes!(allowances::revoke))
        .routes(routes!(public::list))
        .routes(routes!(public::publish).layer(DefaultBodyLimit::max(public::LARGEST_BODY)))
        .routes(routes!(public::withdraw))
        .split_for_parts();
    router
        .route("/v1/openapi.json", get(async || Json(document)))
        .method_not_allowed_fallback(async || ApiError::Method)
        .route("/v1/{*path}", any(async || ApiError::UnknownPath))
}

/// Routes for admins and for programs with the monitors' token.
pub(crate) fn for_monitors() -> Router<Shared> {
    Router::new().route("/v1/scale/{pool}", get(pools::scale))
}

/// Routes for workers that do not have their own token yet.
pub(crate) fn for_joining_workers() -> Router<Shared> {
    Router::new().route("/v1/pools/{pool}/workers", post(pools::join))
}

/// The query of a request. An unknown filter is an error: if it were ignored, it would match everything.
struct Asked<T>(T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(asked)) => Ok(Self(asked)),
            Err(rejection) => Err(ApiError::Query(rejection.body_text())),
        }
    }
}

/// Sends a request to the loop and waits for the reply.
pub(crate) async fn ask<Answer>(
    shared: &Shared,
    question: impl FnOnce(oneshot::Sender<Answer>) -> Event,
) -> Result<Answer, ApiError> {
    let (sender, answer) = oneshot::channel();
    let asked = shared.inbox.send(question(sender)).await;
    asked.map_err(|_| ApiError::Ending)?;
    answer.await.map_err(|_| ApiError::Ending)
}

/// An empty name means no course.
fn named(course: String) -> Option<String> {
    (!course.is_empty()).then_some(course)
}
