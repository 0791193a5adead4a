//! What the broker is told before it starts, and what it tells its caller while it runs.

use crate::{hub::HubConfig, pools::PoolSettings};
use sqlx::postgres::PgConnectOptions;
use std::{
    fmt,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    str::FromStr,
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A socket that only this user can open.
    Unix(PathBuf),
    /// An address that others may reach needs a token.
    Tcp(SocketAddr),
}

/// A certificate with those between it and its authority, and its private key; both PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    pub certificate: PathBuf,
    pub key: PathBuf,
}

/// Where the jobs are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Database {
    /// A file, for one broker. A lock file beside it keeps a second one away.
    Sqlite(PathBuf),
    /// A server, for brokers of which one takes over when another dies.
    Postgres(PostgresUrl),
}

impl Database {
    /// `postgres://...`, or the path of a file.
    #[must_use]
    pub fn named(text: &str) -> Self {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            Self::Postgres(PostgresUrl(text.to_owned()))
        } else {
            Self::Sqlite(text.into())
        }
    }
}

impl From<PathBuf> for Database {
    fn from(path: PathBuf) -> Self {
        Self::Sqlite(path)
    }
}

/// May hold a password, so it is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl(String);

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("PostgresUrl(hidden)")
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "The address of the database is not valid: {0}\nhint: it looks like postgres://USER:PASSWORD@HOST:PORT/DATABASE; the password may stand in PGPASSWORD instead"
)]
pub struct DatabaseError(#[source] sqlx::Error);

impl PostgresUrl {
    pub(crate) fn options(&self) -> Result<PgConnectOptions, DatabaseError> {
        self.0.parse().map_err(DatabaseError)
    }
}

/// Where the broker keeps chunks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ChunkPlace {
    /// In a folder of its own, and the bytes go through it.
    #[default]
    Folder,
    /// In a bucket that notebooks and workers reach by themselves.
    Objects(ObjectAddress),
}

/// The protocol of an object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// Amazon's, which many stores speak.
    S3,
    /// Azure Blob Storage.
    Azure,
    /// Google Cloud Storage.
    Google,
}

impl ObjectKind {
    const ALL: [Self; 3] = [Self::S3, Self::Azure, Self::Google];

    /// Of its addresses.
    fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Azure => "az",
            Self::Google => "gs",
        }
    }

    /// The beginning of the environment variables that are meant for it.
    fn variables(self) -> &'static str {
        match self {
            Self::S3 => "AWS_",
            Self::Azure => "AZURE_",
            Self::Google => "GOOGLE_",
        }
    }
}

/// `s3://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or `gs://BUCKET/PREFIX`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectAddress {
    pub(crate) kind: ObjectKind,
    /// Azure's word is container.
    pub(crate) bucket: String,
    pub(crate) prefix: String,
}

impl ObjectAddress {
    #[must_use]
    pub fn kind(&self) -> ObjectKind {
        self.kind
    }
}

/// What the address does not say: endpoint and credentials, by the names of each provider's own environment variables.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ObjectOptions(Vec<(String, String)>);

impl ObjectOptions {
    /// Those of the variables that are meant for programs of the providers, too.
    pub fn of(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let is_meant = |(name, _): &(String, String)| {
            let mut kinds = ObjectKind::ALL.into_iter();
            kinds.any(|kind| name.starts_with(kind.variables()))
        };
        Self(variables.into_iter().filter(is_meant).collect())
    }

    pub(crate) fn of_kind(&self, kind: ObjectKind) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter();
        all.map(|(name, value)| (name.as_str(), value.as_str()))
            .filter(move |(name, value)| name.starts_with(kind.variables()) && !value.is_empty())
    }
}

/// They are secret.
impl fmt::Debug for ObjectOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ObjectOptions(hidden)")
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is neither `folder` nor the address of a bucket, such as s3://BUCKET/PREFIX, az://CONTAINER/PREFIX or gs://BUCKET/PREFIX"
)]
pub struct ChunkPlaceError(String);

impl FromStr for ChunkPlace {
    type Err = ChunkPlaceError;

    fn from_str(text: &str) -> Result<Self, ChunkPlaceError> {
        if text == "folder" {
            return Ok(Self::Folder);
        }
        let wrong = || ChunkPlaceError(text.to_owned());
        let (scheme, address) = text.split_once("://").ok_or_else(wrong)?;
        let mut kinds = ObjectKind::ALL.into_iter();
        let kind = kinds.find(|kind| kind.scheme() == scheme);
        let kind = kind.ok_or_else(wrong)?;
        let (bucket, prefix) = address.split_once('/').unwrap_or((address, ""));
        let is_plain = |part: &str, more: &[u8]| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || more.contains(&byte);
            part.bytes().all(is_plain)
        };
        let prefix = prefix.trim_end_matches('/');
        let are_parts = prefix.is_empty()
            || prefix
                .split('/')
                .all(|part| !["", ".", ".."].contains(&part));
        let is_address = !bucket.is_empty()
            && is_plain(bucket, b".-_")
            && is_plain(prefix, b".-_/")
            && are_parts;
        if !is_address {
            return Err(wrong());
        }
        Ok(Self::Objects(ObjectAddress {
            kind,
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        }))
    }
}

impl fmt::Display for ChunkPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder => formatter.write_str("folder"),
            Self::Objects(address) => address.fmt(formatter),
        }
    }
}

impl fmt::Display for ObjectAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}://{}", self.kind.scheme(), self.bucket)?;
        match self.prefix.is_empty() {
            true => Ok(()),
            false => write!(formatter, "/{}", self.prefix),
        }
    }
}

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

/// What keeps a broker busy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Activity {
    /// Connected now.
    pub proxies: usize,
    /// Queued or running.
    pub unfinished_jobs: usize,
}

impl Activity {
    #[must_use]
    pub fn is_idle(self) -> bool {
        self == Self::default()
    }
}
