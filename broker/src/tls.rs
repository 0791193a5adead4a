//! The broker's own encryption.
//!
//! In: connections, and a certificate and a key in two files, which are read again when they
//! change. Out: decrypted connections. The handshake is a part of the first read. So a slow peer
//! does not block others, and the time limit of a request's head also limits the handshake.
//!
//! A peer that uses HTTP without encryption gets an HTTP response that says so.

use crate::watched::Watched;
use anyhow::Context as _;
use axum::serve::Listener;
use baton_protocol::api::Problem;
use baton_transport::tls::provider;
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use std::{
    fmt, fs, io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, ready},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{Accept, TlsAcceptor, server::TlsStream};

type Chain = Vec<CertificateDer<'static>>;

/// A certificate with its intermediate certificates, and its private key, both as PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// The first byte of every TLS connection.
const HANDSHAKE: u8 = 22;

/// The broker's certificate and key, as currently in their files.
pub(crate) struct Certificate {
    chain: Watched<Chain>,
    key: Watched<PrivateKeyDer<'static>>,
    used: Mutex<Used>,
}

struct Used {
    chain: Arc<Chain>,
    key: Arc<PrivateKeyDer<'static>>,
    certified: Arc<CertifiedKey>,
}

impl Certificate {
    pub(crate) fn open(files: &TlsFiles) -> anyhow::Result<Self> {
        let chain = Watched::open(files.certificate.clone(), read_chain)?;
        let key = Watched::open(files.key.clone(), read_key)?;
        let used = Used {
            chain: chain.newest(),
            key: key.newest(),
            certified: certified(&chain.newest(), &key.newest())?,
        };
        Ok(Self {
            chain,
            key,
            used: Mutex::new(used),
        })
    }

    /// The two files change one after the other. While they do not match, the previous pair is used.
    fn newest(&self) -> Arc<CertifiedKey> {
        let (chain, key) = (self.chain.newest(), self.key.newest());
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&chain, &used.chain) || !Arc::ptr_eq(&key, &used.key) {
            match certified(&chain, &key) {
                Ok(certified) => used.certified = certified,
                Err(error) => tracing::warn!("Keeping the previous certificate: {error:#}"),
            }
            (used.chain, used.key) = (chain, key);
        }
        Arc::clone(&used.certified)
    }
}

fn read_chain(path: &Path) -> anyhow::Result<Chain> {
    let chain = CertificateDer::pem_slice_iter(&fs::read(path)?).collect::<Result<Chain, _>>()?;
    anyhow::ensure!(!chain.is_empty(), "It contains no certificate");
    Ok(chain)
}

fn read_key(path: &Path) -> anyhow::Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(&fs::read(path)?).context("It contains no private key")
}

fn certified(chain: &Chain, key: &PrivateKeyDer<'static>) -> anyhow::Result<Arc<CertifiedKey>> {
    CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider())
        .map(Arc::new)
        .context("broker.tls_certificate and broker.tls_key do not match")
}

impl fmt::Debug for Certificate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Certificate(hidden)")
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.newest())
    }
}

/// Encrypts all connections of a listener.
pub(crate) struct Encrypted<L> {
    listener: L,
    acceptor: TlsAcceptor,
}

impl<L> Encrypted<L> {
    pub(crate) fn new(listener: L, certificate: Certificate) -> Self {
        #[expect(clippy::expect_used, reason = "ring has what these versions need")]
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .expect("the versions are those of the provider")
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(certificate));
        Self {
            listener,
            acceptor: TlsAcceptor::from(Arc::new(config)),
        }
    }
}

impl<L: Listener<Io = TcpStream>> Listener for Encrypted<L> {
    type Io = Connection;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Connection, L::Addr) {
        let (stream, address) = self.listener.accept().await;
        let acceptor = self.acceptor.clone();
        (Connection::New(Some((stream, acceptor))), address)
    }

    fn local_addr(&self) -> io::Result<L::Addr> {
        self.listener.local_addr()
    }
}

pub(crate) enum Connection {
    /// Nothing has been read yet. `None` only during a transition.
    New(Option<(TcpStream, TlsAcceptor)>),
    Handshake(Accept<TcpStream>),
    Open(TlsStream<TcpStream>),
    /// Its first byte was not that of TLS.
    Refused(TcpStream),
}

impl Connection {
    /// Returns `None` if the connection was refused, so there is nothing to read or write.
    fn poll_open(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Option<Pin<&mut TlsStream<TcpStream>>>>> {
        loop {
            match self {
                Self::New(unread) => {
                    let Some((stream, _)) = unread else {
                        return Poll::Ready(Ok(None));
                    };
                    let mut first = [0];
                    let mut first = ReadBuf::new(&mut first);
                    ready!(stream.poll_peek(context, &mut first))?;
                    let encrypted = first.filled() == [HANDSHAKE];
                    let Some((stream, acceptor)) = unread.take() else {
                        return Poll::Ready(Ok(None));
                    };
                    *self = if encrypted {
                        Self::Handshake(acceptor.accept(stream))
                    } else {
                        refuse(&stream);
                        Self::Refused(stream)
                    };
                }
                Self::Handshake(handshake) => {
                    let stream = ready!(Pin::new(handshake).poll(context))?;
                    *self = Self::Open(stream);
                }
                Self::Open(_) => break,
                Self::Refused(_) => return Poll::Ready(Ok(None)),
            }
        }
        match self {
            Self::Open(stream) => Poll::Ready(Ok(Some(Pin::new(stream)))),
            _ => Poll::Ready(Ok(None)),
        }
    }
}

/// Responds in HTTP that the connection must be encrypted.
fn refuse(stream: &TcpStream) {
    let problem = Problem {
        kind: "urn:baton:https-only".to_owned(),
        title: "Not encrypted".to_owned(),
        status: 400,
        detail: "This broker speaks HTTPS only".to_owned(),
        hint: Some("begin its address with https://".to_owned()),
    };
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\
         connection: close\r\n\r\n{body}",
        body.len()
    );
    // If bytes remain unread when the connection is closed, the system discards the response. This
    // read covers any ordinary request. A larger one loses the response, which is acceptable, as is
    // a peer that reads nothing.
    let mut request = [0; 16 << 10];
    drop(stream.try_read(&mut request));
    drop(stream.try_write(answer.as_bytes()));
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match ready!(self.poll_open(context))? {
            Some(stream) => stream.poll_read(context, buffer),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match ready!(self.poll_open(context))? {
            Some(stream) => stream.poll_write(context, bytes),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Open(stream) => Pin::new(stream).poll_flush(context),
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Open(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Refused(stream) => Pin::new(stream).poll_shutdown(context),
            Self::New(_) | Self::Handshake(_) => Poll::Ready(Ok(())),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match ready!(self.poll_open(context))? {
            Some(stream) => stream.poll_write_vectored(context, slices),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
