//! The proxy in a process of its own: this test program, started again with its settings in the environment.

use crate::{client::Client, peer::PATIENCE};
use baton_jupyter_wire::{
    connection::{Channel, ConnectionFile},
    process::kill_tree,
};
use baton_kernel_proxy::{BrokerChoice, Config, TrashConfig};
use baton_port_tests::Ports;
use baton_transport::TransportChoice;
use serde_json::{Value, json};
use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

const SETTINGS: &str = "BATON_TEST_PROXY";

/// Not a test: [`Settings::spawn`] starts this as a process.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "this test binary stands in for `main`"
)]
fn proxy_process() {
    let Ok(settings) = std::env::var(SETTINGS) else {
        return;
    };
    let settings: Value = serde_json::from_str(&settings).unwrap();
    let text = |name: &str| settings[name].as_str().unwrap().to_owned();
    let arguments = settings["arguments"].as_array().unwrap();
    let config = Config {
        connection_file: text("connection_file").into(),
        python: text("python").into(),
        launcher_module: text("launcher"),
        forked: None,
        kernel_arguments: arguments
            .iter()
            .map(|argument| OsString::from(argument.as_str().unwrap()))
            .collect(),
        broker: BrokerChoice::Misconfigured("this is a test".to_owned()),
        course: None,
        priority: baton_protocol::Priority::Normal,
        transport: TransportChoice::Auto,
        patience: std::time::Duration::from_secs(600),
        virtual_cuda: true,
        trash: TrashConfig::default(),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let code = runtime
        .block_on(baton_kernel_proxy::run(config))
        .unwrap_or_else(|error| {
            eprintln!("{error:?}");
            1
        });
    std::process::exit(code)
}

#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) connection: Value,
    /// Those of the connection, which stay the proxy's while it is stopped.
    _ports: Arc<Ports<{ Channel::ALL.len() }>>,
    pub(crate) python: PathBuf,
    pub(crate) launcher: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) python_path: PathBuf,
}

impl Settings {
    pub(crate) fn tcp() -> Self {
        let mut connection = json!({
            "transport": "tcp", "ip": "127.0.0.1", "key": "a test's key",
            "signature_scheme": "hmac-sha256", "kernel_name": "test",
        });
        let ports = Ports::free();
        for (channel, port) in Channel::ALL.into_iter().zip(ports.numbers) {
            connection[format!("{}_port", channel.name())] = port.into();
        }
        Self {
            connection,
            _ports: Arc::new(ports),
            python: test_python(),
            launcher: "ipykernel_launcher".to_owned(),
            arguments: Vec::new(),
            python_path: PathBuf::new(),
        }
    }

    pub(crate) fn ipc(folder: &Path) -> Self {
        let mut settings = Self::tcp();
        settings.connection["transport"] = "ipc".into();
        settings.connection["ip"] = folder.join("outer").to_str().unwrap().into();
        settings
    }

    pub(crate) fn parsed(&self) -> ConnectionFile {
        ConnectionFile::parse(self.connection.to_string().as_bytes()).unwrap()
    }

    pub(crate) fn start(&self) -> Proxy {
        let folder = tempfile::tempdir().unwrap();
        self.start_in(folder)
    }

    /// `folder` also serves as the user's runtime folder.
    pub(crate) fn start_in(&self, folder: tempfile::TempDir) -> Proxy {
        let mut command = self.command(folder.path());
        let child = command.process_group(0).spawn().unwrap();
        Proxy {
            settings: self.clone(),
            child,
            folder,
        }
    }

    pub(crate) fn command(&self, folder: &Path) -> Command {
        let connection_file = folder.join("connection.json");
        std::fs::write(&connection_file, self.connection.to_string()).unwrap();
        let settings = json!({
            "connection_file": connection_file, "python": self.python, "launcher": self.launcher,
            "arguments": self.arguments,
        });
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "proxy::proxy_process", "--nocapture"])
            .env(SETTINGS, settings.to_string())
            .env("XDG_RUNTIME_DIR", folder)
            .env("IPYTHONDIR", folder.join("ipython"))
            .env("PYTHONPATH", &self.python_path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        command
    }
}

fn test_python() -> PathBuf {
    if let Some(python) = std::env::var_os("BATON_TEST_PYTHON") {
        return python.into();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let local = root.join(".venv/bin/python");
    if local.exists() {
        local
    } else {
        "python3".into()
    }
}

pub(crate) struct Proxy {
    pub(crate) settings: Settings,
    child: Child,
    pub(crate) folder: tempfile::TempDir,
}

impl Proxy {
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns once the kernel answers.
    pub(crate) fn client(&self) -> Client {
        let connection = self.settings.parsed();
        let endpoint = connection.endpoint(Channel::Heartbeat).unwrap();
        eventually(|| match &endpoint {
            baton_jupyter_wire::connection::Endpoint::Tcp { host, port } => {
                std::net::TcpStream::connect((host.as_str(), *port)).is_ok()
            }
            baton_jupyter_wire::connection::Endpoint::Ipc(path) => {
                std::os::unix::net::UnixStream::connect(path).is_ok()
            }
        });
        Client::connect(&connection)
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "The proxy does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Everything written to stderr, once the proxy has ended.
    pub(crate) fn stderr(&mut self) -> String {
        use std::io::Read as _;
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        said
    }

    /// Folders and sockets that the proxy made and did not remove.
    pub(crate) fn leftovers(&self) -> Vec<PathBuf> {
        leftovers(self.folder.path())
    }
}

pub(crate) fn leftovers(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("baton-") || name.starts_with("outer-")
        })
        .collect()
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            kill_tree(self.child.id());
            let _ = self.child.wait();
        }
    }
}

pub(crate) fn eventually(mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(
            Instant::now() < end,
            "It did not happen within {PATIENCE:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn is_running(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}
