//! All settings of all commands, in one table.
//!
//! From the table come the flags with their help, the variables and the keys of the configuration
//! file, `baton config show`, and the page `docs/reference/configuration.md`. A flag takes
//! precedence over the environment, that over the file, and that over the default.

mod kinds;
mod process_environment;
mod reference;
pub(crate) mod secrets;
mod shown;
mod sources;
mod table;
mod value;

use baton_broker::{ChunkPlace, Database};
use baton_gpu_worker::{FilesChoice, NetworkChoice, SandboxChoice, gpu::GpuMode};
use baton_protocol::{Priority, address::BrokerAddress};
use baton_transport::TransportChoice;
use kinds::{
    EnvironmentList, GroupPattern, HostPort, HttpUrl, Labels, Modules, Paths, PoolList, PublicUrl,
    UrlPrefix, VariableNames,
};
use sources::{Origin, Sources};
use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};
use table::{
    DefaultText::{self, Computed, Nothing, Text},
    and_clients,
};

pub(crate) use kinds::{Dashboard, LeavesAt};
pub(crate) use process_environment::ProcessEnvironment;
pub(crate) use reference::reference;
pub(crate) use shown::show;
pub(crate) use sources::{CONFIGURATION_VARIABLE, SettingsError};
pub(crate) use table::Setting;
pub(crate) use value::Value;
pub(crate) use value::{ListenAddress, Size, SizeAboveZero};

/// Defines from one list both the struct with the values and the table with everything else.
macro_rules! settings {
    ($(
        #[doc = $help:literal]
        $field:ident: $kind:ty = $key:literal,
        flag: $flag:expr,
        default: $default:expr $(, secret: $secret:literal)?;
    )*) => {
        pub(crate) struct Settings {
            $(#[doc = $help] pub(crate) $field: $kind,)*
        }

        const TABLE: &[&Setting] = &[$({
            const FLAG: Option<(&str, &[&str])> = $flag;
            const DEFAULT: DefaultText = $default;
            &Setting {
                key: $key,
                flag: match FLAG { Some((flag, _)) => Some(flag), None => None },
                commands: match FLAG { Some((_, commands)) => commands, None => &[] },
                default: DEFAULT,
                secret: false $(|| $secret)?,
                expected: <$kind as Value>::EXPECTED,
                shape: <$kind as Value>::SHAPE,
                help: $help,
            }
        }),*];

        impl Settings {
            fn from_sources(sources: &Sources) -> Result<Self, SettingsError> {
                Ok(Self { $($field: value_of(sources, $key)?,)* })
            }
        }
    };
}

settings! {
    #[doc = "The broker's address. Without it, notebooks and commands use the broker of this user on this machine, which the first `%%gpu` cell starts."]
    broker_address: Option<BrokerAddress> = "broker_address",
    flag: Some(("broker", and_clients!("worker", "chunks"))),
    default: Nothing { described: "the broker of this user on this machine" };

    #[doc = "A file with certificates (PEM) of authorities, such as the university's own, to trust in addition to the system's. They apply to a broker and a JupyterHub whose addresses begin with `https`."]
    ca_file: Option<PathBuf> = "ca_file",
    flag: Some(("ca-file", and_clients!("login", "broker", "worker", "chunks"))),
    default: Nothing { described: "none: the authorities that the system trusts" };

    #[doc = "The token that opens the broker: your own or a worker's, as `baton people add` prints it; for a broker, the token that opens everything. It cannot be in the configuration file: use `token_file`."]
    token: Option<String> = "token",
    flag: None,
    default: Nothing { described: "the contents of `token_file`" }, secret: true;

    #[doc = "A file that contains the token that opens the broker: your own or a worker's, as `baton people add` prints it; for a broker, the token that opens everything."]
    token_file: Option<PathBuf> = "token_file",
    flag: Some(("token-file", and_clients!("broker", "worker", "chunks"))),
    default: Computed {
        text: |process| process.credential("token"),
        described: "`$CREDENTIALS_DIRECTORY/token` with `LoadCredential=token:FILE` of systemd; for a broker that listens on TCP, `token` in `state_folder`, created at the first start",
    };

    #[doc = "The file in which `baton login` stores your token. It is used if neither `token` nor `token_file` is set, by notebooks only if `hub_token` is not set either, and sent only to the broker that `broker_address` names. Only you may be able to read it."]
    login_token_file: PathBuf = "login_token_file",
    flag: None,
    default: Computed {
        text: |process| process.login_token().display().to_string(),
        described: "`$XDG_CONFIG_HOME/baton/token`, else `~/.config/baton/token`",
    };

    #[doc = "The JupyterHub token with which notebooks, and commands in a terminal of JupyterLab, identify their person if neither `token` nor `token_file` is set. Commands prefer the token of `baton login`. It is sent only to the broker that `broker_address` names."]
    hub_token: Option<String> = "hub_token",
    flag: None,
    default: Computed {
        text: |process| process.of_notebook_server("JUPYTERHUB_API_TOKEN"),
        described: "`$JUPYTERHUB_API_TOKEN` in a notebook server of JupyterHub",
    }, secret: true;

    #[doc = "The course of `%%gpu` cells. A person in only one course does not need it."]
    course: Option<String> = "course",
    flag: None,
    default: Nothing { described: "the only course of the person" };

    #[doc = "With `low`, all `%%gpu` cells let other people's cells go first, as with `%%gpu --priority low`. For work that no one waits for, such as autograding."]
    priority: Priority = "priority",
    flag: None,
    default: Text("normal");

    #[doc = "Whether a `%%gpu` cell starts a broker and a worker for this user when no broker is configured."]
    autostart: bool = "autostart",
    flag: None,
    default: Text("true");

    #[doc = "How state moves between notebook and worker: with `auto`, directly if both are on one machine, otherwise through the broker; with `http`, always through the broker."]
    transport: TransportChoice = "transport",
    flag: Some(("transport", &["worker", "up"])),
    default: Text("auto");

    #[doc = "How long a `%%gpu` cell and its results wait while the broker is unreachable, or while it or a machine has no room for them. An interrupt ends the wait."]
    broker_patience: Duration = "broker_patience",
    flag: Some(("broker-patience", &["worker", "up"])),
    default: Text("10m");

    #[doc = "Whether `cuda` also exists in ordinary cells, where it is virtual and computes on the CPU."]
    virtual_cuda: bool = "virtual_cuda",
    flag: None,
    default: Text("true");

    #[doc = "The folder in which `baton env sync` installs the environments of courses for notebooks. Use a disk with room for the packages."]
    environments_folder: PathBuf = "environments_folder",
    flag: Some(("environments-folder", &["env"])),
    default: Computed {
        text: |process| process.data_folder().join("environments").display().to_string(),
        described: "`$XDG_DATA_HOME/baton/environments`, else `~/.local/share/baton/environments`",
    };

    #[doc = "The folder in which the broker of this user keeps its socket, lock, token and log. It must belong to this user, and no other user may enter it; otherwise notebooks and commands refuse it."]
    runtime_folder: PathBuf = "runtime_folder",
    flag: Some(("runtime-folder", and_clients!("up", "worker"))),
    default: Computed {
        text: |process| process.runtime_folder().display().to_string(),
        described: "`$XDG_RUNTIME_DIR/baton`, else `/tmp/baton-UID`",
    };

    #[doc = "The folder for a broker's database and chunks and for a worker's mirrors, unless their own settings name other places."]
    state_folder: PathBuf = "state_folder",
    flag: Some(("state-folder", &["broker", "chunks", "worker", "up"])),
    default: Computed {
        text: |process| process.state_folder().display().to_string(),
        described: "`$XDG_STATE_HOME/baton`, else `/var/lib/baton` for root and `~/.local/state/baton` for others",
    };

    #[doc = "The size limit of the trash: the files beside a notebook that `%%gpu` cells deleted or replaced. The oldest are removed first; those of the last cell stay. `baton files restore` restores them."]
    trash_limit: Size = "trash.limit",
    flag: None,
    default: Text("1GiB");

    #[doc = "How long files stay in the trash."]
    trash_age: Duration = "trash.age",
    flag: None,
    default: Text("7d");

    #[doc = "The address and port, or the Unix socket, on which the broker listens."]
    broker_listen: ListenAddress = "broker.listen",
    flag: Some(("listen", &["broker"])),
    default: Text("127.0.0.1:8470");

    #[doc = "The TLS certificate (PEM) of the broker and of `baton chunks`: their own certificate, then those of intermediate authorities. It is reloaded when it changes."]
    broker_tls_certificate: Option<PathBuf> = "broker.tls_certificate",
    flag: Some(("tls-certificate", &["broker", "chunks"])),
    default: Nothing { described: "none: no encryption" };

    #[doc = "The private key (PEM) of that certificate. Only the broker's user may have access to it."]
    broker_tls_key: Option<PathBuf> = "broker.tls_key",
    flag: Some(("tls-key", &["broker", "chunks"])),
    default: Nothing { described: "none" };

    #[doc = "Whether clients reach the broker and `baton chunks` through your own proxy with TLS or over an encrypted network. Without this and without a certificate they listen only on this machine."]
    broker_behind_tls_proxy: bool = "broker.behind_tls_proxy",
    flag: Some(("behind-tls-proxy", &["broker", "chunks"])),
    default: Text("false");

    #[doc = "An additional path at which the broker is served, such as `/services/baton`, for a proxy that does not remove it."]
    broker_url_prefix: Option<UrlPrefix> = "broker.url_prefix",
    flag: Some(("url-prefix", &["broker"])),
    default: Nothing { described: "none: a proxy removes its prefix" };

    #[doc = "How many requests per second a person's token may make to the pages and the API. Bursts may be four times as large."]
    broker_request_rate: u32 = "broker.request_rate",
    flag: Some(("request-rate", &["broker"])),
    default: Text("50");

    #[doc = "How many requests for chunks the notebooks of a person may send per second. Bursts may be four times as large. A request with more than 32 chunks counts as several."]
    broker_chunk_request_rate: u32 = "broker.chunk_request_rate",
    flag: Some(("chunk-request-rate", &["broker"])),
    default: Text("500");

    #[doc = "How many notebooks and live pages of one person may be connected at the same time."]
    broker_person_connection_limit: u32 = "broker.person_connection_limit",
    flag: Some(("person-connection-limit", &["broker"])),
    default: Text("100");

    #[doc = "Where the broker keeps its jobs: an SQLite file, or PostgreSQL as `postgres://USER@HOST/DATABASE`, on which a second broker takes over when the first one dies. The password may be in `PGPASSWORD`."]
    broker_database: Option<Database> = "broker.database",
    flag: Some(("database", &["broker"])),
    default: Nothing { described: "`broker.db` in `state_folder`" };

    #[doc = "The `HOST:PORT` at which the workers of pools, and other brokers on the same PostgreSQL, reach this broker."]
    broker_advertise: Option<HostPort> = "broker.advertise",
    flag: Some(("advertise", &["broker"])),
    default: Nothing { described: "the address on which it listens" };

    #[doc = "Where the broker keeps chunks of state: `folder` for the folder `broker.chunks`, or the address of a bucket that notebooks and workers use directly: `s3://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` for Azure Blob Storage, or `gs://BUCKET/PREFIX` for Google Cloud Storage. Endpoint and credentials of the bucket are in the broker's environment, as for the provider's own programs."]
    broker_chunk_store: ChunkPlace = "broker.chunk_store",
    flag: Some(("chunk-store", &["broker", "chunks"])),
    default: Text("folder");

    #[doc = "The folder in which the broker keeps chunks of state."]
    broker_chunks: Option<PathBuf> = "broker.chunks",
    flag: Some(("chunks", &["broker", "chunks"])),
    default: Nothing { described: "`chunks` in `state_folder`" };

    #[doc = "The address and port on which `baton chunks` serves the bytes of chunks, for a proxy in front of it and the broker."]
    broker_chunk_listen: SocketAddr = "broker.chunk_listen",
    flag: Some(("listen", &["chunks"])),
    default: Text("127.0.0.1:8471");

    #[doc = "How many bytes of chunks the broker stores. More are refused."]
    broker_chunk_limit: Size = "broker.chunk_limit",
    flag: Some(("chunk-limit", &["broker", "chunks", "up"])),
    default: Text("64GiB");

    #[doc = "How many bytes of chunks one person may store on the broker. More are refused."]
    broker_person_chunk_limit: Size = "broker.person_chunk_limit",
    flag: Some(("person-chunk-limit", &["broker"])),
    default: Text("16GiB");

    #[doc = "How many bytes of a cell's output the broker stores until the notebook has the cell's result. The oldest output above that is deleted; a notebook that was connected has it, any other shows a message in its place."]
    broker_output_limit: Size = "broker.output_limit",
    flag: None,
    default: Text("256MiB");

    #[doc = "A token that can read `/metrics` and `/v1/scale`, and nothing else: for Prometheus and autoscalers. It cannot be in the configuration file: use `broker.monitor_token_file`."]
    broker_monitor_token: Option<String> = "broker.monitor_token",
    flag: None,
    default: Nothing { described: "the contents of `broker.monitor_token_file`" }, secret: true;

    #[doc = "A file that holds the token that can read `/metrics` and `/v1/scale`."]
    broker_monitor_token_file: Option<PathBuf> = "broker.monitor_token_file",
    flag: Some(("monitor-token-file", &["broker"])),
    default: Computed {
        text: |process| process.credential("monitor-token"),
        described: "`$CREDENTIALS_DIRECTORY/monitor-token` with `LoadCredential=monitor-token:FILE` of systemd; elsewhere none",
    };

    #[doc = "The file with the tokens of people and their roles in courses, written by `baton people add`. Only its owner may have access to it."]
    broker_people_file: Option<PathBuf> = "broker.people_file",
    flag: Some(("people-file", &["broker", "people"])),
    default: Nothing { described: "none: every person uses the broker's token and may do everything" };

    #[doc = "The API of the JupyterHub whose users can sign in with the tokens that the Hub gave them."]
    broker_hub_api_url: Option<HttpUrl> = "broker.hub.api_url",
    flag: Some(("hub-api-url", &["broker"])),
    default: Computed {
        text: |process| process.of_hub_service("JUPYTERHUB_API_URL"),
        described: "`$JUPYTERHUB_API_URL` if the Hub itself starts the broker; otherwise none",
    };

    #[doc = "The broker's API token as a service of the Hub. It cannot be in the configuration file: use `broker.hub.token_file`."]
    broker_hub_token: Option<String> = "broker.hub.token",
    flag: None,
    default: Computed {
        text: |process| process.of_hub_service("JUPYTERHUB_API_TOKEN"),
        described: "the contents of `broker.hub.token_file`; `$JUPYTERHUB_API_TOKEN` if the Hub itself starts the broker",
    }, secret: true;

    #[doc = "A file that holds the broker's API token as a service of the Hub."]
    broker_hub_token_file: Option<PathBuf> = "broker.hub.token_file",
    flag: Some(("hub-token-file", &["broker"])),
    default: Computed {
        text: |process| process.credential("hub-token"),
        described: "`$CREDENTIALS_DIRECTORY/hub-token` with `LoadCredential=hub-token:FILE` of systemd",
    };

    #[doc = "The name of that service. The pages are then served below `/services/NAME`, unless `broker.url_prefix` names another path."]
    broker_hub_service: String = "broker.hub.service",
    flag: Some(("hub-service", &["broker"])),
    default: Computed {
        text: |process| match process.of_hub_service("JUPYTERHUB_SERVICE_NAME") {
            name if name.is_empty() => "baton".to_owned(),
            name => name,
        },
        described: "`baton`; `$JUPYTERHUB_SERVICE_NAME` if the Hub itself starts the broker",
    };

    #[doc = "The Hub groups that contain the students of courses: the group's name, with `{course}` in place of the course's name."]
    broker_hub_student_groups: GroupPattern = "broker.hub.student_groups",
    flag: Some(("hub-student-groups", &["broker"])),
    default: Text("{course}");

    #[doc = "The same for the staff of courses. A person in both groups is staff."]
    broker_hub_staff_groups: GroupPattern = "broker.hub.staff_groups",
    flag: Some(("hub-staff-groups", &["broker"])),
    default: Text("{course}-staff");

    #[doc = "How long an answer of the Hub is valid. A token that the Hub has revoked keeps working for this long."]
    broker_hub_remembered: Duration = "broker.hub.remembered",
    flag: Some(("hub-remembered", &["broker"])),
    default: Text("60s");

    #[doc = "The Hub's address for browsers, for a Hub whose services have other hosts."]
    broker_hub_public_api_url: Option<PublicUrl> = "broker.hub.public_api_url",
    flag: Some(("hub-public-api-url", &["broker"])),
    default: Nothing { described: "on the host of the pages" };

    #[doc = "The address to which the Hub returns people after they sign in: the `oauth_redirect_uri` of the service."]
    broker_hub_callback_url: Option<PublicUrl> = "broker.hub.callback_url",
    flag: Some(("hub-callback-url", &["broker"])),
    default: Nothing { described: "`oauth_callback` below the prefix of the pages" };

    #[doc = "The file with the settings of courses: weight, time limits, budget, deadlines, pause. It is reloaded when it changes."]
    broker_courses_file: Option<PathBuf> = "broker.courses_file",
    flag: Some(("courses-file", &["broker"])),
    default: Nothing { described: "none: no limits, and equal weights" };

    #[doc = "The largest number of slots (`worker.slots`) that one worker may offer. A worker that offers more is refused."]
    broker_worker_slots: u32 = "broker.worker_slots",
    flag: Some(("worker-slots", &["broker"])),
    default: Text("64");

    #[doc = "How long a worker may be disconnected before its running cells count as lost."]
    broker_worker_grace: Duration = "broker.worker_grace",
    flag: Some(("worker-grace", &["broker"])),
    default: Text("5s");

    #[doc = "How long a notebook may take to reconnect after its connection was closed, for example because its kernel was killed. Then its cells are stopped. If the notebook stops responding, as in a network failure, the broker notices after 45 seconds, and the notebook then has 30 seconds. Use a larger value if a server between notebooks and broker may be restarted."]
    broker_proxy_grace: Duration = "broker.proxy_grace",
    flag: Some(("proxy-grace", &["broker"])),
    default: Text("5s");

    #[doc = "Pools: batch systems and autoscalers that give workers, each in a section `[[pool]]` of the file. See [the guide](../guides/pools.md)."]
    pool: PoolList = "pool",
    flag: None,
    default: Text("[]");

    #[doc = "Environments that the worker offers to courses, each in a section `[environment.NAME]` of the file with `lock = \"PATH\"`, a `uv.lock` or a requirements file with hashes, `python = \"PATH\"`, or `image = \"FOLDER\"`. See [the guide](../guides/environments.md)."]
    environment: EnvironmentList = "environment",
    flag: None,
    default: Text("{}");

    #[doc = "After how long without a cell the worker leaves. It stays until all results have reached their notebooks, and while a session holds objects that cannot move."]
    worker_idle_exit: Option<Duration> = "worker.idle_exit",
    flag: Some(("idle-exit", &["worker"])),
    default: Nothing { described: "never" };

    #[doc = "The external pool that the worker joins, with the pool's token as its token. The pool gives it a name and a token of its own, and `worker.name` is what the pool's page shows beside them."]
    worker_pool: Option<String> = "worker.pool",
    flag: Some(("pool", &["worker"])),
    default: Nothing { described: "none" };

    #[doc = "The worker's name in notebooks and on the dashboard. A worker with its own token must use the name for which the token was made; another name is refused."]
    worker_name: Option<String> = "worker.name",
    flag: Some(("name", &["worker"])),
    default: Nothing { described: "the name of its token; with the broker's own token, the kind of its device and a number" };

    #[doc = "The number of slots: how many cells the worker runs at the same time."]
    worker_slots: Option<u32> = "worker.slots",
    flag: Some(("slots", &["worker", "up"])),
    default: Nothing { described: "2 for each time-shared GPU, 1 for each GPU or slice that belongs to one session, 2 otherwise" };

    #[doc = "What you call this machine, such as `[\"a100\", \"room-3\"]`. Courses can require labels, and `%%gpu --gpu` finds a label of a GPU machine like the model of its GPU."]
    worker_labels: Labels = "worker.labels",
    flag: Some(("labels", &["worker", "up"])),
    default: Text("[]");

    #[doc = "When the worker's time on its machine ends: a time such as `2026-03-02T18:00+01:00`, seconds since 1970, or a duration from its start. Cells whose time limit does not fit run elsewhere. Up to two minutes before the end the worker takes no more cells and sends results back to their notebooks."]
    worker_leaves_at: Option<LeavesAt> = "worker.leaves_at",
    flag: Some(("leaves-at", &["worker"])),
    default: Computed {
        text: |process| process.variable("SLURM_JOB_END_TIME").unwrap_or_default().to_owned(),
        described: "the end of its job in Slurm (`$SLURM_JOB_END_TIME`); elsewhere none",
    };

    #[doc = "The Python in which the worker runs cells."]
    worker_python: Option<PathBuf> = "worker.python",
    flag: Some(("python", &["worker"])),
    default: Nothing { described: "the Python beside `baton`; without a sandbox, the notebook's own" };

    #[doc = "The folder in which the worker builds environments from their locks. Workers of one user may share it. Use a local disk with room for the packages."]
    worker_environments: PathBuf = "worker.environments",
    flag: Some(("environments", &["worker", "up"])),
    default: Computed {
        text: |process| process.cache_folder().join("environments").display().to_string(),
        described: "`$XDG_CACHE_HOME/baton/environments`, else `~/.cache/baton/environments`",
    };

    #[doc = "The folder in which the worker keeps chunks that it fetched."]
    worker_cache: PathBuf = "worker.cache",
    flag: Some(("cache", &["worker", "up"])),
    default: Computed {
        text: |process| process.cache_folder().join("chunks").display().to_string(),
        described: "`$XDG_CACHE_HOME/baton/chunks`, else `~/.cache/baton/chunks`",
    };

    #[doc = "The size of the worker's cache. The least recently used chunks are removed first."]
    worker_cache_limit: Size = "worker.cache_limit",
    flag: Some(("cache-limit", &["worker", "up"])),
    default: Text("32GiB");

    #[doc = "How long a session stays warm without running a cell."]
    worker_session_idle: Duration = "worker.session_idle",
    flag: Some(("session-idle", &["worker", "up"])),
    default: Text("30m");

    #[doc = "How much memory a session may use before its cell is stopped. In a sandbox with a control group this includes its files in memory and everything that it started, and nothing is swapped."]
    worker_session_memory: Option<SizeAboveZero> = "worker.session_memory",
    flag: Some(("session-memory", &["worker", "up"])),
    default: Nothing { described: "no limit" };

    #[doc = "How much a session may store on the machine's disk: in its mirror of the notebook's folder, in the packages that its cells install, and, under Landlock, in its home and temporary folder. The worker measures this about once a second, and ends a session that stores more; the cell says why."]
    worker_session_disk: Option<SizeAboveZero> = "worker.session_disk",
    flag: Some(("session-disk", &["worker", "up"])),
    default: Nothing { described: "no limit" };

    #[doc = "How many processes and threads a sandboxed session may have."]
    worker_session_processes: u32 = "worker.session_processes",
    flag: Some(("session-processes", &["worker", "up"])),
    default: Text("4096");

    #[doc = "How many processors' time a sandboxed session may use. Sessions that compete for processors get equal shares."]
    worker_session_cpus: Option<u32> = "worker.session_cpus",
    flag: Some(("session-cpus", &["worker", "up"])),
    default: Nothing { described: "no limit" };

    #[doc = "How much a sandboxed session may store in each of `/tmp`, `/var/tmp`, `/dev/shm` and its home. They are in memory, and are removed with the session."]
    worker_session_scratch: Size = "worker.session_scratch",
    flag: Some(("session-scratch", &["worker", "up"])),
    default: Text("8GiB");

    #[doc = "Names of environment variables that sessions inherit from the worker in addition to the usual ones, such as `[\"HTTPS_PROXY\", \"COURSE_*\"]`. Sessions do not see other variables. Cells can read these, so do not name a secret."]
    worker_session_environment: VariableNames = "worker.session_environment",
    flag: Some(("session-environment", &["worker", "up"])),
    default: Text("[]");

    #[doc = "How the worker isolates the cells of different people: `bubblewrap` starts each session in its own namespaces, where it sees a read-only system and its notebook's files; `landlock`, for systems without user namespaces, leaves it in the machine's namespaces, where the system refuses to open what is not its own, and [protects less](../security.md#sessions-under-landlock); `none` lets cells do everything that the worker's user can do. The worker refuses to start if its sandbox does not work, and never chooses another one."]
    worker_sandbox: Option<SandboxChoice> = "worker.sandbox",
    flag: Some(("sandbox", &["worker", "up"])),
    default: Nothing { described: "`bubblewrap`; `none` for `baton up`, which is for one person" };

    #[doc = "The network of sandboxed cells: `none`; `egress`, which `pip install` and downloads need, reaches the internet but no private addresses, not this machine and not the broker, and needs bubblewrap; `host` is the network of this machine."]
    worker_network: NetworkChoice = "worker.network",
    flag: Some(("network", &["worker", "up"])),
    default: Text("none");

    #[doc = "Whether the worker keeps a process that has loaded Python's libraries and starts sessions as forks of it, inside the same sandbox. A first cell then does not wait for imports. Otherwise each session starts its own Python."]
    worker_warm_starts: bool = "worker.warm_starts",
    flag: Some(("warm-starts", &["worker", "up"])),
    default: Text("true");

    #[doc = "Python modules to load in advance for warm starts, in this order, such as `[\"torch\"]`. The worker also remembers which of NumPy, PyTorch, SciPy, pandas and scikit-learn its sessions use, and loads those."]
    worker_preload: Modules = "worker.preload",
    flag: Some(("preload", &["worker", "up"])),
    default: Text("[]");

    #[doc = "Folders and files that sandboxed cells may read in addition to the system and the worker's Python, such as `[\"/data/course\"]`."]
    worker_readable: Paths = "worker.readable",
    flag: Some(("readable", &["worker", "up"])),
    default: Text("[]");

    #[doc = "How sessions reach the files of a notebook's folder: `auto` works in the folder itself if this machine sees it and it belongs to the notebook's user, otherwise in a mirror whose files arrive when they are opened; `mirror` always uses a mirror; `copy` fetches all files before the cell runs."]
    worker_files: FilesChoice = "worker.files",
    flag: Some(("files", &["worker", "up"])),
    default: Text("auto");

    #[doc = "Whether `pip install` and `uv pip install` in a `%%gpu` cell install packages, only for the sessions of its notebook. Otherwise they are refused with a hint."]
    worker_install_packages: bool = "worker.install_packages",
    flag: Some(("install-packages", &["worker", "up"])),
    default: Text("true");

    #[doc = "The limit for files in a mirror: the total size of the files that one cell writes, and the size of each file that it opens."]
    worker_files_limit: Size = "worker.files_limit",
    flag: Some(("files-limit", &["worker", "up"])),
    default: Text("4GiB");

    #[doc = "The folder in which the worker keeps mirrors of notebooks' folders and the packages that cells install, each for as long as its session lives. No other program may clean it up. Use a local disk."]
    worker_mirrors: Option<PathBuf> = "worker.mirrors",
    flag: Some(("mirrors", &["worker", "up"])),
    default: Nothing { described: "`mirrors` in `state_folder`" };

    #[doc = "How sessions share a GPU: with `timeshare` they time-share it, each with its whole memory; with `mps` they compute side by side through NVIDIA's MPS; `mig` gives each session a slice, `exclusive` a whole GPU; `open` leaves it to the driver."]
    worker_gpu_mode: GpuMode = "worker.gpu_mode",
    flag: Some(("gpu-mode", &["worker", "up"])),
    default: Text("timeshare");

    #[doc = "How much of a GPU's memory a session may allocate on a time-shared GPU (with `mps`: each process of the session)."]
    worker_gpu_memory: Option<SizeAboveZero> = "worker.gpu_memory",
    flag: Some(("gpu-memory", &["worker", "up"])),
    default: Nothing { described: "all of the GPU's memory" };

    #[doc = "How long an interrupted cell may take to end before its session is killed."]
    worker_cancel_grace: Duration = "worker.cancel_grace",
    flag: Some(("cancel-grace", &["worker", "up"])),
    default: Text("10s");

    #[doc = "How long running cells may continue after the worker is asked to stop (SIGTERM or Ctrl-C). Then they are stopped. A second request stops them at once."]
    worker_stop_grace: Option<Duration> = "worker.stop_grace",
    flag: Some(("stop-grace", &["worker", "up"])),
    default: Nothing { described: "each cell until its own time limit; 10s for `baton up`" };

    #[doc = "How long `baton up` keeps running without notebooks and cells."]
    up_idle_exit: Option<Duration> = "up.idle_exit",
    flag: Some(("idle-exit", &["up"])),
    default: Nothing { described: "until it is stopped; 10m if a cell started it" };

    #[doc = "The address and port of this machine on which `baton up` shows its dashboard; `off` for none."]
    up_dashboard: Dashboard = "up.dashboard",
    flag: Some(("dashboard", &["up"])),
    default: Text("127.0.0.1:0");
}

/// The values on the command line, by the key of the setting.
pub(crate) type Flags = BTreeMap<&'static str, String>;

impl Settings {
    pub(crate) fn read(process: &ProcessEnvironment, flags: Flags) -> Result<Self, SettingsError> {
        Self::from_sources(&Sources::gather(process, flags, TABLE)?)
    }
}

/// The variables of all settings.
pub(crate) fn variables() -> impl Iterator<Item = String> {
    TABLE.iter().map(|setting| setting.variable())
}

/// The settings that are flags of this command.
pub(crate) fn flags_of(command: &str) -> impl Iterator<Item = &'static Setting> {
    let takes = move |setting: &&Setting| setting.commands.contains(&command);
    TABLE.iter().copied().filter(takes)
}

fn value_of<V: Value>(sources: &Sources, key: &'static str) -> Result<V, SettingsError> {
    #[expect(
        clippy::expect_used,
        reason = "the macro puts every key into the table"
    )]
    let setting = TABLE
        .iter()
        .find(|setting| setting.key == key)
        .expect("each field has a setting");
    let (text, origin) = sources.text(setting);
    let value = match origin {
        Origin::Flag => V::parse_flag(&text),
        _ => V::parse(&text),
    };
    value.ok_or(SettingsError::Value {
        key,
        origin,
        expected: V::expected_instead_of(&text),
        found: text,
    })
}
