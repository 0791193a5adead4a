//! Encryption on the way to the broker, and what it says of a broker that cannot prove who it is.
//!
//! Accepted are certificates of the authorities that the system trusts, and of those in `ca_file`. They are read for
//! each WebSocket, and once for all requests of a client.

use std::{
    error::Error,
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use tokio_rustls::TlsConnector;

use crate::{Dial, LinkError};

/// All of Baton encrypts with this one.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// What a client accepts.
///
/// # Errors
/// When `ca_file` cannot be read, or holds no certificate.
pub fn client(ca_file: Option<&Path>) -> Result<ClientConfig, LinkError> {
    let mut roots = RootCertStore::empty();
    // A system without certificates is one where only those of the file count.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if let Some(path) = ca_file {
        add_file(&mut roots, path).map_err(|source| LinkError::CaFile {
            path: path.to_owned(),
            source,
        })?;
    }
    Ok(with_roots(roots))
}

/// The same for one broker. Without encryption nothing is accepted, and nothing read.
pub(crate) fn client_of(dial: &Dial) -> Result<ClientConfig, LinkError> {
    match dial.address.is_encrypted() {
        true => client(dial.ca_file.as_deref()),
        false => Ok(with_roots(RootCertStore::empty())),
    }
}

fn add_file(roots: &mut RootCertStore, path: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
    let text = fs::read(path)?;
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(&text) {
        roots.add(certificate?)?;
        count += 1;
    }
    match count {
        0 => Err(
            "there is no certificate in it; it should begin with -----BEGIN CERTIFICATE-----"
                .into(),
        ),
        _ => Ok(()),
    }
}

fn with_roots(roots: RootCertStore) -> ClientConfig {
    #[expect(clippy::expect_used, reason = "ring has what these versions need")]
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the versions are those of the provider");
    builder.with_root_certificates(roots).with_no_client_auth()
}

pub(crate) async fn connector(ca_file: Option<PathBuf>) -> Result<TlsConnector, LinkError> {
    let config = tokio::task::spawn_blocking(move || client(ca_file.as_deref()));
    let config = config
        .await
        .map_err(|_| LinkError::Answer("the certificates were not read"))??;
    Ok(TlsConnector::from(Arc::new(config)))
}

pub(crate) fn server_name(host: String) -> Option<ServerName<'static>> {
    ServerName::try_from(host).ok()
}

/// Why a connection is not safe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsProblem {
    Expired,
    NotYetValid,
    UnknownAuthority,
    /// The names that the certificate is for, where they are known.
    OtherName(Vec<String>),
    Revoked,
    NotEncrypted,
    /// In the words of the library.
    Other(String),
}

impl fmt::Display for TlsProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => formatter.write_str("its certificate has expired"),
            Self::NotYetValid => formatter.write_str("its certificate is not valid yet"),
            Self::UnknownAuthority => formatter
                .write_str("its certificate is from an authority that this machine does not trust"),
            Self::OtherName(names) if names.is_empty() => {
                formatter.write_str("its certificate is for another host name")
            }
            Self::OtherName(names) => {
                write!(formatter, "its certificate is for {}", names.join(", "))
            }
            Self::Revoked => formatter.write_str("its certificate was revoked"),
            Self::NotEncrypted => formatter.write_str("it does not use encryption"),
            Self::Other(words) => formatter.write_str(words),
        }
    }
}

impl TlsProblem {
    /// What to do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Expired | Self::NotYetValid => {
                "the operator of the broker must renew it; also check this machine's clock"
            }
            Self::UnknownAuthority => {
                "set `ca_file` (BATON_CA_FILE) to the authority's certificate, which the operator of the broker has"
            }
            Self::OtherName(_) => "use that name in `broker_address` (BATON_BROKER_ADDRESS)",
            Self::NotEncrypted => {
                "begin `broker_address` (BATON_BROKER_ADDRESS) with http:// if that is intended, or give the broker a certificate"
            }
            Self::Revoked | Self::Other(_) => "ask the operator of the broker",
        }
    }

    /// The same where it is an object store that is not safe.
    #[must_use]
    pub fn hint_for_store(&self) -> &'static str {
        match self {
            Self::UnknownAuthority => {
                "set `ca_file` (BATON_CA_FILE) on this machine to a file with the authorities of the broker and of the object store"
            }
            _ => "tell the operator of the object store; also check this machine's clock",
        }
    }
}

/// Whether encryption is what failed.
#[must_use]
pub fn problem(error: &(dyn Error + 'static)) -> Option<TlsProblem> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let inner = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        let rustls = match inner {
            Some(inner) => inner.downcast_ref::<rustls::Error>(),
            None => error.downcast_ref::<rustls::Error>(),
        };
        if let Some(rustls) = rustls {
            return Some(of_rustls(rustls));
        }
        cause = match inner {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

fn of_rustls(error: &rustls::Error) -> TlsProblem {
    let certificate = match error {
        rustls::Error::InvalidCertificate(certificate) => certificate,
        rustls::Error::InvalidMessage(_) => return TlsProblem::NotEncrypted,
        other => return TlsProblem::Other(other.to_string()),
    };
    match certificate {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => TlsProblem::Expired,
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            TlsProblem::NotYetValid
        }
        // An authority of the same name, with another key, signed it.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            TlsProblem::UnknownAuthority
        }
        CertificateError::NotValidForName => TlsProblem::OtherName(Vec::new()),
        CertificateError::NotValidForNameContext { presented, .. } => {
            TlsProblem::OtherName(presented.iter().map(|name| plain(name)).collect())
        }
        CertificateError::Revoked => TlsProblem::Revoked,
        other => TlsProblem::Other(other.to_string()),
    }
}

/// Names are given as `DnsName("broker.example.edu")`.
fn plain(name: &str) -> String {
    name.split('"').nth(1).unwrap_or(name).to_owned()
}
