//! Where a broker listens.

use std::path::PathBuf;

/// `unix:/run/user/1000/baton/broker.sock`, or `https://host:port` with an optional path before the
/// API; `http://` without encryption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BrokerAddress {
    Unix(PathBuf),
    Http(String),
}

impl BrokerAddress {
    /// Whether the connection is encrypted and the broker proves its identity.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        matches!(self, Self::Http(url) if url.starts_with("https://"))
    }

    /// Whether a process that uses this address is probably on the broker's machine. A tunnel looks the same.
    #[must_use]
    pub fn is_near(&self) -> bool {
        let url = match self {
            Self::Unix(_) => return true,
            Self::Http(url) => url,
        };
        let (_, authority) = url.split_once("://").unwrap_or(("", url));
        let authority = authority.split('/').next().unwrap_or_default();
        let host = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => host,
            _ => authority,
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost"
            || host
                .parse()
                .is_ok_and(|address: std::net::IpAddr| address.is_loopback())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("A broker's address is https://HOST:PORT, http://HOST:PORT or unix:/PATH, not {0:?}")]
pub struct AddressError(String);

impl std::str::FromStr for BrokerAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(text.to_owned());
        if let Some(path) = text.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return path
                .is_absolute()
                .then_some(Self::Unix(path))
                .ok_or_else(wrong);
        }
        let host = ["https://", "http://"]
            .iter()
            .find_map(|scheme| text.strip_prefix(scheme))
            .ok_or_else(wrong)?;
        (!host.is_empty() && !host.starts_with('/'))
            .then(|| Self::Http(text.trim_end_matches('/').to_owned()))
            .ok_or_else(wrong)
    }
}

impl std::fmt::Display for BrokerAddress {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unix(path) => write!(formatter, "unix:{}", path.display()),
            Self::Http(url) => formatter.write_str(url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_addresses_are_near() -> Result<(), AddressError> {
        for near in [
            "unix:/run/b.sock",
            "http://localhost",
            "http://127.0.0.1:8470",
            "http://127.8.0.1:8470/base",
            "http://[::1]:8470",
            "http://[::1]",
            "https://localhost:8470",
        ] {
            assert!(near.parse::<BrokerAddress>()?.is_near(), "{near}");
        }
        for far in [
            "http://gpu.example.edu:8470",
            "http://10.0.0.1",
            "https://10.0.0.1",
            "http://localhost.example.edu",
            "http://[2001:db8::1]:80",
        ] {
            assert!(!far.parse::<BrokerAddress>()?.is_near(), "{far}");
        }
        Ok(())
    }
}
