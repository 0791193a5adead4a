//! The broker: queue, policy, history, API and dashboard.
//!
//! Proxies and workers connect with one WebSocket each. Their messages become [`engine`] events;
//! [`baton_broker_queue`] decides; [`baton_broker_store`] stores the decisions in a database before anything is
//! sent. Chunks of state bypass the loop: [`web`] handles them, and also serves the pages.
//!
//! **Invariant:** all state is in the database and in the chunk folder or object store, so the
//! process may be killed at any instant. The broker never decodes a chunk.

mod buckets;
mod chunk_store;
mod clock;
mod config;
mod engine;
mod forward;
mod hub;
mod in_flight;
mod journal;
mod listen;
mod metrics;
mod minutes;
mod objects;
mod outputs;
mod pace;
mod past;
mod people;
mod pools;
mod quota;
mod scale;
mod screen;
mod sign_ins;
mod submissions;
mod sweep;
mod timetable;
mod tls;
mod watched;
mod web;
mod words;

pub use baton_broker_queue::{Activity, Role, courses::NeedsSection};
pub use baton_broker_store::{Database, DatabaseError, PostgresUrl};
pub use config::Config;
pub use hub::HubConfig;
pub use listen::Listen;
pub use objects::{
    ChunkPlace, ChunkPlaceError, ObjectAddress, ObjectKind, ObjectOptions, check_objects,
};
pub use people::{People, Person};
pub use pools::{OffersSection, PoolSettings};
pub use tls::TlsFiles;
pub use web::{ChunkListener, serve_chunks};

use anyhow::Context;
use axum::serve::ListenerExt;
use baton_broker_queue::{Graces, Identity, courses::Courses};
use baton_broker_store::Store;
use baton_chunks::ChunkDirectory;
use baton_protocol::address::BrokerAddress;
use chunk_store::ChunkStore;
use engine::{Engine, INBOX, Leadership};
use forward::Gate;
use hub::Hub;
use listen::Listener;
use metrics::Metrics;
use objects::Objects;
use people::hash_of;
use pools::Pools;
use quota::Quotas;
use sign_ins::SignIns;
use std::{collections::HashMap, fs, hash::RandomState, sync::Arc, time::Duration};
use tls::{Certificate, Encrypted};
use tokio::sync::{mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use watched::Watched;
use web::{Access, Connections, Limits, Shared};

/// How long shutdown waits for connections. Peers are asked to reconnect; a peer that does not read
/// this message is cut off.
const GOODBYE: Duration = Duration::from_secs(3);
/// Requests to pools that may wait at once.
const POOL_REQUESTS: usize = 16;
/// After how many worker graces a missing pool worker is counted as lost and may be replaced.
const LOST_GRACES: u32 = 6;
/// After how many worker graces a pool worker that starts no session counts as failed.
const FAILING_GRACES: u32 = 12;

/// Serves until `shutdown` resolves, or until a permanent failure.
///
/// `ready` is called with the address as soon as connections are accepted. Dropping the future ends
/// the broker as a kill would: nothing that was already sent to a peer is lost.
pub async fn run(
    config: Config,
    ready: impl FnOnce(BrokerAddress),
    shutdown: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    // The lock on the database is released last, after everything that writes.
    let _alone = match &config.database {
        Database::Sqlite(path) => Some(listen::lock(path)?),
        Database::Postgres(_) => None,
    };
    let stop = CancellationToken::new();
    let _stop_when_dropped = stop.clone().drop_guard();

    let store = Store::open(&config.database)
        .await
        .with_context(|| match &config.database {
            Database::Sqlite(path) => format!("Failed to open the database {}", path.display()),
            Database::Postgres(_) => "Failed to open the database".to_owned(),
        })?;
    let chunks = open_chunks(&config).await?;
    let programs = programs(&config)?;

    let people = match &config.people {
        Some(path) => Some(Arc::new(Watched::open(path.clone(), People::read)?)),
        None => None,
    };
    let courses = match &config.courses {
        Some(path) => Some(Watched::open(path.clone(), |path| {
            Courses::parse(&fs::read_to_string(path)?)
        })?),
        None => None,
    };
    let hub = match config.hub.clone() {
        Some(hub) => Some(Arc::new(Hub::new(hub, config.ca_file.as_deref())?)),
        None => None,
    };
    // Without a list of people, the broker cannot know whether two notebooks belong to one person.
    let knows_people = people.is_some() || hub.is_some();
    let jobs_per_person = if knows_people { 1 } else { u32::MAX };
    let unlimited = watch::Sender::new(Arc::new(Courses::unlimited(jobs_per_person)));

    let certificate = config.tls.as_ref().map(Certificate::open).transpose()?;
    if let Listen::Tcp(address) = config.listen {
        listen::ensure_private(address, certificate.is_some(), config.behind_tls_proxy)?;
    }
    let bound = listen::bind(
        &config.listen,
        config.token.is_some(),
        certificate.is_some(),
    );
    let (listener, address) = bound.await?;
    let (inbox, events) = mpsc::channel(INBOX);
    let scheme = match &config.tls {
        Some(_) => "https",
        None => "http",
    };
    let for_workers = match &config.advertise {
        Some(advertised) => format!("{scheme}://{advertised}"),
        None => address.to_string(),
    };
    let own_address = own_address(&config, &address)?;
    let leadership = watch::Sender::new(Leadership::Unknown);
    let metrics = Arc::<Metrics>::default();
    let quotas = Arc::new(Quotas::new(config.person_limit_bytes, store.clone()));
    let engine = Engine {
        store: store.clone(),
        graces: Graces {
            worker: config.worker_grace,
            proxy: config.proxy_grace,
            silent_proxy: config.silent_proxy_grace,
            restart: config.restart_grace,
        },
        courses: courses
            .as_ref()
            .map_or_else(|| unlimited.subscribe(), Watched::subscribe),
        inbox: events,
        caught_up: inbox.downgrade(),
        activity: config.activity.clone().unwrap_or_default(),
        metrics: Arc::clone(&metrics),
        quotas: Arc::clone(&quotas),
        output_limit_bytes: config.output_limit_bytes,
        leadership: leadership.clone(),
        address: own_address,
        account_numbers: RandomState::new(),
    };
    let terms = sweep::Terms {
        chunks: config.chunk_retention,
        jobs: config.job_retention,
    };
    let connections = TaskTracker::new();
    let sign_ins = Arc::new(SignIns::new(store.clone()));
    let access = Access::new(
        config.token.as_deref(),
        programs,
        people.clone(),
        store.clone(),
        hub,
        sign_ins,
    );
    let for_all = match &config.listen {
        Listen::Unix(_) => access.of_this_user(),
        Listen::Tcp(_) => access.clone(),
    };
    let looks = minutes::run(inbox.clone(), store.clone());
    let (requests, requested) = mpsc::channel(POOL_REQUESTS);
    let pool_status = watch::Sender::default();
    let lessons = pools::Lessons::default();
    let pools = Pools {
        names: config.pools.iter().map(|pool| pool.name.clone()).collect(),
        terms: config.pools.iter().map(|pool| pool.terms).collect(),
        lessons: lessons.clone(),
        status: pool_status.subscribe(),
        requests,
    };
    let pools_run = pools::run(pools::Runner {
        settings: config.pools.into_iter().map(Arc::new).collect(),
        store: store.clone(),
        inbox: inbox.clone(),
        leadership: leadership.subscribe(),
        status: pool_status,
        requests: requested,
        address: for_workers,
        token_folder: config.pool_tokens,
        lost_after: LOST_GRACES * config.worker_grace,
        failing_limit: FAILING_GRACES * config.worker_grace,
        lessons,
        floors: Vec::new(),
    });
    let shared = Shared {
        access: Arc::new(for_all),
        store: store.clone(),
        chunks: chunks.clone(),
        quotas,
        inbox,
        courses: engine.courses.clone(),
        stop: stop.clone(),
        connections: connections.clone(),
        prefix: config.url_prefix.as_deref().map(Arc::from),
        metrics,
        limits: Arc::new(Limits::new(config.requests_a_second)),
        chunk_limits: Arc::new(Limits::new(config.chunk_requests_a_second)),
        most_slots: config.worker_slots,
        of_person: Arc::new(Connections::of_notebooks(config.connections_a_person)),
        requests_of_person: Arc::new(Connections::of_requests(config.connections_a_person)),
        in_flight: Arc::default(),
        submissions: Arc::default(),
        leadership: leadership.subscribe(),
        pools,
    };

    let on_dashboard = Shared {
        access: Arc::new(access),
        ..shared.clone()
    };

    tracing::info!("The broker listens on {address}");
    ready(address);
    let ended = tokio::select! {
        () = shutdown => Ok(()),
        ended = engine::run(engine, stop.clone()) => ended.context("Failed to read the jobs"),
        () = serve(listener, certificate, shared, &leadership, stop.clone()) => Ok(()),
        ended = serve_dashboard(config.dashboard, on_dashboard, &leadership, stop.clone()) => ended.context("The dashboard has stopped"),
        () = keep(people.as_deref()) => Ok(()),
        () = keep(courses.as_ref()) => Ok(()),
        () = count_chunks(chunks.clone(), leadership.subscribe()) => Ok(()),
        () = sweep::run(store.clone(), chunks, terms) => Ok(()),
        () = store.maintain() => Ok(()),
        () = looks => Ok(()),
        () = pools_run => Ok(()),
    };
    stop.cancel();
    connections.close();
    if tokio::time::timeout(GOODBYE, connections.wait())
        .await
        .is_err()
    {
        tracing::warn!("Shutdown timed out with connections still open");
    }
    store
        .close()
        .await
        .context("Failed to close the database")?;
    ended
}

/// The address at which pool workers and other brokers reach this broker; empty if nothing needs it.
fn own_address(config: &Config, address: &BrokerAddress) -> anyhow::Result<String> {
    let own_address = config
        .advertise
        .clone()
        .or_else(|| forward::address(&config.listen, address));
    if own_address.is_none()
        && let Some(pool) = config.pools.iter().find(|pool| pool.gives_own_address())
    {
        anyhow::bail!(
            "The workers of pool {} need an address of this broker: set broker.advertise to its HOST:PORT",
            pool.name
        );
    }
    match &config.database {
        Database::Sqlite(_) => Ok(own_address.unwrap_or_default()),
        Database::Postgres(_) => own_address.context(
            "Other brokers need an address of this broker: set broker.advertise to its HOST:PORT",
        ),
    }
}

async fn open_chunks(config: &Config) -> anyhow::Result<ChunkStore> {
    let limit = config.blob_limit_bytes;
    match &config.chunk_place {
        ChunkPlace::Objects(address) => {
            let objects = Objects::open(
                address,
                &config.object_options,
                config.ca_file.clone(),
                limit,
            )
            .with_context(|| format!("Failed to open the chunks in {address}"))?;
            // The object store may be unreachable for a while. Requests that need it then wait.
            match objects.check().await {
                Ok(()) => tracing::info!("Chunks are in {address}"),
                Err(error) => tracing::error!("Chunks cannot be kept in {address}: {error}"),
            }
            Ok(ChunkStore::Objects(Arc::new(objects)))
        }
        ChunkPlace::Folder => {
            let blobs = config.blobs.clone();
            let chunks = tokio::task::spawn_blocking(move || ChunkDirectory::open(blobs, limit))
                .await?
                .with_context(|| {
                    format!("Failed to open the chunks in {}", config.blobs.display())
                })?;
            Ok(ChunkStore::Folder(Arc::new(chunks)))
        }
    }
}

/// Recounts the chunks after this broker becomes the leader again, because another one stored some.
async fn count_chunks(chunks: ChunkStore, mut leadership: watch::Receiver<Leadership>) {
    // Each sweep counts the chunks of an object store.
    let ChunkStore::Folder(chunks) = chunks else {
        return std::future::pending().await;
    };
    let is_follower = |leadership: &Leadership| matches!(leadership, Leadership::Follower { .. });
    loop {
        // The senders live as long as the broker, so an error here means that the broker is ending.
        drop(leadership.wait_for(is_follower).await);
        drop(
            leadership
                .wait_for(|leadership| *leadership == Leadership::Leader)
                .await,
        );
        let chunks = Arc::clone(&chunks);
        let counted = tokio::task::spawn_blocking(move || chunks.list().map(drop));
        if let Ok(Err(error)) = counted.await {
            tracing::error!("Failed to count the chunks: {error}");
        }
    }
}

async fn keep<T>(file: Option<&Watched<T>>) {
    match file {
        Some(file) => file.keep().await,
        None => std::future::pending().await,
    }
}

/// The identities of the tokens in the settings, by the token's hash.
fn programs(config: &Config) -> anyhow::Result<HashMap<String, Identity>> {
    let mut programs = HashMap::new();
    let own = config.token.as_deref().map(hash_of);
    let mut add = |token: &str, whose: &str, identity| {
        let hash = hash_of(token);
        let is_new = own.as_ref() != Some(&hash) && programs.insert(hash, identity).is_none();
        anyhow::ensure!(
            is_new,
            "The token of {whose} is also used for something else: each purpose needs its own token\nhint: openssl rand -hex 32"
        );
        Ok(())
    };
    for pool in &config.pools {
        if let Some(token) = pool.joining_token()? {
            let name = pool.name.clone();
            add(&token, &format!("pool {name}"), Identity::of_joining(name))?;
        }
    }
    if let Some(token) = &config.monitor_token {
        add(token, "monitors", Identity::of_monitor())?;
    }
    Ok(programs)
}

async fn serve_dashboard(
    listener: Option<Arc<std::net::TcpListener>>,
    shared: Shared,
    leadership: &watch::Sender<Leadership>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let Some(listener) = listener else {
        return std::future::pending().await;
    };
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener.try_clone()?)?;
    serve(Listener::Tcp(listener), None, shared, leadership, stop).await;
    Ok(())
}

async fn serve(
    listener: Listener,
    certificate: Option<Certificate>,
    shared: Shared,
    leadership: &watch::Sender<Leadership>,
    stop: CancellationToken,
) {
    let router = web::router(shared);
    match listener {
        Listener::Unix(listener, _socket_file) => {
            web::serve(Gate::new(listener, leadership, stop.clone()), router, stop).await;
        }
        Listener::Tcp(listener) => {
            let listener = listener.tap_io(|stream| {
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(
                        "Failed to turn off Nagle's algorithm for a connection: {error}"
                    );
                }
            });
            let gate = Gate::new(listener, leadership, stop.clone());
            match certificate {
                Some(certificate) => {
                    let encrypted = Encrypted::new(gate, certificate);
                    web::serve(encrypted, web::over_tls(router), stop).await;
                }
                None => web::serve(gate, router, stop).await,
            }
        }
    }
}
