//! A real PostgreSQL in a temporary folder, on a Unix socket there, gone when it is dropped.
//!
//! Encrypted ones listen on a port of this machine, too, where they refuse whoever comes without encryption.
//! PostgreSQL refuses to run as root; then it runs as the user `postgres` that Debian's package makes.
#![allow(clippy::unwrap_used)]

use baton_port_tests::Ports;
use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, Uid, User, chown},
};
use std::{
    fs,
    io::{BufRead, BufReader, Lines},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, ChildStderr, Command, Stdio},
};
use tempfile::TempDir;

/// How sure a commit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disk {
    /// As an operator has it: on the disk when it is acknowledged.
    Sync,
    /// Fast, and lost with the machine. Enough where only processes die.
    NoSync,
}

pub struct Server {
    folder: TempDir,
    disk: Disk,
    /// Of an encrypted one.
    ports: Option<Ports<1>>,
    running: Option<Running>,
}

struct Running {
    child: Child,
    /// Kept open, so that the server can go on to write.
    _log: Lines<BufReader<ChildStderr>>,
}

impl Server {
    #[must_use]
    pub fn start(disk: Disk) -> Self {
        let mut server = Self::create(disk);
        server.start_again();
        server
    }

    /// With a certificate that it has signed itself.
    #[must_use]
    pub fn start_encrypted() -> Self {
        let mut server = Self::create(Disk::NoSync);
        make_certificate(&server.certificate(), &server.data().join("server.key"));
        let rules = "hostssl all all 127.0.0.1/32 trust\nlocal all all trust\n";
        fs::write(server.data().join("pg_hba.conf"), rules).unwrap();
        server.ports = Some(Ports::free());
        server.start_again();
        server
    }

    fn create(disk: Disk) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        fs::create_dir(&data).unwrap();
        // Others may pass, as the server's user must.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700)).unwrap();
        give_to_server(&data);
        run(as_server("initdb")
            .args([
                "--auth=trust",
                "--username=baton",
                "--encoding=UTF8",
                "--locale=C",
                "--no-sync",
            ])
            .arg("--pgdata")
            .arg(&data));
        Self {
            folder,
            disk,
            ports: None,
            running: None,
        }
    }

    /// For `broker.database`.
    #[must_use]
    pub fn url(&self) -> String {
        let socket = self.data().display().to_string().replace('/', "%2F");
        format!("postgres://baton@{socket}/postgres")
    }

    /// That of an encrypted one, for its port. `options` are those of the address, such as `sslmode=require`.
    ///
    /// # Panics
    /// When it is not encrypted.
    #[must_use]
    pub fn encrypted_url(&self, options: &str) -> String {
        let ports = self.ports.as_ref().expect("this server is not encrypted");
        let [port] = ports.numbers;
        format!("postgres://baton@localhost:{port}/postgres?{options}")
    }

    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.folder.path().join("server.crt")
    }

    /// As when its machine loses power, but for the disk.
    pub fn kill(&mut self) {
        if let Some(mut running) = self.running.take() {
            // The server's own processes end with it when it is told to end at once.
            kill(
                Pid::from_raw(running.child.id().cast_signed()),
                Signal::SIGQUIT,
            )
            .unwrap();
            running.child.wait().unwrap();
        }
    }

    pub fn start_again(&mut self) {
        let data = self.data();
        let mut command = as_server("postgres");
        command.arg("-D").arg(&data).arg("-k").arg(&data);
        command.args(["-c", "log_min_messages=log"]);
        match self.ports.as_ref().map(|ports| ports.numbers) {
            Some([port]) => {
                let certificate = format!("ssl_cert_file={}", self.certificate().display());
                command.args(["-p", &port.to_string(), "-c", "ssl=on", "-c", &certificate]);
                command.args(["-c", "listen_addresses=127.0.0.1"]);
            }
            None => {
                command.args(["-c", "listen_addresses="]);
            }
        }
        if self.disk == Disk::NoSync {
            command.args(["-c", "fsync=off"]);
        }
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = Vec::new();
        loop {
            let line = log
                .next()
                .unwrap_or_else(|| panic!("PostgreSQL has ended: {said:?}"));
            let line = line.unwrap();
            if line.contains("ready to accept connections") {
                break;
            }
            said.push(line);
        }
        self.running = Some(Running { child, _log: log });
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// For `localhost`, as an operator makes one.
fn make_certificate(certificate: &Path, key: &Path) {
    run(Command::new("openssl")
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
        ])
        .args(["-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-out")
        .arg(certificate)
        .arg("-keyout")
        .arg(key));
    fs::set_permissions(key, fs::Permissions::from_mode(0o600)).unwrap();
    give_to_server(key);
}

fn run(command: &mut Command) {
    let done = command.output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
}

fn give_to_server(path: &Path) {
    if Uid::effective().is_root() {
        let user = User::from_name("postgres")
            .unwrap()
            .expect("there is no user postgres; run scripts/install-system-packages postgres");
        chown(path, Some(user.uid), Some(user.gid)).unwrap();
    }
}

/// The program as a user that it accepts, ended with whoever started it.
fn as_server(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    if Uid::effective().is_root() {
        command.args(["--reuid=postgres", "--regid=postgres", "--init-groups"]);
    }
    command
        .args(["--pdeathsig=QUIT", "--"])
        .arg(programs().join(program));
    command
        .current_dir("/")
        .env_remove("LD_PRELOAD")
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command
}

/// Debian keeps each version in a folder of its own.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten();
    let newest = versions
        .filter_map(|version| Some(version.ok()?.path().join("bin")))
        .filter(|folder| folder.join("initdb").exists())
        .max();
    newest.unwrap_or_else(|| Path::new("/usr/bin").to_owned())
}
