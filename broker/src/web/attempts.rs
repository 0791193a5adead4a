//! Limits wrong tokens for each address. They are logged without the token.
//!
//! A correct token is never refused, because many people may share an address. A program is always
//! told that its token is wrong. Only the sign-in page responds that there were too many attempts.

use crate::buckets::{Buckets, Rate};
use axum::http::{Extensions, HeaderMap, HeaderName};
use std::net::IpAddr;
use tokio::time::Instant;

/// This many wrong tokens at once, and then one every three seconds.
const RATE: Rate = Rate {
    a_second: 1.0 / 3.0,
    burst: 20.0,
};
const MOST_ADDRESSES: usize = 10_000;

/// The address of the connection's other end; `None` for a Unix socket.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub(super) Option<IpAddr>);

pub(crate) struct Attempts(Buckets<Option<IpAddr>>);

impl Attempts {
    pub(crate) fn new() -> Self {
        Self(Buckets::new(RATE))
    }

    /// Counts and logs a wrong token. Returns `false` if there were too many from this address.
    pub(super) fn failed(&self, extensions: &Extensions, headers: &HeaderMap) -> bool {
        let address = address(extensions, headers);
        let now = Instant::now();
        self.0.forget_full(MOST_ADDRESSES, now);
        let admitted = self.0.take(&address, now);
        if admitted {
            match address {
                Some(address) => {
                    tracing::warn!(%address, "A sign-in with a wrong token from {address}")
                }
                None => tracing::warn!("A sign-in with a wrong token through the socket"),
            }
        }
        admitted
    }
}

/// The client's address. Only a reverse proxy on this machine may forward another address.
pub(super) fn address(extensions: &Extensions, headers: &HeaderMap) -> Option<IpAddr> {
    let Peer(peer) = *extensions.get::<Peer>()?;
    let peer = peer?;
    let forwarded = headers.get_all(HeaderName::from_static("x-forwarded-for"));
    let last = forwarded
        .iter()
        .next_back()
        .and_then(|value| value.to_str().ok());
    let last = last.and_then(|text| text.rsplit(',').next()?.trim().parse().ok());
    Some(
        last.filter(|_| peer.is_loopback())
            .unwrap_or(peer)
            .to_canonical(),
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn only_a_proxy_on_this_machine_names_another_address() {
        let check = |peer: &str, forwarded: Option<&str>, expected: &str| {
            let mut extensions = Extensions::new();
            extensions.insert(Peer(Some(peer.parse().unwrap())));
            let mut headers = HeaderMap::new();
            if let Some(text) = forwarded {
                headers.insert("x-forwarded-for", text.parse().unwrap());
            }
            let found = address(&extensions, &headers);
            assert_eq!(
                found,
                Some(expected.parse().unwrap()),
                "{peer} {forwarded:?}"
            );
        };
        check("192.0.2.1", None, "192.0.2.1");
        check("192.0.2.1", Some("198.51.100.7"), "192.0.2.1");
        check("127.0.0.1", Some("198.51.100.7"), "198.51.100.7");
        check("::1", Some("made up, 198.51.100.7"), "198.51.100.7");
        check("127.0.0.1", Some("no address"), "127.0.0.1");
        check("::ffff:192.0.2.1", None, "192.0.2.1");
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_goes_on_trying_waits() {
        let attempts = Attempts::new();
        let mut extensions = Extensions::new();
        extensions.insert(Peer(Some("192.0.2.1".parse().unwrap())));
        let failed = || attempts.failed(&extensions, &HeaderMap::new());
        assert_eq!((0..50).filter(|_| failed()).count(), 20);
        tokio::time::advance(std::time::Duration::from_secs(4)).await;
        assert!(failed() && !failed());
    }
}
