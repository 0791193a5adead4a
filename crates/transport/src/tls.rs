//! Encryption to the broker, and errors about a broker that cannot prove its identity.
//!
//! Certificates of the authorities that the system trusts are accepted, and of those in `ca_file`.
//! Those of the system are read for each WebSocket, and once for all requests of a client; `ca_file` is read for each
//! connection, so that programs need no restart after the authority has changed.

use crate::LinkError;
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore,
    SignatureScheme, WantsVerifier,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio_rustls::TlsConnector;

pub use crate::errors::TlsProblem;

/// The only implementation of cryptography that Baton uses.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The certificates that a client accepts.
///
/// # Errors
/// If `ca_file` cannot be read, or contains no certificate.
pub fn client(ca_file: Option<&Path>) -> Result<ClientConfig, LinkError> {
    let mut of_system = RootCertStore::empty();
    // If the system has no certificates, only those of the file count.
    of_system.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let Some(path) = ca_file else {
        return Ok(with_roots(of_system));
    };
    let first = verifier(&of_system, path).map_err(|source| LinkError::CaFile {
        path: path.to_owned(),
        source,
    })?;
    let verifier = Verifier {
        of_system,
        ca_file: path.to_owned(),
        first,
    };
    let builder = builder().dangerous();
    let builder = builder.with_custom_certificate_verifier(Arc::new(verifier));
    Ok(builder.with_no_client_auth())
}

/// Accepts nothing, for a connection without encryption.
pub(crate) fn no_client() -> ClientConfig {
    with_roots(RootCertStore::empty())
}

/// Accepts the certificates of the system's authorities and of those in the file.
fn verifier(
    of_system: &RootCertStore,
    path: &Path,
) -> Result<Arc<WebPkiServerVerifier>, Box<dyn Error + Send + Sync>> {
    let mut roots = of_system.clone();
    let text = fs::read(path)?;
    let mut count = 0;
    for certificate in CertificateDer::pem_slice_iter(&text) {
        roots.add(certificate?)?;
        count += 1;
    }
    if count == 0 {
        return Err(
            "there is no certificate in it; it should begin with -----BEGIN CERTIFICATE-----"
                .into(),
        );
    }
    Ok(WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build()?)
}

fn with_roots(roots: RootCertStore) -> ClientConfig {
    builder()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

#[expect(clippy::expect_used, reason = "ring has what these versions need")]
fn builder() -> ConfigBuilder<ClientConfig, WantsVerifier> {
    ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .expect("the versions are those of the provider")
}

/// Decides as the verifier of the moment does, which knows the authorities that are in `ca_file` when a connection
/// begins.
#[derive(Debug)]
struct Verifier {
    of_system: RootCertStore,
    ca_file: PathBuf,
    /// Used while the file cannot be read, for example because it is being replaced. Signatures do not depend on the
    /// authorities.
    first: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let newest = verifier(&self.of_system, &self.ca_file);
        let verifier = newest.unwrap_or_else(|_| self.first.clone());
        verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.first
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.first
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.first.supported_verify_schemes()
    }
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

/// The TLS problem behind an error, if there is one.
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
        // It was signed by an authority with the same name and another key.
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

/// The name inside a text such as `DnsName("broker.example.edu")`.
fn plain(name: &str) -> String {
    name.split('"').nth(1).unwrap_or(name).to_owned()
}
