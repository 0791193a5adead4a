//! Real object stores in a temporary folder, on ports of this machine, gone when they are dropped.
//!
//! They are SeaweedFS, Azurite and fake-gcs-server, which the tests' requirements install into the virtual environment.
//! What the last two do not do as the services that they stand for:
//!
//! * Azurite writes its index every five seconds and when it ends, so it is asked to end where the others are killed.
//! * fake-gcs-server checks no signature and no signed header: `tests/test_object_store_kinds.py` compares the signatures with those
//!   of Google's own library.
#![allow(clippy::unwrap_used)]

mod azurite;
mod fake_gcs;
mod requests;
mod seaweed;

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use std::{
    fs,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const BUCKET: &str = "class";
/// On two busy cores it takes some ten seconds.
const DEADLINE: Duration = Duration::from_secs(120);

/// Whose protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    S3,
    Azure,
    Google,
}

/// What one kind of server does in its own way.
trait Program: Send {
    /// Keeps what it has in the folder.
    fn command(&self, folder: &Path) -> Command;
    /// Also makes the bucket.
    fn serves(&self) -> bool;
    fn scheme(&self) -> &'static str;
    fn variables(&self) -> Vec<(&'static str, String)>;
    /// As a lost machine does it, or as near to that as it can without losing what was acknowledged.
    fn end(&self) -> Signal {
        Signal::SIGKILL
    }
}

pub struct Server {
    folder: TempDir,
    program: Box<dyn Program>,
    running: Option<Child>,
}

impl Server {
    /// With Amazon's protocol.
    #[must_use]
    pub fn start() -> Self {
        Self::of(Kind::S3)
    }

    #[must_use]
    pub fn of(kind: Kind) -> Self {
        Self::with(|| match kind {
            Kind::S3 => Box::new(seaweed::Seaweed::new(40, 64)),
            Kind::Azure => Box::new(azurite::Azurite::new()),
            Kind::Google => Box::new(fake_gcs::FakeGcs::new()),
        })
    }

    /// With room for some 64 MB.
    #[must_use]
    pub fn start_small() -> Self {
        Self::with(|| Box::new(seaweed::Seaweed::new(8, 8)))
    }

    /// Azure's, with room for some megabytes, which it forgets when it ends.
    #[must_use]
    pub fn start_small_azure(megabytes: u32) -> Self {
        Self::with(|| Box::new(azurite::Azurite::with_memory(megabytes)))
    }

    fn with(program: impl Fn() -> Box<dyn Program>) -> Self {
        let attempt = || {
            let mut server = Self {
                folder: tempfile::tempdir().unwrap(),
                program: program(),
                running: None,
            };
            server.begin().map(|()| server)
        };
        // Another process may take a port between the search for free ones and the start.
        attempt()
            .or_else(|_| attempt())
            .unwrap_or_else(|log| panic!("It does not start: {log}"))
    }

    /// With what it had, on the same ports.
    pub fn start_again(&mut self) {
        self.begin()
            .unwrap_or_else(|log| panic!("It does not start again: {log}"));
    }

    /// Waits until it serves. Returns its log if it ends instead, or takes too long.
    fn begin(&mut self) -> Result<(), String> {
        let data = self.folder.path().join("data");
        fs::create_dir_all(&data).unwrap();
        let log = self.folder.path().join("log");
        let written = fs::File::create(&log).unwrap();
        let mut command = self.program.command(&data);
        command
            .stdin(Stdio::null())
            .stdout(written.try_clone().unwrap())
            .stderr(written)
            .process_group(0);
        let running = self.running.insert(command.spawn().unwrap());
        let began = Instant::now();
        while !self.program.serves() {
            if began.elapsed() > DEADLINE || running.try_wait().unwrap().is_some() {
                return Err(fs::read_to_string(&log).unwrap());
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Everybody who uses it is cut off.
    pub fn kill(&mut self) {
        self.end(self.program.end());
    }

    fn end(&mut self, signal: Signal) {
        if let Some(mut child) = self.running.take() {
            let group = Pid::from_raw(i32::try_from(child.id()).unwrap());
            // It may have ended by itself.
            let _ = killpg(group, signal);
            child.wait().unwrap();
        }
    }

    /// A bucket with a prefix, as settings name it.
    #[must_use]
    pub fn address(&self) -> String {
        format!("{}://{BUCKET}/baton", self.program.scheme())
    }

    /// The environment of a program that uses it.
    #[must_use]
    pub fn variables(&self) -> Vec<(String, String)> {
        let owned = |(name, value): (&str, String)| (name.to_owned(), value);
        self.program.variables().into_iter().map(owned).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end(Signal::SIGKILL);
    }
}

/// In the virtual environment.
fn installed(path: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../.venv")
        .join(path);
    assert!(
        path.exists(),
        "{} is missing: make .venv/.requirements-test .venv/.azurite",
        path.display()
    );
    path
}
