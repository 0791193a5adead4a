//! A broker in this process, and one in a separate process that can be killed.

use super::{LONG_GRACE, wait_until, within};
use baton_broker::{Activity, Config, Database, Listen, ObjectOptions, PoolSettings, TlsFiles};
use baton_protocol::address::BrokerAddress;
use baton_transport::{Api, Dial, Token};
use std::{
    fs::File,
    io::Write,
    net::SocketAddr,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime},
};
use tempfile::TempDir;
use tokio::{
    sync::{oneshot, watch},
    task::JoinHandle,
};

/// Workers join the pool of [`Rules::pool`] with this token.
pub(crate) const POOL_TOKEN: &str = "with-this-workers-join-kube";
/// The token of monitors.
pub(crate) const MONITOR_TOKEN: &str = "this-reads-numbers";

/// The settings that a test may change.
#[derive(Clone)]
pub(crate) struct Rules {
    pub(crate) token: Option<&'static str>,
    pub(crate) tcp: bool,
    pub(crate) tls: Option<TlsFiles>,
    /// Certificate authorities that its clients trust besides those of the system.
    pub(crate) ca_file: Option<PathBuf>,
    pub(crate) url_prefix: Option<&'static str>,
    pub(crate) requests_a_second: u32,
    pub(crate) chunk_requests_a_second: u32,
    pub(crate) connections_a_person: u32,
    pub(crate) worker_grace: Duration,
    pub(crate) proxy_grace: Duration,
    pub(crate) silent_proxy_grace: Duration,
    pub(crate) chunks_limit_bytes: u64,
    pub(crate) person_limit_bytes: Option<u64>,
    pub(crate) output_limit_bytes: u64,
    /// The contents of the people file.
    pub(crate) people: Option<String>,
    /// The contents of the courses file.
    pub(crate) courses: Option<String>,
    /// Settings of an external pool `kube`, which workers join with [`POOL_TOKEN`].
    pub(crate) pool: Option<&'static str>,
    /// Further pools, as a list in TOML.
    pub(crate) pools: Option<String>,
    /// The URL of a PostgreSQL.
    pub(crate) database: Option<String>,
    /// The address of a bucket, with its endpoint and credentials.
    pub(crate) objects: Option<(String, ObjectOptions)>,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            token: None,
            tcp: false,
            tls: None,
            ca_file: None,
            url_prefix: None,
            requests_a_second: 1000,
            chunk_requests_a_second: 1000,
            connections_a_person: 100,
            worker_grace: Duration::from_millis(300),
            proxy_grace: LONG_GRACE,
            silent_proxy_grace: LONG_GRACE,
            chunks_limit_bytes: 1 << 30,
            person_limit_bytes: None,
            output_limit_bytes: 256 << 20,
            people: None,
            courses: None,
            pool: None,
            pools: None,
            database: None,
            objects: None,
        }
    }
}

pub(crate) struct Broker {
    pub(crate) dial: Dial,
    pub(crate) activity: watch::Receiver<Activity>,
    shutdown: Option<oneshot::Sender<()>>,
    task: JoinHandle<anyhow::Result<()>>,
    pub(crate) folder: TempDir,
}

impl Broker {
    pub(crate) async fn start() -> Self {
        Self::start_with(Rules::default()).await
    }

    pub(crate) async fn start_with(rules: Rules) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), rules).await
    }

    pub(crate) async fn start_in(folder: TempDir, rules: Rules) -> Self {
        // Needed by the tests' own requests.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut config = config_in(folder.path());
        config.tls = rules.tls;
        if rules.tcp {
            config.listen = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
        }
        if let Some(url) = &rules.database {
            config.database = Database::named(url);
        }
        if let Some((address, options)) = &rules.objects {
            config.chunk_place = address.parse().unwrap();
            config.object_options = options.clone();
        }
        config.requests_a_second = rules.requests_a_second;
        config.chunk_requests_a_second = rules.chunk_requests_a_second;
        config.connections_a_person = rules.connections_a_person;
        config.url_prefix = rules.url_prefix.map(str::to_owned);
        config.token = rules.token.map(str::to_owned);
        config.worker_grace = rules.worker_grace;
        config.proxy_grace = rules.proxy_grace;
        config.silent_proxy_grace = rules.silent_proxy_grace;
        config.restart_grace = LONG_GRACE;
        config.chunks_limit_bytes = rules.chunks_limit_bytes;
        config.person_limit_bytes = rules.person_limit_bytes;
        config.output_limit_bytes = rules.output_limit_bytes;
        if let Some(people) = &rules.people {
            let path = folder.path().join("people.toml");
            write_private(&path, people);
            config.people = Some(path);
        }
        if let Some(courses) = &rules.courses {
            let path = folder.path().join("courses.toml");
            write_private(&path, courses);
            config.courses = Some(path);
        }
        config.monitor_token = Some(MONITOR_TOKEN.to_owned());
        if let Some(settings) = rules.pool {
            let path = folder.path().join("pool-token");
            write_private(&path, POOL_TOKEN);
            let list = format!(
                "[{{ name = \"kube\", provider = \"external\", token_file = {path:?}, {settings} }}]"
            );
            config.pools = PoolSettings::read(&list).unwrap();
        }
        if let Some(list) = &rules.pools {
            config.pools.extend(PoolSettings::read(list).unwrap());
        }
        let (activity, activity_seen) = watch::channel(Activity::default());
        config.activity = Some(activity);
        let (shutdown, shutdown_seen) = oneshot::channel::<()>();
        let (ready, address) = oneshot::channel();
        let task = tokio::spawn(baton_broker::run(
            config,
            move |address| drop(ready.send(address)),
            async { drop(shutdown_seen.await) },
        ));
        let Ok(address) = within("a start", address).await else {
            panic!("the broker ended: {:?}", task.await);
        };
        let dial = Dial {
            address,
            token: rules.token.map(Token::new),
            ca_file: rules.ca_file,
        };
        answers(&dial).await;
        Self {
            dial,
            activity: activity_seen,
            shutdown: Some(shutdown),
            task,
            folder,
        }
    }

    /// The address of the broker with another token.
    pub(crate) fn dial_as(&self, token: &str) -> Dial {
        Dial {
            address: self.dial.address.clone(),
            token: Some(Token::new(token)),
            ca_file: self.dial.ca_file.clone(),
        }
    }

    pub(crate) async fn get_as(&self, token: &str, path: &str) -> String {
        let api = Api::new(&self.dial_as(token)).unwrap();
        String::from_utf8(api.get(path).await.unwrap().to_vec()).unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> String {
        let body = Api::new(&self.dial).unwrap().get(path).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    /// Shuts down as on SIGTERM.
    pub(crate) async fn stop(mut self) -> TempDir {
        drop(self.shutdown.take());
        within("an end", self.task).await.unwrap().unwrap();
        self.folder
    }
}

/// The broker takes a file that was changed a moment ago for one that is being written.
pub(crate) fn not_being_written(file: &File) {
    let before = SystemTime::now() - Duration::from_secs(60);
    file.set_modified(before).unwrap();
}

pub(crate) fn write_private(path: &Path, text: &str) {
    let new = path.with_extension("new");
    let mut options = File::options();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .unwrap();
    file.write_all(text.as_bytes()).unwrap();
    not_being_written(&file);
    std::fs::rename(new, path).unwrap();
}

fn config_in(folder: &Path) -> Config {
    Config::new(
        Listen::Unix(folder.join("broker.sock")),
        folder.join("broker.db"),
        folder.join("chunks"),
    )
}

const FOLDER: &str = "BATON_TEST_BROKER_FOLDER";
const NAME: &str = "BATON_TEST_BROKER_NAME";
const DATABASE: &str = "BATON_TEST_BROKER_DATABASE";

/// A broker that can be killed with SIGKILL: this test program, started again.
pub(crate) struct KilledBroker {
    pub(crate) dial: Dial,
    child: Child,
    start: Start,
}

/// How to start such a broker. Several may share a folder and a PostgreSQL.
#[derive(Clone)]
struct Start {
    folder: PathBuf,
    name: &'static str,
    database: Option<String>,
}

impl KilledBroker {
    /// A broker on SQLite.
    pub(crate) async fn start(folder: &Path) -> Self {
        let folder = folder.to_owned();
        Self::start_as(Start {
            folder,
            name: "broker",
            database: None,
        })
        .await
    }

    /// One of several brokers on a PostgreSQL.
    pub(crate) async fn start_on(database: &str, folder: &Path, name: &'static str) -> Self {
        Self::start_as(Start {
            folder: folder.to_owned(),
            name,
            database: Some(database.to_owned()),
        })
        .await
    }

    async fn start_as(start: Start) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["killed::broker_process", "--exact", "--nocapture"])
            .env(FOLDER, &start.folder)
            .env(NAME, start.name)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if let Some(database) = &start.database {
            command.env(DATABASE, database);
        }
        let broker = Self {
            dial: Dial {
                address: BrokerAddress::Unix(socket(&start.folder, start.name)),
                token: None,
                ca_file: None,
            },
            child: command.spawn().unwrap(),
            start,
        };
        broker.ready().await;
        broker
    }

    /// Waits until this broker, or another one for it, responds.
    pub(crate) async fn ready(&self) {
        answers(&self.dial).await;
    }

    pub(crate) async fn kill_and_restart(mut self) -> Self {
        self.kill();
        let start = self.start.clone();
        drop(self);
        Self::start_as(start).await
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

async fn answers(dial: &Dial) {
    let api = Api::new(dial).unwrap();
    wait_until("a broker", async || api.get("/health/ready").await.is_ok()).await;
}

impl Drop for KilledBroker {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// The child process of [`KilledBroker`]. Does nothing in an ordinary run of the tests.
pub(crate) fn serve_in_this_process() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let folder = Path::new(&folder);
    let mut config = config_in(folder);
    config.listen = Listen::Unix(socket(folder, &std::env::var(NAME).unwrap()));
    config.worker_grace = LONG_GRACE;
    config.proxy_grace = LONG_GRACE;
    config.silent_proxy_grace = LONG_GRACE;
    config.restart_grace = LONG_GRACE;
    if let Ok(database) = std::env::var(DATABASE) {
        config.database = Database::named(&database);
    }
    runtime
        .block_on(baton_broker::run(config, drop, std::future::pending()))
        .unwrap();
}

fn socket(folder: &Path, name: &str) -> PathBuf {
    folder.join(name).with_extension("sock")
}
