//! Who may ask.
//!
//! Programs carry the token as `Authorization: Bearer`. People open `/?token=…` once, which turns into a cookie that
//! scripts cannot read. Behind a Unix socket pages are open, because only this user can connect.

use axum::{
    extract::{Query, Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Redirect, Response},
};
use std::sync::Arc;

const COOKIE: &str = "baton_token";

/// Not `Debug`: it holds the token.
pub(crate) struct Access {
    pub(crate) token: Option<String>,
    pub(crate) pages_are_open: bool,
}

#[derive(serde::Deserialize)]
pub(super) struct TokenQuery {
    token: Option<String>,
}

pub(super) async fn programs_need_token(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    // A browser says where a script came from; no program of ours does. So no foreign page speaks to the broker.
    if request.headers().contains_key(header::ORIGIN) {
        let text = "This address is for programs, not for web pages";
        return (StatusCode::FORBIDDEN, text).into_response();
    }
    match &access.token {
        Some(token) if !bearer(request.headers()).is_some_and(|given| is_same(given, token)) => {
            let text = "The broker's token is missing or wrong";
            let how = [(header::WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, how, text).into_response()
        }
        _ => next.run(request).await,
    }
}

pub(super) async fn people_need_token(
    State(access): State<Arc<Access>>,
    query: Query<TokenQuery>,
    request: Request,
    next: Next,
) -> Response {
    let Some(token) = access.token.as_ref().filter(|_| !access.pages_are_open) else {
        return next.run(request).await;
    };
    let headers = request.headers();
    if [bearer(headers), cookie(headers)]
        .into_iter()
        .flatten()
        .any(|given| is_same(given, token))
    {
        return next.run(request).await;
    }
    if query
        .token
        .as_ref()
        .is_some_and(|given| is_same(given, token))
    {
        // The token leaves the address bar and the history.
        let cookie = format!("{COOKIE}={token}; HttpOnly; SameSite=Strict; Path=/");
        return ([(header::SET_COOKIE, cookie)], Redirect::to("/")).into_response();
    }
    let text = "This page needs the broker's token: open it as /?token=TOKEN. The file that holds the token stands in the broker's settings";
    (StatusCode::UNAUTHORIZED, text).into_response()
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .strip_prefix("Bearer ")
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    headers
        .get_all(header::COOKIE)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == COOKIE)
        .map(|(_, value)| value)
}

/// Takes as long for a wrong first letter as for a wrong last one.
fn is_same(given: &str, token: &str) -> bool {
    let difference = given
        .bytes()
        .zip(token.bytes())
        .fold(0, |difference, (one, other)| difference | (one ^ other));
    given.len() == token.len() && std::hint::black_box(difference) == 0
}
