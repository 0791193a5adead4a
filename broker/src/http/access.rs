//! Who may ask.
//!
//! Programs carry a token as `Authorization: Bearer`. People open `/?token=…` once, or sign in with the JupyterHub
//! ([`sign_in`]); either turns into a cookie that scripts cannot read. The broker's own token opens everything; the
//! tokens of people and of the Hub open what their roles allow, and those of workers what a worker needs.
//! Behind a Unix socket pages are open without one, because only this user can connect.
//!
//! In: a request. Out: the same request with a [`Caller`] in it, or a refusal.

use super::{Shared, guests::Guest, sign_in};
use crate::{
    api::ApiError,
    hub::{Hub, HubError},
    people::{Identity, People},
    watched::Watched,
};
use axum::{
    extract::{Query, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use std::sync::Arc;

pub(super) const COOKIE: &str = "baton_token";

/// Not `Debug`: it holds the token.
pub(crate) struct Access {
    pub(crate) token: Option<String>,
    pub(crate) people: Option<Arc<Watched<People>>>,
    pub(crate) hub: Option<Arc<Hub>>,
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

    /// After this the Hub is asked anew.
    pub(crate) fn forget(&self, access: &Access) {
        if let (Some(token), Some(hub)) = (&self.token, &access.hub) {
            hub.forget(token);
        }
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
    async fn admit(&self, given: Option<&str>, open: bool) -> Result<Option<Caller>, HubError> {
        match given {
            _ if self.token.is_none() && !self.knows_people() => {
                Ok(Some(self.caller_without_token()))
            }
            Some(token) => self.caller(token).await,
            None => Ok(open.then(|| self.caller_without_token())),
        }
    }

    fn knows_people(&self) -> bool {
        self.people.is_some() || self.hub.is_some()
    }

    fn caller_without_token(&self) -> Caller {
        Caller {
            identity: Identity::operator(),
            token: None,
            alone: !self.knows_people(),
        }
    }

    async fn caller(&self, token: &str) -> Result<Option<Caller>, HubError> {
        let identity = self.identity(token).await?;
        Ok(identity.map(|identity| Caller {
            identity,
            token: Some(token.to_owned()),
            alone: !self.knows_people(),
        }))
    }

    /// What is known here goes first, so that it does not depend on the Hub.
    async fn identity(&self, token: &str) -> Result<Option<Identity>, HubError> {
        if self.token.as_ref().is_some_and(|own| is_same(token, own)) {
            return Ok(Some(Identity::operator()));
        }
        let people = self.people.as_ref();
        let of_file = people.and_then(|people| people.newest().of_token(token));
        match &self.hub {
            Some(hub) if of_file.is_none() => hub.of_token(token).await,
            _ => Ok(of_file),
        }
    }

    /// Ends when the caller's token means something else than at the time of the request. A silent Hub changes nothing.
    pub(crate) async fn until_changed(&self, caller: &Caller) {
        let Some(token) = caller.token.as_deref().filter(|_| self.knows_people()) else {
            return std::future::pending().await;
        };
        let mut file = self.people.as_ref().map(|people| people.subscribe());
        loop {
            if let Ok(now) = self.identity(token).await
                && now.as_ref() != Some(&caller.identity)
            {
                return;
            }
            let file_changes = async {
                match &mut file {
                    Some(file) => file.changed().await,
                    None => std::future::pending().await,
                }
            };
            let hub_forgets = async {
                match &self.hub {
                    Some(hub) => tokio::time::sleep(hub.remembered()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                // The file is watched as long as there are requests.
                changed = file_changes => if changed.is_err() { return },
                () = hub_forgets => {}
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
    match access.admit(bearer(request.headers()), open).await {
        Ok(Some(caller)) => pass_on(caller, request, next).await,
        Ok(None) => ApiError::Token.into_response(),
        Err(error) => ApiError::Hub(error).into_response(),
    }
}

/// Whoever a program speaks for, by the authorization that they gave it.
pub(super) async fn of_authorization(
    access: &Access,
    given: Option<&HeaderValue>,
) -> Result<Caller, ApiError> {
    match access.admit(given.and_then(token_of), false).await {
        Ok(Some(caller)) => Ok(caller),
        Ok(None) => Err(ApiError::Token),
        Err(error) => Err(ApiError::Hub(error)),
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
    if caller.is_some_and(|caller| caller.identity.may_be_person()) {
        return next.run(request).await;
    }
    ApiError::NotAPerson.into_response()
}

pub(super) async fn people_need_token(
    State(shared): State<Shared>,
    query: Query<TokenQuery>,
    request: Request,
    next: Next,
) -> Response {
    let access = &shared.access;
    let headers = request.headers();
    let given = bearer(headers).or_else(|| cookie(headers, COOKIE));
    let open = access.only_this_user && query.token.is_none();
    match access.admit(given, open).await {
        Ok(Some(caller)) => return pass_on(caller, request, next).await,
        Ok(None) => {}
        Err(error) => return ApiError::Hub(error).into_response(),
    }
    if let Some(token) = query.0.token {
        match access.caller(&token).await {
            Ok(Some(_)) => return enter(&token),
            Ok(None) => {}
            Err(error) => return ApiError::Hub(error).into_response(),
        }
    } else if let Some(to_hub) = sign_in::to_hub(&shared, &request) {
        return to_hub;
    }
    let text = "This page needs a token: open it as /?token=TOKEN. The file that holds the broker's own token stands in the broker's settings";
    (StatusCode::UNAUTHORIZED, text).into_response()
}

/// The token leaves the address bar and the history.
/// Without a path the cookie is for the folder of this page, so that a prefix of another program never sees it.
fn enter(token: &str) -> Response {
    let cookie = format!("{COOKIE}={token}; HttpOnly; SameSite=Strict");
    let home = [
        (header::SET_COOKIE, cookie),
        (header::LOCATION, "./".to_owned()),
    ];
    (StatusCode::SEE_OTHER, home).into_response()
}

async fn pass_on(caller: Caller, mut request: Request, next: Next) -> Response {
    if let Some(guest) = request.extensions().get::<Guest>() {
        guest.admit();
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    token_of(headers.get(header::AUTHORIZATION)?)
}

fn token_of(authorization: &HeaderValue) -> Option<&str> {
    authorization.to_str().ok()?.strip_prefix("Bearer ")
}

pub(super) fn cookie<'a>(headers: &'a HeaderMap, wanted: &str) -> Option<&'a str> {
    headers
        .get_all(header::COOKIE)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .find(|(name, _)| *name == wanted)
        .map(|(_, value)| value)
}

/// Takes as long for a wrong first letter as for a wrong last one.
pub(super) fn is_same(given: &str, token: &str) -> bool {
    let difference = given
        .bytes()
        .zip(token.bytes())
        .fold(0, |difference, (one, other)| difference | (one ^ other));
    given.len() == token.len() && std::hint::black_box(difference) == 0
}
