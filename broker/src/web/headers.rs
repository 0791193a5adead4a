//! Headers of every response, so that a browser does not misinterpret it or show it inside another site's page.

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    middleware::Next,
    response::Response,
};

/// For responses other than pages: they load nothing, and cannot be embedded.
const POLICY: &str = "default-src 'none'; frame-ancestors 'none'";

/// Tells the browser to use only TLS for this host for a year.
const ALWAYS_ENCRYPTED: &str = "max-age=31536000";

/// Adds the headers that the response does not have.
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

/// Whether the request came through TLS, to this broker or to a reverse proxy that says so. A false
/// claim only prevents the browser from sending its cookie over unencrypted connections.
pub(super) fn came_encrypted(headers: &HeaderMap) -> bool {
    let forwarded = headers.get(HeaderName::from_static("x-forwarded-proto"));
    forwarded.is_some_and(|scheme| scheme.as_bytes().starts_with(b"https"))
}
