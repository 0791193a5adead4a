//! Signing in with the JupyterHub, and out again.
//!
//! A browser without a token is sent to the Hub with a fresh *state*, which its cookie repeats; the Hub sends it back
//! with a code, and the broker asks the Hub for the token behind the code. That token is the cookie from then on.
//! So only a browser that asked to sign in is signed in.

use super::{
    Caller, Shared,
    access::{COOKIE, cookie, is_same},
};
use crate::{api::ApiError, page};
use axum::{
    Router,
    extract::{OriginalUri, Query, Request, State},
    http::{HeaderMap, HeaderName, Method, StatusCode, header},
    response::{AppendHeaders, Html, IntoResponse, Response},
    routing::get,
};
use maud::{DOCTYPE, html};

const STATE_COOKIE: &str = "baton_sign_in";
/// How long somebody may take to give the Hub a password.
const STATE_SECONDS: u32 = 600;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/oauth_callback", get(come_back))
        .route("/signed-out", get(signed_out))
}

/// The way to the Hub for a person who asks for a page below the prefix, where the Hub's own proxy passes requests on.
pub(super) fn to_hub(shared: &Shared, request: &Request) -> Option<Response> {
    let (hub, prefix) = (shared.access.hub.as_ref()?, shared.prefix.as_deref()?);
    let headers = request.headers();
    let accepts = headers.get(header::ACCEPT)?.to_str().ok()?;
    let OriginalUri(uri) = request.extensions().get::<OriginalUri>()?;
    let page = uri.path().strip_prefix(prefix)?.strip_prefix('/')?;
    if request.method() != Method::GET || !accepts.contains("text/html") {
        return None;
    }
    let page = match uri.query() {
        Some(query) => format!("{page}?{query}"),
        None => page.to_owned(),
    };
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "?&=%-_.~+".contains(letter);
    let page = if page.chars().all(plain) {
        page
    } else {
        String::new()
    };
    let state = uuid::Uuid::new_v4().simple().to_string();
    let value = format!("{state}.{page}");
    let kept =
        set_cookie(STATE_COOKIE, &value, prefix, headers) + &format!("; Max-Age={STATE_SECONDS}");
    let to = hub.sign_in_url(&state, prefix);
    Some(redirect(&to, [kept]))
}

#[derive(serde::Deserialize)]
struct Answer {
    #[serde(default)]
    code: String,
    #[serde(default)]
    state: String,
}

async fn come_back(
    State(shared): State<Shared>,
    Query(answer): Query<Answer>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let (Some(hub), Some(prefix)) = (&shared.access.hub, shared.prefix.as_deref()) else {
        return Err(ApiError::UnknownPath);
    };
    let begun = cookie(&headers, STATE_COOKIE).and_then(|value| value.split_once('.'));
    let page = match begun {
        Some((state, page)) if is_same(&answer.state, state) => page,
        _ => {
            return Ok(refused(
                "This sign-in was not begun in this browser, or too long ago",
            ));
        }
    };
    let Some(token) = hub.token_for(&answer.code, prefix).await? else {
        return Ok(refused("The JupyterHub does not know this sign-in"));
    };
    if hub.of_token(&token).await?.is_none() {
        return Ok(refused("The JupyterHub does not let you open these pages"));
    }
    let entered = set_cookie(COOKIE, &token, prefix, &headers);
    Ok(redirect(
        &format!("./{page}"),
        [entered, removed(STATE_COOKIE, prefix)],
    ))
}

pub(crate) fn sign_out(shared: &Shared, caller: &Caller) -> Response {
    caller.forget(&shared.access);
    let prefix = shared.prefix.as_deref().unwrap_or_default();
    // A token from the address is kept for the folder of the page, whatever the prefix is.
    let here = format!("{COOKIE}=; Max-Age=0");
    redirect("./signed-out", [removed(COOKIE, prefix), here])
}

async fn signed_out() -> Response {
    message(
        StatusCode::OK,
        "You have signed out",
        "Whoever opens these pages here next is asked to sign in. If that is with a JupyterHub, sign out there, too: it would let this browser in again",
    )
}

fn refused(why: &str) -> Response {
    message(StatusCode::FORBIDDEN, "Not signed in", why)
}

fn message(status: StatusCode, title: &str, text: &str) -> Response {
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
                        p { (text) "." }
                        p { a href="./" { "Sign in" } }
                    }
                }
            }
        }
    };
    let policy = (header::CONTENT_SECURITY_POLICY, page::POLICY);
    (status, [policy], Html(page.into_string())).into_response()
}

/// Lax, because the way back from the Hub may begin at the site where people give their password.
fn set_cookie(name: &str, value: &str, prefix: &str, headers: &HeaderMap) -> String {
    let forwarded = headers.get(HeaderName::from_static("x-forwarded-proto"));
    let secure = forwarded.is_some_and(|scheme| scheme.as_bytes().starts_with(b"https"));
    let secure = if secure { "; Secure" } else { "" };
    format!("{name}={value}; Path={prefix}/; HttpOnly; SameSite=Lax{secure}")
}

fn removed(name: &str, prefix: &str) -> String {
    format!("{name}=; Path={prefix}/; Max-Age=0")
}

fn redirect<const COOKIES: usize>(to: &str, cookies: [String; COOKIES]) -> Response {
    let cookies = cookies.map(|cookie| (header::SET_COOKIE, cookie));
    let headers = [
        (header::LOCATION, to.to_owned()),
        (header::CACHE_CONTROL, "no-store".to_owned()),
    ];
    (StatusCode::SEE_OTHER, headers, AppendHeaders(cookies)).into_response()
}
