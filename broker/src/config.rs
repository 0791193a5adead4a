//! What the broker gets from its caller at the start, and what it reports while it runs.

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

/// Not `Debug`, because it holds tokens.
#[derive(Clone)]
pub struct Config {
    pub listen: Listen,
    /// `None` for no encryption.
    pub tls: Option<TlsFiles>,
    /// A reverse proxy or the network encrypts connections.
    pub behind_tls_proxy: bool,
    /// Certificate authorities to trust for the JupyterHub, besides those of the system.
    pub ca_file: Option<PathBuf>,
    /// An additional listener for the pages, which browsers open with the token in the URL. It is already
    /// bound, so the caller knows its port.
    pub dashboard: Option<Arc<TcpListener>>,
    pub database: Database,
    /// The address at which other brokers on the same PostgreSQL reach this one. By default, the
    /// address that it listens on.
    pub advertise: Option<String>,
    /// Where chunks are stored.
    pub chunk_place: ChunkPlace,
    /// Options of the object store.
    pub object_options: ObjectOptions,
    /// The folder of the chunks.
    pub chunks_folder: PathBuf,
    pub chunks_limit_bytes: u64,
    /// How much of that one person may use.
    pub person_limit_bytes: Option<u64>,
    /// The most output of one open job that is stored. The oldest above it is deleted.
    pub output_limit_bytes: u64,
    /// An additional prefix of all paths, such as `/services/baton`, for a reverse proxy that does
    /// not strip it.
    pub url_prefix: Option<String>,
    /// How many requests of one person the pages and the API accept per second; up to four seconds'
    /// worth at once.
    pub requests_a_second: u32,
    /// The same for requests about chunks. A request that names many chunks counts as several.
    pub chunk_requests_a_second: u32,
    /// How many notebooks and live pages one person may have connected.
    pub connections_a_person: u32,
    /// How many slots one worker may offer.
    pub worker_slots: u32,
    /// Permits everything, and lets workers connect. Without a token, anyone who can connect may
    /// run code on the workers.
    pub token: Option<String>,
    /// Permits reading `/metrics` and the desired number of workers, and nothing else.
    pub monitor_token: Option<String>,
    /// The file with the tokens of people and workers.
    pub people: Option<PathBuf>,
    /// The JupyterHub that also identifies people.
    pub hub: Option<HubConfig>,
    /// The file that says what each course may use.
    pub courses: Option<PathBuf>,
    /// Sources of workers, besides the workers that connect by themselves.
    pub pools: Vec<PoolSettings>,
    /// The folder for the tokens of pool workers.
    pub pool_tokens: PathBuf,
    /// How long a worker may be disconnected before its jobs are taken from it.
    pub worker_grace: Duration,
    /// How long a proxy may take to reconnect after its connection was closed, for example because
    /// it ended. After that, its jobs are cancelled and its sessions ended.
    pub proxy_grace: Duration,
    /// The same for a proxy that stopped responding, as behind a cut network, or that only a worker has reported.
    pub silent_proxy_grace: Duration,
    /// The same for workers and proxies from before this broker's start, which may be waiting
    /// longer before their next attempt to connect.
    pub restart_grace: Duration,
    /// How long a chunk is kept that no job names.
    pub chunk_retention: Duration,
    /// How long the row of a finished job is kept for the pages.
    pub job_retention: Duration,
    /// Reports the activity after each change, so that `baton up` can end when it is not needed.
    pub activity: Option<watch::Sender<Activity>>,
}

impl Config {
    #[must_use]
    pub fn new(listen: Listen, database: impl Into<Database>, chunks_folder: PathBuf) -> Self {
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
            chunks_folder: chunks_folder.clone(),
            chunks_limit_bytes: 64 << 30,
            person_limit_bytes: None,
            output_limit_bytes: 256 << 20,
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
            pool_tokens: chunks_folder.with_file_name("pools"),
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
