//! Headers that every answer has, so that a browser takes it for nothing else and shows it in no other site's page.

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    middleware::Next,
    response::Response,
};

/// Of what is no page: nothing is loaded, and no page shows it inside.
const POLICY: &str = "default-src 'none'; frame-ancestors 'none'";

/// From then on the browser uses encryption for this host, for a year.
const ALWAYS_ENCRYPTED: &str = "max-age=31536000";

/// Adds what the answer does not have of its own.
pub(super) async fn secure(request: Request, next: Next) -> Response {
    let encrypted = came_encrypted(request.headers());
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let mut add = |name, value| {
        if !headers.contains_key(&name) {
            headers.insert(name, HeaderValue::from_static(value));
        }
    };
    add(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    add(header::REFERRER_POLICY, "same-origin");
    add(header::CONTENT_SECURITY_POLICY, POLICY);
    if encrypted {
        add(header::STRICT_TRANSPORT_SECURITY, ALWAYS_ENCRYPTED);
    }
    response
}

/// Whether the browser came through TLS, to this broker or to a proxy in front, which says so. A browser that is lied to
/// only keeps its cookie from unencrypted connections.
pub(super) fn came_encrypted(headers: &HeaderMap) -> bool {
    let forwarded = headers.get(HeaderName::from_static("x-forwarded-proto"));
    forwarded.is_some_and(|scheme| scheme.as_bytes().starts_with(b"https"))
}
