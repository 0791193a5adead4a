//! Transfers the bytes of chunks in a separate process with its own port, so that large state does
//! not slow down the process that runs the queue.
//!
//! A reverse proxy in front of both sends `/v1/chunks` and `/v1/chunks/get` here, and everything
//! else to the broker. Both processes use the same folder. The broker decides for each request who
//! may read and who may upload: the listener asks it with the broker's own token, and passes on the
//! client's token.
//!
//! **Invariant:** a chunk has a row in the broker's database before this process writes its file.

use super::{
    Connections, Meter, Shared,
    access::Caller,
    chunk_error::ChunkError,
    chunks::{self, ChunkReader, NAMES_BYTES, Named, Party},
    guests::Guest,
    headers,
    limits::limited,
    serve,
};
use crate::{
    TlsFiles,
    chunk_store::open_folder,
    in_flight::InFlight,
    listen,
    tls::{Certificate, Encrypted},
    web::{ApiError, problem::problem},
};
use anyhow::Context;
use axum::{
    Extension, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, FromRequestParts, Query, State},
    http::{StatusCode, header, request::Parts},
    middleware,
    response::{IntoResponse, Response},
    routing::{get, post, put},
};
use baton_broker_queue::{Account, Identity};
use baton_chunks::ChunkDirectory;
use baton_protocol::{ChunkHash, decode, encode};
use baton_transport::tls;
use serde::{Serialize, de::DeserializeOwned};
use std::{convert::Infallible, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};
use tokio::{net::TcpListener, time::interval};
use tokio_util::sync::CancellationToken;

/// The header with the authorization of the listener's client.
const FOR: &str = "baton-for";
/// The broker also deletes chunks, so the listener counts them again.
const COUNT_EVERY: Duration = Duration::from_secs(60);

/// Not `Debug`, because it holds the token.
#[derive(Clone)]
pub struct ChunkListener {
    pub listen: SocketAddr,
    /// `None` for no encryption.
    pub tls: Option<TlsFiles>,
    /// A reverse proxy or the network encrypts connections.
    pub behind_tls_proxy: bool,
    /// The broker's folder of chunks.
    pub chunks_folder: PathBuf,
    pub chunks_limit_bytes: u64,
    /// How many notebooks each person may have connected.
    pub connections_a_person: u32,
    /// The broker's address: `https://HOST:PORT` or `http://HOST:PORT`.
    pub broker: String,
    /// Certificate authorities to trust for the broker, besides those of the system.
    pub ca_file: Option<PathBuf>,
    /// The broker's own token.
    pub token: String,
}

/// Serves until `shutdown` resolves. `ready` is called with the address.
///
/// # Errors
/// If the folder or the port cannot be opened.
pub async fn serve_chunks(
    config: ChunkListener,
    ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    let chunks = open_folder(config.chunks_folder.clone(), config.chunks_limit_bytes).await?;
    let certificate = config.tls.as_ref().map(Certificate::open).transpose()?;
    listen::ensure_private(
        config.listen,
        certificate.is_some(),
        config.behind_tls_proxy,
    )?;
    let listener = TcpListener::bind(config.listen)
        .await
        .with_context(|| format!("Failed to listen on {}", config.listen))?;
    let address = listener.local_addr().context("Failed to read the port")?;
    let service = ChunkService {
        chunks: Arc::clone(&chunks),
        of_person: Arc::new(Connections::of_requests(config.connections_a_person)),
        in_flight: Arc::default(),
        broker: Arc::new(Broker {
            client: reqwest::Client::builder()
                .no_proxy()
                .tls_backend_preconfigured(tls::client(config.ca_file.as_deref())?)
                .build()?,
            address: config.broker,
            token: config.token,
        }),
    };
    let router = Router::new()
        .route("/v1/chunks/get", post(give))
        .layer(DefaultBodyLimit::max(NAMES_BYTES))
        .route("/v1/chunks", put(take).layer(DefaultBodyLimit::disable()))
        .route("/health/live", get("live\n"))
        .with_state(service)
        .layer(middleware::from_fn(headers::secure));
    let stop = CancellationToken::new();
    let _stop_when_dropped = stop.clone().drop_guard();
    tracing::info!("Serving chunks on {address}");
    ready(address);
    let serve = async {
        match certificate {
            Some(certificate) => {
                serve(Encrypted::new(listener, certificate), router, stop.clone()).await;
            }
            None => serve(listener, router, stop.clone()).await,
        }
    };
    tokio::select! {
        () = shutdown => {}
        () = serve => {}
        () = keep_counted(chunks) => {}
    }
    Ok(())
}

async fn keep_counted(chunks: Arc<ChunkDirectory>) {
    let mut ticks = interval(COUNT_EVERY);
    loop {
        ticks.tick().await;
        let chunks = Arc::clone(&chunks);
        let counted = tokio::task::spawn_blocking(move || chunks.list().map(drop));
        if let Ok(Err(error)) = counted.await {
            tracing::error!("Failed to count the chunks: {error}");
        }
    }
}

#[derive(Clone)]
struct ChunkService {
    chunks: Arc<ChunkDirectory>,
    of_person: Arc<Connections>,
    in_flight: Arc<InFlight>,
    broker: Arc<Broker>,
}

impl ChunkService {
    /// The broker has admitted this person's request.
    fn admit(&self, asker: &Asker, person: Option<&str>) -> Result<(), ApiError> {
        match &asker.guest {
            Some(guest) => guest.admit(person, &self.of_person),
            None => Ok(()),
        }
    }
}

async fn take(
    State(service): State<ChunkService>,
    asker: Asker,
    body: Body,
) -> Result<StatusCode, ChunkError> {
    let person = service.broker.enter(&asker).await?;
    service.admit(&asker, person.as_deref())?;
    let (meter, body) = Meter::of_body(person.as_deref(), &service.in_flight, body);
    let mut reader = ChunkReader::of(body);
    while let Some(batch) = reader.next_batch().await? {
        let (named, batch) = chunks::named(batch).await?;
        service.broker.hold(&asker, &named).await?;
        chunks::write(&service.chunks, batch).await?;
        drop(meter.finished());
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn give(
    State(service): State<ChunkService>,
    asker: Asker,
    body: Bytes,
) -> Result<Response, ChunkError> {
    let hashes: Vec<ChunkHash> = decode(&body)?;
    let (person, held) = service.broker.held(&asker, &hashes).await?;
    service.admit(&asker, person.as_deref())?;
    chunks::read(&service.chunks, hashes, held).await
}

/// The client of the listener, with what it sent to identify itself.
struct Asker {
    party: String,
    authorization: Option<header::HeaderValue>,
    guest: Option<Guest>,
}

impl<S: Sync> FromRequestParts<S> for Asker {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self {
            party: parts.uri.query().unwrap_or_default().to_owned(),
            authorization: parts.headers.get(header::AUTHORIZATION).cloned(),
            guest: parts.extensions.get::<Guest>().cloned(),
        })
    }
}

/// The broker, which decides about each request.
struct Broker {
    client: reqwest::Client,
    address: String,
    token: String,
}

impl Broker {
    /// The person who may upload now, if that person is limited.
    async fn enter(&self, asker: &Asker) -> Result<Option<String>, ChunkError> {
        self.ask(ENTER, asker, &()).await
    }

    async fn held(
        &self,
        asker: &Asker,
        hashes: &[ChunkHash],
    ) -> Result<(Option<String>, Vec<ChunkHash>), ChunkError> {
        self.ask(HELD, asker, &hashes).await
    }

    async fn hold(&self, asker: &Asker, named: &[Named]) -> Result<(), ChunkError> {
        self.ask(HOLD, asker, &named).await
    }

    async fn ask<Answer: DeserializeOwned>(
        &self,
        path: &str,
        asker: &Asker,
        question: &impl Serialize,
    ) -> Result<Answer, ChunkError> {
        let url = format!("{}{path}?{}", self.address, asker.party);
        let mut request = self.client.post(url).bearer_auth(&self.token);
        if let Some(authorization) = &asker.authorization {
            request = request.header(FOR, authorization);
        }
        let broken = |source| {
            let address = self.address.clone();
            match tls::problem(&source) {
                Some(problem) => ChunkError::Unsafe { address, problem },
                None => ChunkError::NoBroker { address, source },
            }
        };
        let answer = request.body(encode(question)).send().await;
        let answer = answer.map_err(broken)?;
        let status = answer.status();
        if status == StatusCode::TOO_MANY_REQUESTS {
            return Err(ChunkError::TooOften);
        }
        let body = answer.bytes().await.map_err(broken)?;
        if !status.is_success() {
            let unknown = || {
                problem(
                    status,
                    "urn:baton:broker",
                    format!("The broker answered {status}"),
                    None,
                )
            };
            let problem = serde_json::from_slice(&body).unwrap_or_else(|_| unknown());
            return Err(ChunkError::OfBroker { status, problem });
        }
        Ok(decode(&body)?)
    }
}

// ---- the part that runs in the broker

const ENTER: &str = "/v1/chunks/enter";
const HELD: &str = "/v1/chunks/held";
const HOLD: &str = "/v1/chunks/hold";

/// Routes for a listener, which has the broker's own token.
pub(super) fn questions() -> Router<Shared> {
    Router::new()
        .route(ENTER, post(enter))
        .route(HELD, post(held))
        .route(HOLD, post(hold))
        .layer(DefaultBodyLimit::max(NAMES_BYTES))
}

/// The client of the listener.
struct For {
    account: Account,
    identity: Identity,
}

impl FromRequestParts<Shared> for For {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Response> {
        let Extension(caller) = Extension::<Caller>::from_request_parts(parts, shared)
            .await
            .map_err(IntoResponse::into_response)?;
        // Only the listener may claim that an account holds a chunk without sending its bytes here.
        if !caller.identity.is_operator() {
            return Err(ApiError::AdminsOnly.into_response());
        }
        let Query(party) = Query::<Party>::from_request_parts(parts, shared)
            .await
            .map_err(IntoResponse::into_response)?;
        let from = (&parts.extensions, &parts.headers);
        let asker = shared
            .access
            .of_authorization(parts.headers.get(FOR), from)
            .await;
        let asker = asker.map_err(IntoResponse::into_response)?;
        let account = chunks::account(shared, &asker, party).await;
        let account = account.map_err(IntoResponse::into_response)?;
        let identity = asker.identity;
        Ok(Self { account, identity })
    }
}

/// The first query of an upload. It counts as the client's request.
async fn enter(
    State(shared): State<Shared>,
    For { identity, .. }: For,
) -> Result<Vec<u8>, ChunkError> {
    chunks::in_folder(&shared)?;
    chunks::admit(&shared, &identity)?;
    Ok(encode(&limited(&identity)))
}

/// The only query of a download.
async fn held(
    State(shared): State<Shared>,
    For { account, identity }: For,
    body: Bytes,
) -> Result<Vec<u8>, ChunkError> {
    chunks::admit(&shared, &identity)?;
    let hashes: Vec<ChunkHash> = decode(&body)?;
    chunks::charge(&shared, &identity, hashes.len());
    chunks::in_folder(&shared)?;
    let held = shared.store.chunks().held(&account, &hashes).await?;
    let held: Vec<ChunkHash> = held.into_keys().collect();
    Ok(encode(&(limited(&identity), held)))
}

async fn hold(
    State(shared): State<Shared>,
    For { account, identity }: For,
    body: Bytes,
) -> Result<Vec<u8>, ChunkError> {
    chunks::in_folder(&shared)?;
    let named: Vec<Named> = decode(&body)?;
    chunks::charge(&shared, &identity, named.len());
    chunks::hold(&shared, &account, &named).await?;
    Ok(encode(&()))
}
