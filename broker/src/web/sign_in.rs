//! Signing in, with a form, a token in the URL, or the JupyterHub; and signing out.
//!
//! Each way ends with a cookie that contains the id of a sign-in. Only this site's own pages send
//! it ([`SameSite::Strict`]). A browser that follows a link from another site sends no cookie. So
//! the broker responds with a page that loads the same address again, this time from this site. If such
//! a link contains a token, the person must confirm it: another site must not be able to replace the
//! sign-in with one whose owner then receives what the person does.
//!
//! To sign in with the Hub, a browser is redirected there with a random *state*, which is also in a
//! cookie. The Hub redirects it back with a code, and the broker exchanges the code for a token.
//! The state proves that this browser began the sign-in.

use super::{
    Caller, Shared,
    access::{bearer, is_from_here, is_same},
    attempts,
    headers::came_encrypted,
};
use crate::{
    sign_ins::SignIn,
    web::{ApiError, page},
};
use axum::{
    Form, Json, Router,
    extract::{OriginalUri, Query, Request, State},
    http::{Extensions, HeaderMap, HeaderName, Method, StatusCode, Uri, header},
    response::{AppendHeaders, Html, IntoResponse, Response},
    routing::{get, post},
};
use axum_extra::extract::cookie::{Cookie, CookieJar, SameSite};
use maud::{DOCTYPE, Markup, html};
use percent_encoding::percent_decode_str;
use std::{borrow::Cow, time::Duration};

const COOKIE: &str = "baton_signed_in";
const STATE_COOKIE: &str = "baton_sign_in";
/// How long a person may take to sign in to the Hub.
const STATE: Duration = Duration::from_secs(600);

const WRONG: &str = "This broker does not know that token. It may have been replaced; ask the person who gave it to you";

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/sign-in", get(sign_in_page).post(sign_in))
        .route("/oauth_callback", get(callback))
        .route("/signed-out", get(signed_out))
        .route("/v1/notebook-token", post(notebook_token))
}

/// The id of the browser's sign-in.
pub(super) fn cookie_of(headers: &HeaderMap) -> Option<String> {
    let jar = CookieJar::from_headers(headers);
    jar.get(COOKIE).map(|cookie| cookie.value().to_owned())
}

/// The response to a person who must sign in before this page.
pub(super) fn asked(shared: &Shared, request: &Request) -> Response {
    let headers = request.headers();
    let accepts = headers
        .get(header::ACCEPT)
        .and_then(|kinds| kinds.to_str().ok());
    let is_page = accepts.is_some_and(|kinds| kinds.contains("text/html"));
    if request.method() != Method::GET || !is_page {
        return ApiError::Token.into_response();
    }
    let page = page_of(request);
    if headers
        .get("sec-fetch-site")
        .is_some_and(|site| site == "cross-site")
    {
        return from_here(&page, []);
    }
    to_hub(shared, request, &page).unwrap_or_else(|| field(StatusCode::UNAUTHORIZED, &page, None))
}

/// Signs in and redirects to the page without the token, even if the browser is already signed in.
/// So the token does not stay in the browser's history. A person who follows a link from another site is
/// asked first, because the browser does not say whether it is signed in.
pub(super) async fn with_address(shared: &Shared, request: Request, token: String) -> Response {
    let page = page_of(&request);
    if !shared.access.is_open() && is_link_of_other_site(request.headers()) {
        return confirm(&token, &page);
    }
    let (parts, _) = request.into_parts();
    enter(
        shared,
        &Shown { token, page },
        &parts.extensions,
        &parts.headers,
    )
    .await
}

/// The contents of the form.
#[derive(serde::Deserialize)]
struct Shown {
    #[serde(default)]
    token: String,
    /// The page to show afterwards.
    #[serde(default)]
    page: String,
}

async fn sign_in_page() -> Response {
    field(StatusCode::OK, "", None)
}

async fn sign_in(
    State(shared): State<Shared>,
    extensions: Extensions,
    headers: HeaderMap,
    Form(shown): Form<Shown>,
) -> Response {
    if !is_from_here(&headers) {
        return ApiError::Form.into_response();
    }
    enter(&shared, &shown, &extensions, &headers).await
}

async fn enter(
    shared: &Shared,
    shown: &Shown,
    extensions: &Extensions,
    headers: &HeaderMap,
) -> Response {
    let page = plain(&shown.page);
    if shared.access.is_open() {
        return redirect(&format!("./{page}"), []);
    }
    match shared
        .access
        .sign_in(
            shown.token.trim(),
            &shared.limits,
            attempts::address(extensions, headers),
        )
        .await
    {
        Ok(Some(sign_in)) => {
            let cookie = signed_in(&sign_in, headers);
            redirect(&format!("./{page}"), [cookie])
        }
        Ok(None) if shared.access.attempts.failed(extensions, headers) => {
            field(StatusCode::UNAUTHORIZED, page, Some(WRONG))
        }
        Ok(None) => {
            let why = "Too many wrong tokens came from this address: try again in a minute";
            field(StatusCode::TOO_MANY_REQUESTS, page, Some(why))
        }
        Err(error) => field(error.status(), page, Some(&error.to_string())),
    }
}

/// Redirects to the Hub, if the request is below the prefix that the Hub's own proxy forwards.
fn to_hub(shared: &Shared, request: &Request, page: &str) -> Option<Response> {
    let (hub, prefix) = (shared.access.hub.as_ref()?, shared.prefix.as_deref()?);
    address(request)
        .path()
        .strip_prefix(prefix)?
        .strip_prefix('/')?;
    let state = uuid::Uuid::new_v4().simple().to_string();
    // The browser may return from the identity provider's site, and must send this cookie then.
    let mut kept = cookie(
        STATE_COOKIE,
        format!("{state}.{page}"),
        STATE,
        request.headers(),
    );
    kept.set_same_site(SameSite::Lax);
    Some(redirect(&hub.sign_in_url(&state, prefix), [kept]))
}

#[derive(serde::Deserialize)]
struct Answer {
    #[serde(default)]
    code: String,
    #[serde(default)]
    state: String,
}

async fn callback(
    State(shared): State<Shared>,
    Query(answer): Query<Answer>,
    extensions: Extensions,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let (Some(hub), Some(prefix)) = (&shared.access.hub, shared.prefix.as_deref()) else {
        return Err(ApiError::UnknownPath);
    };
    let jar = CookieJar::from_headers(&headers);
    let begun = jar
        .get(STATE_COOKIE)
        .and_then(|cookie| cookie.value().split_once('.'));
    let page = match begun {
        Some((state, page)) if is_same(&answer.state, state) => plain(page),
        _ => {
            return Ok(refused(
                "This sign-in began in another browser or too long ago",
            ));
        }
    };
    let Some(token) = hub.token_for(&answer.code, prefix).await? else {
        return Ok(refused("The JupyterHub does not know this sign-in"));
    };
    let from = attempts::address(&extensions, &headers);
    let Some(sign_in) = shared.access.sign_in(&token, &shared.limits, from).await? else {
        return Ok(refused("The JupyterHub does not let you open these pages"));
    };
    let cookies = [
        signed_in(&sign_in, &headers),
        removed(STATE_COOKIE, &headers),
    ];
    // The browser comes from the Hub, so after a redirect it would not send the cookie.
    Ok(from_here(page, cookies))
}

#[derive(serde::Serialize)]
struct NotebookToken {
    token: String,
    expires_in_seconds: u64,
}

/// Exchanges the token of a notebook server for one that is valid only for this broker. The former
/// also opens the server, so it is sent nowhere else.
async fn notebook_token(
    State(shared): State<Shared>,
    extensions: Extensions,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if headers.contains_key(header::ORIGIN) {
        return Err(ApiError::WebPage);
    }
    let token = bearer(&headers).ok_or(ApiError::Token)?;
    let from = attempts::address(&extensions, &headers);
    let Some((token, lifetime)) = shared
        .access
        .for_notebook(token, &shared.limits, from)
        .await?
    else {
        shared.access.attempts.failed(&extensions, &headers);
        return Err(ApiError::Token);
    };
    let answer = NotebookToken {
        token,
        expires_in_seconds: lifetime.as_secs(),
    };
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(answer)).into_response())
}

pub(crate) async fn sign_out(
    shared: &Shared,
    caller: &Caller,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    shared.access.sign_out(caller).await?;
    Ok(redirect("./signed-out", [removed(COOKIE, headers)]))
}

async fn signed_out() -> Response {
    let text = "The next person who opens these pages here must sign in. If you signed in with a JupyterHub, also sign out there, or it will let this browser in again";
    let body = html! {
        p { (text) "." }
        p { a href="./" { "Sign in" } }
    };
    message(StatusCode::OK, "You have signed out", &body)
}

fn refused(why: &str) -> Response {
    let body = html! {
        p { (why) "." }
        p { a href="./" { "Sign in" } }
    };
    message(StatusCode::FORBIDDEN, "Not signed in", &body)
}

/// The page with the form. `wrong` says why it is shown again.
fn field(status: StatusCode, page: &str, wrong: Option<&str>) -> Response {
    let body = html! {
        form.act action="sign-in" method="post" {
            input type="hidden" name="page" value=(page);
            label {
                "Token"
                input name="token" type="password" autocomplete="current-password" required autofocus aria-describedby="about";
            }
            @if let Some(wrong) = wrong { p.problem role="alert" { (wrong) "." } }
            button type="submit" { "Sign in" }
            p.quiet #about {
                "Your teacher gave you the token, or " code { "baton people add" } " printed it. The broker's own token is in the file that the broker named at its start."
            }
        }
    };
    message(status, "Sign in", &body)
}

/// Whether a page of another site has opened this address. Browsers say `none` for an address that was
/// typed, or opened from a mail or a terminal.
fn is_link_of_other_site(headers: &HeaderMap) -> bool {
    let from = headers.get("sec-fetch-site");
    from.is_some_and(|from| from != "none" && from != "same-origin")
}

/// The page on which a person confirms a token that another site has put into a link.
fn confirm(token: &str, page: &str) -> Response {
    let body = html! {
        p {
            "A page of another site has opened this address, with a token. Sign in only if you trust that page: you then act as the owner of this token, who sees what you do here."
        }
        form.act action="sign-in" method="post" {
            input type="hidden" name="page" value=(page);
            input type="hidden" name="token" value=(token);
            button type="submit" { "Sign in with this token" }
        }
        p { a href="./" { "Continue without it" } }
    };
    message(StatusCode::OK, "Sign in?", &body)
}

/// Lets the browser load another page from a page of this site.
fn from_here<const COOKIES: usize>(page: &str, cookies: [Cookie<'static>; COOKIES]) -> Response {
    let to = format!("0; url=./{page}");
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta http-equiv="refresh" content=(to);
                title { "Baton" }
            }
        }
    };
    let headers = [
        (header::CONTENT_SECURITY_POLICY, page::POLICY),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (headers, set(cookies), Html(page.into_string())).into_response()
}

fn message(status: StatusCode, title: &str, body: &Markup) -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · Baton" }
                link rel="stylesheet" href="static/page.css";
            }
            body {
                main {
                    section.card {
                        h1 { (title) }
                        (body)
                    }
                }
            }
        }
    };
    let headers = [
        (header::CONTENT_SECURITY_POLICY, page::POLICY),
        (header::CACHE_CONTROL, "no-store"),
    ];
    (status, headers, Html(page.into_string())).into_response()
}

fn signed_in(sign_in: &SignIn, headers: &HeaderMap) -> Cookie<'static> {
    cookie(COOKIE, sign_in.id.clone(), sign_in.lifetime, headers)
}

fn removed(name: &'static str, headers: &HeaderMap) -> Cookie<'static> {
    cookie(name, String::new(), Duration::ZERO, headers)
}

/// Without a path, a cookie belongs to the folder of the pages, whatever their prefix is. So
/// programs below other prefixes do not receive it.
fn cookie(
    name: &'static str,
    value: String,
    lifetime: Duration,
    headers: &HeaderMap,
) -> Cookie<'static> {
    Cookie::build((name, value))
        .http_only(true)
        .secure(came_encrypted(headers))
        .same_site(SameSite::Strict)
        .max_age(lifetime.try_into().unwrap_or_default())
        .build()
}

fn redirect<const COOKIES: usize>(to: &str, cookies: [Cookie<'static>; COOKIES]) -> Response {
    let headers = [
        (header::LOCATION, to.to_owned()),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ];
    (StatusCode::SEE_OTHER, headers, set(cookies)).into_response()
}

fn set<const COOKIES: usize>(
    cookies: [Cookie<'static>; COOKIES],
) -> AppendHeaders<[(HeaderName, String); COOKIES]> {
    AppendHeaders(cookies.map(|cookie| (header::SET_COOKIE, cookie.to_string())))
}

fn address(request: &Request) -> &Uri {
    let original = request.extensions().get::<OriginalUri>();
    original.map_or_else(|| request.uri(), |OriginalUri(uri)| uri)
}

/// The requested page, relative to its folder and without the token.
fn page_of(request: &Request) -> String {
    let uri = address(request);
    let name = uri.path().rsplit('/').next().unwrap_or_default();
    let is_token = |pair: &&str| {
        let name = pair.split('=').next().unwrap_or_default();
        percent_decode_str(name).eq("token".bytes())
    };
    let pairs = uri.query().unwrap_or_default().split('&');
    let pairs: Vec<&str> = pairs
        .filter(|pair| !pair.is_empty() && !is_token(pair))
        .collect();
    let page = match pairs.as_slice() {
        [] => Cow::Borrowed(name),
        pairs => format!("{name}?{}", pairs.join("&")).into(),
    };
    plain(&page).to_owned()
}

/// The page, if it is one of this broker; otherwise empty. So it contains no other host, and no
/// character that could end a cookie or an attribute.
fn plain(page: &str) -> &str {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "?&=%-_.~+".contains(letter);
    if page.chars().all(plain) { page } else { "" }
}
