//! What the broker is told before it starts, and what it tells its caller while it runs.

use crate::{
    hub::HubConfig,
    listen::Listen,
    objects::{ChunkPlace, ObjectOptions},
    pools::PoolSettings,
    tls::TlsFiles,
};
use baton_broker_queue::Activity;
use baton_broker_store::Database;
use std::{net::TcpListener, path::PathBuf, sync::Arc, time::Duration};
use tokio::sync::watch;

/// Not `Debug`: it holds tokens.
#[derive(Clone)]
pub struct Config {
    pub listen: Listen,
    /// For TLS; `None`: no encryption.
    pub tls: Option<TlsFiles>,
    /// A proxy in front of it encrypts, or the network does.
    pub behind_tls_proxy: bool,
    /// Authorities that count for the JupyterHub, besides those that the system trusts.
    pub ca_file: Option<PathBuf>,
    /// Where people see the pages besides, with the token in the address. Bound already, so that the caller knows
    /// the port.
    pub dashboard: Option<Arc<TcpListener>>,
    pub database: Database,
    /// Where other brokers on the same PostgreSQL reach this one; where it listens when nothing is said.
    pub advertise: Option<String>,
    /// Where chunks are kept.
    pub chunk_place: ChunkPlace,
    /// For an object store.
    pub object_options: ObjectOptions,
    /// The folder of the chunks.
    pub blobs: PathBuf,
    pub blob_limit_bytes: u64,
    /// How much of that may be one person's.
    pub person_limit_bytes: Option<u64>,
    /// Where everything is besides at the root, for example `/services/baton`, for a proxy in front that keeps it.
    pub url_prefix: Option<String>,
    /// How often the token of a person may ask the pages and the API; four seconds' worth at once.
    pub requests_a_second: u32,
    /// The same for requests of their notebooks about chunks. One that names many chunks counts as several.
    pub chunk_requests_a_second: u32,
    /// How many notebooks, and pages that change by themselves, a person may have connected.
    pub connections_a_person: u32,
    /// How many cells at once one worker may offer to run.
    pub worker_slots: u32,
    /// Opens everything, and workers come with it. Without one, whoever can connect may run code on the workers.
    pub token: Option<String>,
    /// Reads `/metrics` and how many workers pools should have, and opens nothing else.
    pub monitor_token: Option<String>,
    /// Who else has a token, and what for.
    pub people: Option<PathBuf>,
    /// The JupyterHub that knows who has which token besides.
    pub hub: Option<HubConfig>,
    /// What each course may use.
    pub courses: Option<PathBuf>,
    /// Where workers come from besides those that connect by themselves.
    pub pools: Vec<PoolSettings>,
    /// Where the tokens of their workers are kept.
    pub pool_tokens: PathBuf,
    /// How long a worker may be gone before its jobs are taken from it.
    pub worker_grace: Duration,
    /// How long a proxy whose connection was closed, as by its end, may take to connect again before its jobs are
    /// cancelled and its sessions ended.
    pub proxy_grace: Duration,
    /// The same for a proxy that fell silent, as behind a cut network, and for one that only a worker has named.
    pub silent_proxy_grace: Duration,
    /// The same for workers and proxies that were there before this broker started: their next attempt to connect
    /// may be further away.
    pub restart_grace: Duration,
    /// How long a chunk is kept that no job names.
    pub chunk_retention: Duration,
    /// How long the row of a finished job is kept for the pages.
    pub job_retention: Duration,
    /// Told whenever it changes, so that `baton up` can end when nobody needs it.
    pub activity: Option<watch::Sender<Activity>>,
}

impl Config {
    #[must_use]
    pub fn new(listen: Listen, database: impl Into<Database>, blobs: PathBuf) -> Self {
        Self {
            listen,
            tls: None,
            behind_tls_proxy: false,
            ca_file: None,
            dashboard: None,
            database: database.into(),
            advertise: None,
            chunk_place: ChunkPlace::Folder,
            object_options: ObjectOptions::default(),
            blobs: blobs.clone(),
            blob_limit_bytes: 64 << 30,
            person_limit_bytes: None,
            url_prefix: None,
            requests_a_second: 50,
            chunk_requests_a_second: 500,
            connections_a_person: 100,
            worker_slots: 64,
            token: None,
            monitor_token: None,
            people: None,
            hub: None,
            courses: None,
            pools: Vec::new(),
            pool_tokens: blobs.with_file_name("pools"),
            worker_grace: Duration::from_secs(5),
            proxy_grace: Duration::from_secs(5),
            silent_proxy_grace: Duration::from_secs(30),
            restart_grace: Duration::from_secs(30),
            chunk_retention: Duration::from_secs(600),
            job_retention: Duration::from_secs(7 * 24 * 3600),
            activity: None,
        }
    }
}
