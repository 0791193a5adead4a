//! Who may ask.
//!
//! Programs carry a token as `Authorization: Bearer`. People open `/?token=…` once, which turns into a cookie that
//! scripts cannot read. The broker's own token opens everything; the tokens of people open what their roles allow.
//! Behind a Unix socket pages are open without one, because only this user can connect.
//!
//! In: a request. Out: the same request with a [`Caller`] in it, or a refusal.

use crate::{
    api::ApiError,
    people::{Identity, People},
    watched::Watched,
};
use axum::{
    extract::{Query, Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::sync::Arc;

const COOKIE: &str = "baton_token";

/// Not `Debug`: it holds the token.
pub(crate) struct Access {
    pub(crate) token: Option<String>,
    pub(crate) people: Option<Arc<Watched<People>>>,
    /// Whoever can connect is the user who runs the broker.
    pub(crate) only_this_user: bool,
}

/// Who sent a request, and by which token. Not `Debug`: it holds the token.
#[derive(Clone)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    token: Option<String>,
    /// Nobody else has a token.
    alone: bool,
}

impl Caller {
    /// What a form carries, so that no foreign page can send it: whoever can read the page has the cookie.
    pub(crate) fn form_key(&self) -> String {
        let token = self.token.as_deref().unwrap_or_default();
        baton_blobs::hash(format!("baton form {token}").as_bytes()).to_string()
    }

    /// Whose job this is. Without tokens of their own all are one.
    pub(crate) fn is_owner(&self, owner: &str) -> bool {
        self.identity
            .person()
            .map_or(self.alone, |person| person == owner)
    }

    pub(crate) fn is_form_key(&self, given: &str) -> bool {
        is_same(given, &self.form_key())
    }
}

#[derive(serde::Deserialize)]
pub(super) struct TokenQuery {
    token: Option<String>,
}

impl Access {
    /// Where nobody has a token, there is nothing to check.
    fn admit(&self, given: Option<&str>, open: bool) -> Option<Caller> {
        match given {
            _ if self.token.is_none() && self.people.is_none() => Some(self.caller_without_token()),
            Some(token) => self.caller(token),
            None => open.then(|| self.caller_without_token()),
        }
    }

    fn caller_without_token(&self) -> Caller {
        Caller {
            identity: Identity::operator(),
            token: None,
            alone: self.people.is_none(),
        }
    }

    fn caller(&self, token: &str) -> Option<Caller> {
        let own = self.token.as_ref().is_some_and(|own| is_same(token, own));
        let identity = match &self.people {
            _ if own => Identity::operator(),
            Some(people) => people.newest().of_token(token)?,
            None => return None,
        };
        let token = Some(token.to_owned());
        Some(Caller {
            identity,
            token,
            alone: self.people.is_none(),
        })
    }

    /// Ends when the caller's token means something else than at the time of the request.
    pub(crate) async fn until_changed(&self, caller: &Caller) {
        let (Some(token), Some(people)) = (&caller.token, &self.people) else {
            return std::future::pending().await;
        };
        let mut changes = people.subscribe();
        while self
            .caller(token)
            .is_some_and(|now| now.identity == caller.identity)
        {
            // The file is watched as long as there are requests.
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}

pub(super) async fn programs_need_token(
    State(access): State<Arc<Access>>,
    request: Request,
    next: Next,
) -> Response {
    // A browser says where a script came from; no program of ours does. So no foreign page speaks to the broker.
    if request.headers().contains_key(header::ORIGIN) {
        return ApiError::WebPage.into_response();
    }
    let open = access.only_this_user && access.token.is_none();
    let caller = access.admit(bearer(request.headers()), open);
    match caller {
        Some(caller) => pass_on(caller, request, next).await,
        None => ApiError::Token.into_response(),
    }
}

pub(super) async fn workers_need_the_own_token(request: Request, next: Next) -> Response {
    let caller = request.extensions().get::<Caller>();
    if caller.is_some_and(|caller| caller.identity.may_be_worker()) {
        return next.run(request).await;
    }
    ApiError::NotAWorker.into_response()
}

pub(super) async fn people_need_token(
    State(access): State<Arc<Access>>,
    query: Query<TokenQuery>,
    request: Request,
    next: Next,
) -> Response {
    let headers = request.headers();
    let given = bearer(headers).or_else(|| cookie(headers));
    let open = access.only_this_user && query.token.is_none();
    if let Some(caller) = access.admit(given, open) {
        return pass_on(caller, request, next).await;
    }
    if let Some(token) = query.0.token.filter(|token| access.caller(token).is_some()) {
        // The token leaves the address bar and the history.
        // Without a path it is for the folder of this page, so that a prefix of another program never sees it.
        let cookie = format!("{COOKIE}={token}; HttpOnly; SameSite=Strict");
        let home = [
            (header::SET_COOKIE, cookie),
            (header::LOCATION, "./".to_owned()),
        ];
        return (StatusCode::SEE_OTHER, home).into_response();
    }
    let text = "This page needs a token: open it as /?token=TOKEN. The file that holds the broker's own token stands in the broker's settings";
    (StatusCode::UNAUTHORIZED, text).into_response()
}

async fn pass_on(caller: Caller, mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(caller);
    next.run(request).await
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
