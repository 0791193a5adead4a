//! A real object store in a temporary folder, on ports of this machine, gone when it is dropped.
//!
//! It is SeaweedFS, which the tests' requirements install into the virtual environment.
#![allow(clippy::unwrap_used)]

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use std::{
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const BUCKET: &str = "class";
const KEY: &str = "baton-test";
const SECRET: &str = "only+for/this test";
/// On two busy cores it takes some ten seconds.
const DEADLINE: Duration = Duration::from_secs(120);

pub struct Server {
    folder: TempDir,
    ports: Ports,
    /// How many, and megabytes of each.
    volumes: (u32, u32),
    running: Option<Child>,
}

/// Each program has one for HTTP and one for the others.
struct Ports {
    master: [u16; 2],
    volume: [u16; 2],
    filer: [u16; 2],
    s3: [u16; 2],
}

impl Server {
    #[must_use]
    pub fn start() -> Self {
        Self::with_volumes(40, 64)
    }

    /// With room for some 64 MB.
    #[must_use]
    pub fn start_small() -> Self {
        Self::with_volumes(8, 8)
    }

    fn with_volumes(count: u32, megabytes: u32) -> Self {
        let mut server = Self {
            folder: tempfile::tempdir().unwrap(),
            ports: Ports::free(),
            volumes: (count, megabytes),
            running: None,
        };
        server.start_again();
        server
    }

    /// With what it had, on the same ports.
    pub fn start_again(&mut self) {
        let data = self.folder.path().join("data");
        fs::create_dir_all(&data).unwrap();
        let log = fs::File::create(self.folder.path().join("log")).unwrap();
        let ports = &self.ports;
        let port = |name: &str, port: u16| format!("-{name}={port}");
        let mut command = Command::new(program());
        command
            .arg("server")
            .arg(format!("-dir={}", data.display()))
            .args(["-ip=127.0.0.1", "-filer", "-s3", "-master.telemetry=false"])
            .arg("-volume.minFreeSpace=1")
            .arg(format!("-volume.max={}", self.volumes.0))
            .arg(format!("-master.volumeSizeLimitMB={}", self.volumes.1))
            .args(["-s3.port.iceberg=0", "-s3.port.lance=0"])
            .args([
                port("master.port", ports.master[0]),
                port("master.port.grpc", ports.master[1]),
            ])
            .args([
                port("volume.port", ports.volume[0]),
                port("volume.port.grpc", ports.volume[1]),
            ])
            .args([
                port("filer.port", ports.filer[0]),
                port("filer.port.grpc", ports.filer[1]),
            ])
            .args([
                port("s3.port", ports.s3[0]),
                port("s3.port.grpc", ports.s3[1]),
            ])
            .env("AWS_ACCESS_KEY_ID", KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .process_group(0);
        self.running = Some(command.spawn().unwrap());
        self.wait_until_it_serves();
    }

    /// As a lost machine does it.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.running.take() {
            let group = Pid::from_raw(i32::try_from(child.id()).unwrap());
            killpg(group, Signal::SIGKILL).unwrap();
            child.wait().unwrap();
        }
    }

    /// A bucket with a prefix, as settings name it.
    #[must_use]
    pub fn address(&self) -> String {
        format!("s3://{BUCKET}/baton")
    }

    /// The environment of a program that uses it.
    #[must_use]
    pub fn variables(&self) -> Vec<(String, String)> {
        let endpoint = format!("http://127.0.0.1:{}", self.ports.s3[0]);
        let variables = [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_ALLOW_HTTP", "true"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
        ];
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        variables.map(owned).into()
    }

    fn wait_until_it_serves(&mut self) {
        let path = format!("/buckets/{BUCKET}/");
        let filer = self.ports.filer[0];
        let began = Instant::now();
        // A file can be written when the volumes are there.
        let file = format!("{path}ready");
        let is_ready = || {
            // It exists when the store starts again.
            status(filer, "POST", &path, "").is_some_and(|status| status < 300 || status == 409)
                && status(filer, "PUT", &file, "x").is_some_and(|status| status < 300)
                && status(filer, "DELETE", &file, "").is_some_and(|status| status < 300)
                && status(self.ports.s3[0], "GET", "/class", "") == Some(403)
        };
        while !is_ready() {
            let log = || fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
            assert!(began.elapsed() < DEADLINE, "It does not start: {}", log());
            thread::sleep(Duration::from_millis(100));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Ports {
    fn free() -> Self {
        // All at once, so that none is given twice.
        let sockets: Vec<TcpListener> = (0..8)
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
            .collect();
        let port = |index: usize| sockets[index].local_addr().unwrap().port();
        Self {
            master: [port(0), port(1)],
            volume: [port(2), port(3)],
            filer: [port(4), port(5)],
            s3: [port(6), port(7)],
        }
    }
}

fn program() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = root.join(".venv/bin/weed");
    assert!(
        program.exists(),
        "{} is missing: make .venv/.requirements-test",
        program.display()
    );
    program
}

/// Of the answer, if there is one.
fn status(port: u16, method: &str, path: &str, body: &str) -> Option<u16> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer);
    answer.split(' ').nth(1)?.parse().ok()
}
