//! The broker's address, and the token for it.

use std::{fmt, io, path::PathBuf, sync::Arc, time::Duration};

use baton_protocol::address::BrokerAddress;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_tungstenite::tungstenite::http::Uri;

use crate::{LinkError, exchange::Exchanged, tls};

pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A secret. It is never shown.
#[derive(Clone)]
pub struct Token {
    text: String,
    /// What the broker gave for it, where it must not be shown at every request.
    exchanged: Option<Arc<Exchanged>>,
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Token {}

impl Token {
    /// Blanks around it, as a file has them at its end, do not count.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self {
            text: text.trim().to_owned(),
            exchanged: None,
        }
    }

    /// That of a notebook server of JupyterHub, which opens the server, too: the broker sees it only to give another
    /// one for it.
    #[must_use]
    pub fn of_notebook_server(text: &str) -> Self {
        Self {
            exchanged: Some(Arc::default()),
            ..Self::new(text)
        }
    }

    /// A mark of these bytes for one purpose: the same for the same token, and without the token of no use for
    /// finding out the bytes.
    #[must_use]
    pub fn mark(&self, purpose: &str, bytes: &[u8]) -> [u8; 16] {
        let key = blake3::derive_key(purpose, self.text.as_bytes());
        let mut mark = [0; 16];
        mark.copy_from_slice(&blake3::keyed_hash(&key, bytes).as_bytes()[..16]);
        mark
    }

    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.text)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("hidden")
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dial {
    pub address: BrokerAddress,
    pub token: Option<Token>,
    /// Authorities whose certificates are accepted, besides those that the system trusts.
    pub ca_file: Option<PathBuf>,
}

/// What both kinds of socket can do.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<Socket: AsyncRead + AsyncWrite + Unpin + Send> Duplex for Socket {}

impl Dial {
    /// What a request carries to say who asks.
    pub(crate) async fn authorization(&self) -> Result<Option<String>, LinkError> {
        let Some(token) = &self.token else {
            return Ok(None);
        };
        Ok(Some(match &token.exchanged {
            Some(exchanged) => exchanged.token(self, token).await?.bearer(),
            None => token.bearer(),
        }))
    }

    /// Whether what the broker refused was given for a token that it may give another one for. It is forgotten.
    pub(crate) fn was_exchanged(&self) -> bool {
        let exchanged = self
            .token
            .as_ref()
            .and_then(|token| token.exchanged.as_ref());
        exchanged.map(|exchanged| exchanged.forget()).is_some()
    }

    /// The URL of a path of the API. On a Unix socket its host means nothing.
    pub(crate) fn url(&self, path: &str) -> String {
        match &self.address {
            BrokerAddress::Unix(_) => format!("http://baton{path}"),
            BrokerAddress::Http(url) => format!("{url}{path}"),
        }
    }

    pub(crate) async fn open(&self) -> Result<Box<dyn Duplex>, LinkError> {
        match timeout(CONNECT_TIMEOUT, self.open_socket()).await {
            Ok(opened) => opened,
            Err(_) => Err(self.no_answer()),
        }
    }

    async fn open_socket(&self) -> Result<Box<dyn Duplex>, LinkError> {
        let failed = |error| self.failed(error);
        let url = match &self.address {
            BrokerAddress::Unix(path) => {
                let socket = UnixStream::connect(path).await.map_err(failed)?;
                return Ok(Box::new(socket));
            }
            BrokerAddress::Http(url) => url,
        };
        let (host, port) =
            host_and_port(url).ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let socket = TcpStream::connect((host.as_str(), port)).await;
        let socket = socket.map_err(failed)?;
        socket.set_nodelay(true).map_err(failed)?;
        if !self.address.is_encrypted() {
            return Ok(Box::new(socket));
        }
        let connector = tls::connector(self.ca_file.clone()).await?;
        let name =
            tls::server_name(host).ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        let socket = connector.connect(name, socket).await.map_err(failed)?;
        Ok(Box::new(socket))
    }

    /// What a broken connection means.
    pub(crate) fn failed(&self, source: io::Error) -> LinkError {
        let address = self.address.clone();
        match tls::problem(&source) {
            Some(problem) => LinkError::Certificate { address, problem },
            None => LinkError::Unreachable {
                address,
                source: source.into(),
            },
        }
    }

    pub(crate) fn no_answer(&self) -> LinkError {
        LinkError::NoAnswer {
            address: self.address.clone(),
        }
    }
}

fn host_and_port(url: &str) -> Option<(String, u16)> {
    let url: Uri = url.parse().ok()?;
    let host = url.host()?.trim_start_matches('[').trim_end_matches(']');
    let usual = match url.scheme_str() {
        Some("https") => 443,
        _ => 80,
    };
    Some((host.to_owned(), url.port_u16().unwrap_or(usual)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_to_connect() {
        let check = |url, host: &str, port| {
            assert_eq!(host_and_port(url), Some((host.to_owned(), port)));
        };
        check("http://broker:8470", "broker", 8470);
        check("http://broker", "broker", 80);
        check("https://broker", "broker", 443);
        check("http://[::1]:8470/services/baton", "::1", 8470);
        assert_eq!(host_and_port("http://a b"), None);
    }

    #[test]
    fn a_mark_needs_the_token() {
        let mark = |token, purpose, bytes: &[u8]| Token::new(token).mark(purpose, bytes);
        let one = mark("a", "test", b"x = 1");
        assert_eq!(one, mark("a", "test", b"x = 1"));
        for other in [
            mark("b", "test", b"x = 1"),
            mark("a", "other", b"x = 1"),
            mark("a", "test", b"x = 2"),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn a_token_is_not_shown() {
        let token = Token::new("  s3cret\n");
        assert_eq!(format!("{token:?}"), "hidden");
        assert_eq!(token.bearer(), "Bearer s3cret");
    }
}
