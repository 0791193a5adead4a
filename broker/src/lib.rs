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
mod desired_workers;
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
mod screen;
mod sign_ins;
mod start;
mod submissions;
mod sweep;
mod timetable;
mod tls;
mod watched;
mod web;
mod words;

pub use baton_broker_queue::{
    Activity, Role,
    courses::{NeedsSection, moment_ms},
};
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
use baton_protocol::address::BrokerAddress;
use chunk_store::ChunkStore;
use engine::{INBOX, Leadership};
use forward::Gate;
use listen::Listener;
use start::Base;
use std::{sync::Arc, time::Duration};
use tls::{Certificate, Encrypted};
use tokio::{
    sync::{mpsc, watch},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use watched::Watched;
use web::Shared;

/// How long shutdown waits for connections. Peers are asked to reconnect; a peer that does not read
/// this message is cut off.
const GOODBYE: Duration = Duration::from_secs(3);

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
    let _alone = start::lock_database(&config)?;
    let stop = CancellationToken::new();
    let _stop_when_dropped = stop.clone().drop_guard();

    let store = start::open_store(&config).await?;
    let chunks = start::open_chunks(&config).await?;
    let people = start::watch_people(&config)?;
    let hub = start::open_hub(&config)?;
    let courses = start::watch_courses(&config, people.is_some() || hub.is_some())?;
    let access = start::open_access(&config, &store, people.clone(), hub)?;
    let (listener, certificate, address) = start::listen(&config).await?;
    let own_address = start::own_address(&config, &address)?;

    let (inbox, events) = mpsc::channel(INBOX);
    let base = Base {
        store: store.clone(),
        chunks: chunks.clone(),
        courses: courses.subscribe(),
        inbox: inbox.clone(),
        leadership: watch::Sender::new(Leadership::Unknown),
        stop: stop.clone(),
    };
    let leadership = &base.leadership;
    let (pools, pool_runner) = base.pools(&config, &address);
    let on_dashboard = base.shared(&config, access, pools);
    let shared = Shared {
        access: start::access_for_all(&config, &on_dashboard.access),
        ..on_dashboard.clone()
    };
    let connections = shared.connections.clone();
    let engine = base.engine(&config, &shared, events, own_address);
    let retention = sweep::Retention {
        chunks: config.chunk_retention,
        jobs: config.job_retention,
    };

    tracing::info!("The broker listens on {address}");
    ready(address);
    let ended = tokio::select! {
        () = shutdown => Ok(()),
        ended = engine::run(engine, stop.clone()) => ended.context("Failed to read the jobs"),
        () = serve(listener, certificate, shared, leadership, stop.clone()) => Ok(()),
        ended = serve_dashboard(config.dashboard, on_dashboard, leadership, stop.clone()) => ended.context("The dashboard has stopped"),
        () = keep(people.as_deref()) => Ok(()),
        () = courses.keep() => Ok(()),
        () = count_chunks(chunks.clone(), leadership.subscribe()) => Ok(()),
        () = sweep::run(store.clone(), chunks, retention, inbox.clone()) => Ok(()),
        () = store.maintain() => Ok(()),
        () = minutes::run(inbox, store.clone()) => Ok(()),
        () = pools::run(pool_runner) => Ok(()),
    };
    stop.cancel();
    end_connections(&connections).await;
    store
        .close()
        .await
        .context("Failed to close the database")?;
    ended
}

/// Waits until the peers have been asked to reconnect.
async fn end_connections(connections: &TaskTracker) {
    connections.close();
    if timeout(GOODBYE, connections.wait()).await.is_err() {
        tracing::warn!("Shutdown timed out with connections still open");
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
