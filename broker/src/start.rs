//! Opens the parts of the broker, from its settings.

use crate::{
    Config, Database, Listen, People,
    chunk_store::{ChunkStore, open_folder},
    engine::{Engine, Event, Leadership},
    forward,
    hub::Hub,
    listen::{self, Listener},
    metrics::Metrics,
    objects::{ChunkPlace, Objects},
    people::hash_of,
    pools::{self, Pools},
    quota::Quotas,
    sign_ins::SignIns,
    tls::Certificate,
    watched::Watched,
    web::{Access, Connections, Limits, Shared},
};
use anyhow::Context;
use baton_broker_queue::{Graces, Identity, courses::Courses};
use baton_broker_store::Store;
use baton_protocol::address::BrokerAddress;
use std::{
    collections::HashMap,
    fs::{self, File},
    hash::RandomState,
    sync::Arc,
};
use tokio::sync::{mpsc, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Requests to one pool that may wait at once.
const POOL_REQUESTS: usize = 16;
/// After how many worker graces a missing pool worker is counted as lost and may be replaced.
const LOST_GRACES: u32 = 6;
/// After how many worker graces a pool worker that starts no session counts as failed.
const FAILING_GRACES: u32 = 12;

/// What several parts of the broker use.
pub(crate) struct Base {
    pub(crate) store: Store,
    pub(crate) chunks: ChunkStore,
    pub(crate) courses: watch::Receiver<Arc<Courses>>,
    pub(crate) inbox: mpsc::Sender<Event>,
    pub(crate) leadership: watch::Sender<Leadership>,
    pub(crate) stop: CancellationToken,
}

impl Base {
    /// Access to the pools, and what runs them.
    pub(crate) fn pools(&self, config: &Config, address: &BrokerAddress) -> (Pools, pools::Runner) {
        let seats_and_handles = config.pools.iter().map(|settings| {
            let (requests, requested) = mpsc::channel(POOL_REQUESTS);
            let status = watch::Sender::default();
            let handle = pools::Handle {
                name: settings.name.clone(),
                status: status.subscribe(),
                requests,
            };
            let seat = pools::Seat {
                settings: Arc::new(settings.clone()),
                status,
                requests: requested,
            };
            (seat, handle)
        });
        let (seats, handles): (_, Vec<_>) = seats_and_handles.unzip();
        let lessons = pools::Lessons::default();
        let pools = Pools {
            handles: handles.into(),
            scaling: config.pools.iter().map(|pool| pool.scaling).collect(),
            lessons: lessons.clone(),
        };
        let runner = pools::Runner {
            seats,
            common: pools::Common {
                store: self.store.clone(),
                address: address_for_workers(config, address),
                token_folder: config.pool_tokens.clone(),
                lost_after: LOST_GRACES * config.worker_grace,
                failing_limit: FAILING_GRACES * config.worker_grace,
            },
            inbox: self.inbox.clone(),
            leadership: self.leadership.subscribe(),
            lessons,
        };
        (pools, runner)
    }

    /// What all requests share.
    pub(crate) fn shared(&self, config: &Config, access: Access, pools: Pools) -> Shared {
        Shared {
            access: Arc::new(access),
            store: self.store.clone(),
            chunks: self.chunks.clone(),
            quotas: Arc::new(Quotas::new(config.person_limit_bytes, self.store.clone())),
            inbox: self.inbox.clone(),
            courses: self.courses.clone(),
            stop: self.stop.clone(),
            connections: TaskTracker::new(),
            prefix: config.url_prefix.as_deref().map(Arc::from),
            metrics: Arc::<Metrics>::default(),
            limits: Arc::new(Limits::new(config.requests_a_second)),
            chunk_limits: Arc::new(Limits::new(config.chunk_requests_a_second)),
            most_slots: config.worker_slots,
            of_person: Arc::new(Connections::of_notebooks(config.connections_a_person)),
            requests_of_person: Arc::new(Connections::of_requests(config.connections_a_person)),
            in_flight: Arc::default(),
            submissions: Arc::default(),
            paces: Arc::default(),
            leadership: self.leadership.subscribe(),
            pools,
        }
    }

    pub(crate) fn engine(
        &self,
        config: &Config,
        shared: &Shared,
        inbox: mpsc::Receiver<Event>,
        address: String,
    ) -> Engine {
        Engine {
            store: self.store.clone(),
            graces: Graces {
                worker: config.worker_grace,
                proxy: config.proxy_grace,
                silent_proxy: config.silent_proxy_grace,
                restart: config.restart_grace,
            },
            courses: self.courses.clone(),
            inbox,
            caught_up: self.inbox.downgrade(),
            activity: config.activity.clone().unwrap_or_default(),
            metrics: Arc::clone(&shared.metrics),
            quotas: Arc::clone(&shared.quotas),
            output_limit_bytes: config.output_limit_bytes,
            leadership: self.leadership.clone(),
            address,
            account_numbers: RandomState::new(),
        }
    }
}

/// Makes this the only broker on a database that is a file.
pub(crate) fn lock_database(config: &Config) -> anyhow::Result<Option<File>> {
    match &config.database {
        Database::Sqlite(path) => listen::lock(path).map(Some),
        Database::Postgres(_) => Ok(None),
    }
}

pub(crate) async fn open_store(config: &Config) -> anyhow::Result<Store> {
    let opened = Store::open(&config.database).await;
    opened.with_context(|| match &config.database {
        Database::Sqlite(path) => format!("Failed to open the database {}", path.display()),
        Database::Postgres(_) => "Failed to open the database".to_owned(),
    })
}

pub(crate) async fn open_chunks(config: &Config) -> anyhow::Result<ChunkStore> {
    let limit = config.chunks_limit_bytes;
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
            let chunks = open_folder(config.chunks_folder.clone(), limit).await?;
            Ok(ChunkStore::Folder(chunks))
        }
    }
}

/// The file of people; `None` if there is none.
pub(crate) fn watch_people(config: &Config) -> anyhow::Result<Option<Arc<Watched<People>>>> {
    let Some(path) = &config.people else {
        return Ok(None);
    };
    let people = Watched::open(path.clone(), People::read)?;
    Ok(Some(Arc::new(people)))
}

pub(crate) fn open_hub(config: &Config) -> anyhow::Result<Option<Arc<Hub>>> {
    let Some(hub) = config.hub.clone() else {
        return Ok(None);
    };
    let hub = Hub::new(hub, config.ca_file.as_deref())?;
    Ok(Some(Arc::new(hub)))
}

/// The file of courses, or unlimited courses. `knows_people`: otherwise the broker cannot know
/// whether two notebooks belong to one person.
pub(crate) fn watch_courses(
    config: &Config,
    knows_people: bool,
) -> anyhow::Result<Watched<Courses>> {
    let jobs_per_person = if knows_people { 1 } else { u32::MAX };
    match &config.courses {
        Some(path) => Watched::open(path.clone(), |path| {
            Courses::parse(&fs::read_to_string(path)?)
        }),
        None => Ok(Watched::constant(Courses::unlimited(jobs_per_person))),
    }
}

/// Access with tokens.
pub(crate) fn open_access(
    config: &Config,
    store: &Store,
    people: Option<Arc<Watched<People>>>,
    hub: Option<Arc<Hub>>,
) -> anyhow::Result<Access> {
    Ok(Access::new(
        config.token.as_deref(),
        programs(config)?,
        people,
        store.clone(),
        hub,
        Arc::new(SignIns::new(store.clone())),
    ))
}

/// A socket that only this user can open needs no token.
pub(crate) fn access_for_all(config: &Config, with_tokens: &Arc<Access>) -> Arc<Access> {
    match &config.listen {
        Listen::Unix(_) => Arc::new(with_tokens.of_this_user()),
        Listen::Tcp(_) => Arc::clone(with_tokens),
    }
}

/// Binds the address at which the broker listens.
pub(crate) async fn listen(
    config: &Config,
) -> anyhow::Result<(Listener, Option<Certificate>, BrokerAddress)> {
    let certificate = config.tls.as_ref().map(Certificate::open).transpose()?;
    let is_encrypted = certificate.is_some();
    if let Listen::Tcp(address) = config.listen {
        listen::ensure_private(address, is_encrypted, config.behind_tls_proxy)?;
    }
    let bound = listen::bind(&config.listen, config.token.is_some(), is_encrypted);
    let (listener, address) = bound.await?;
    Ok((listener, certificate, address))
}

/// The address at which pool workers and other brokers reach this broker; empty if nothing needs it.
pub(crate) fn own_address(config: &Config, address: &BrokerAddress) -> anyhow::Result<String> {
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

/// The address at which pool workers reach this broker, unless their pool has its own.
fn address_for_workers(config: &Config, address: &BrokerAddress) -> String {
    let scheme = match &config.tls {
        Some(_) => "https",
        None => "http",
    };
    match &config.advertise {
        Some(advertised) => format!("{scheme}://{advertised}"),
        None => address.to_string(),
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
