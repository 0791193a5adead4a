//! The broker's address, and how to connect to it.

use crate::{LinkError, Token, tls};
use baton_protocol::address::BrokerAddress;
use rustls::ClientConfig;
use std::{io, path::PathBuf, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::timeout,
};
use tokio_tungstenite::tungstenite::http::Uri;

pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dial {
    pub address: BrokerAddress,
    pub token: Option<Token>,
    /// Certificate authorities to accept in addition to the system's.
    pub ca_file: Option<PathBuf>,
}

/// The common interface of TCP and Unix sockets.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<Socket: AsyncRead + AsyncWrite + Unpin + Send> Duplex for Socket {}

impl Dial {
    /// Forgets the token that the broker refused, if it was the result of an exchange. Returns whether it was.
    pub(crate) fn was_exchanged(&self) -> bool {
        let exchanged = self.token.as_ref().and_then(Token::exchanged);
        exchanged.map(|exchanged| exchanged.set(None)).is_some()
    }

    /// The URL of a path of the API. For a Unix socket its host is only a placeholder.
    pub(crate) fn url(&self, path: &str) -> String {
        match &self.address {
            BrokerAddress::Unix(_) => format!("http://baton{path}"),
            BrokerAddress::Http(url) => format!("{url}{path}"),
        }
    }

    /// The certificates that are accepted from the broker; none without encryption.
    pub(crate) fn accepted(&self) -> Result<ClientConfig, LinkError> {
        match self.address.is_encrypted() {
            true => tls::client(self.ca_file.as_deref()),
            false => Ok(tls::no_client()),
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

    /// The error for a broken connection.
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
}
