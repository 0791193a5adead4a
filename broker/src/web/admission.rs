//! Admits requests: each of these functions passes a request on, or refuses it.
//!
//! In: a request. Out: the same request with a [`Caller`], or a refusal.

use super::{
    ApiError, Caller, Meter, OfBody, Shared,
    access::{bearer, not_a_person},
    guests::Guest,
    limits::limited,
    sign_in,
};
use axum::{
    Extension,
    extract::{Query, Request, State},
    http::header,
    middleware::Next,
    response::{IntoResponse, Response},
};

#[derive(serde::Deserialize)]
pub(super) struct TokenQuery {
    token: Option<String>,
}

pub(super) async fn programs_need_token(
    State(shared): State<Shared>,
    request: Request,
    next: Next,
) -> Response {
    // Browsers send the origin of a script, and Baton's programs never do. So no other site's page
    // can use this API.
    if request.headers().contains_key(header::ORIGIN) {
        return ApiError::WebPage.into_response();
    }
    let from = (request.extensions(), request.headers());
    match shared.access.program(bearer(from.1), from).await {
        Ok(caller) => pass_on(&shared, caller, request, next).await,
        Err(refused) => refused.into_response(),
    }
}

pub(super) async fn only_workers(request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>();
    if caller.is_some_and(|caller| caller.identity.may_be_worker()) {
        return next.run(request).await;
    }
    ApiError::NotAWorker.into_response()
}

pub(super) async fn no_workers(request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>();
    match caller {
        Some(caller) if caller.identity.may_be_person() => next.run(request).await,
        Some(caller) => not_a_person(&caller.identity).into_response(),
        None => ApiError::NotAPerson.into_response(),
    }
}

/// Admits admins, and programs that read metrics.
pub(super) async fn only_monitors(request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>();
    match caller {
        Some(caller) if caller.identity.may_monitor() => next.run(request).await,
        Some(caller) if !caller.identity.may_be_person() => {
            not_a_person(&caller.identity).into_response()
        }
        _ => ApiError::AdminsOnly.into_response(),
    }
}

pub(super) async fn people_need_token(
    State(shared): State<Shared>,
    Query(query): Query<TokenQuery>,
    request: Request,
    next: Next,
) -> Response {
    let access = &shared.access;
    if let Some(token) = query.token {
        return sign_in::with_address(&shared, request, token).await;
    }
    let from = (request.extensions(), request.headers());
    let admitted = match (bearer(from.1), sign_in::cookie_of(from.1)) {
        (None, Some(id)) => access.signed_in(id, from).await,
        (given, _) => match access.person(given, from).await {
            Err(ApiError::Token) => Ok(None),
            authorized => authorized.map(Some),
        },
    };
    match admitted {
        Ok(Some(caller)) => pass_on(&shared, caller, request, next).await,
        Ok(None) => sign_in::asked(&shared, &request),
        Err(error) => error.into_response(),
    }
}

/// Counts the connection and the body for the caller, if the caller is limited.
async fn pass_on(shared: &Shared, caller: Caller, request: Request, next: Next) -> Response {
    let person = limited(&caller.identity).map(str::to_owned);
    let person = person.as_deref();
    if let Some(guest) = request.extensions().get::<Guest>()
        && let Err(refused) = guest.admit(person, &shared.requests_of_person)
    {
        return refused.into_response();
    }
    let (parts, body) = request.into_parts();
    let (meter, body) = Meter::of_body(person, &shared.in_flight, body);
    let mut request = Request::from_parts(parts, body);
    request.extensions_mut().insert(caller);
    request.extensions_mut().insert(OfBody(meter.clone()));
    let response = next.run(request).await;
    drop(meter);
    response
}

pub(super) async fn limit(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    if let Err(too_often) = shared.limits.admit(&caller.identity) {
        shared.metrics.limited();
        return too_often.into_response();
    }
    next.run(request).await
}
