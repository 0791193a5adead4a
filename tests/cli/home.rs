//! A home of an imaginary user, and the command in it.

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

pub(crate) struct Home {
    folder: TempDir,
}

/// A test fails that leaves a process behind.
impl Drop for Home {
    fn drop(&mut self) {
        let end = Instant::now() + DEADLINE;
        while !self.processes().is_empty() && Instant::now() < end && !std::thread::panicking() {
            std::thread::sleep(POLL);
        }
        let left = self.processes();
        let named = left.iter().map(|process| {
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            format!(
                "{process}: {}",
                String::from_utf8_lossy(&line).replace('\0', " ")
            )
        });
        let named: Vec<String> = named.collect();
        for process in left {
            let _ = kill(process, Signal::SIGKILL);
        }
        assert!(
            named.is_empty() || std::thread::panicking(),
            "processes left behind: {named:?}"
        );
    }
}

/// What a command that ended said.
pub(crate) struct Said {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Home {
    pub(crate) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        Self { folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn runtime(&self, name: &str) -> PathBuf {
        self.path("run/baton").join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Nothing of the environment of the tests but PATH gets in.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
        command
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.folder.path())
            .env("XDG_RUNTIME_DIR", self.path("run"))
            .env("XDG_STATE_HOME", self.path("state"))
            .current_dir(self.folder.path());
        command
    }

    /// Every process that was started in this home, directly or not, and lives.
    pub(crate) fn processes(&self) -> Vec<Pid> {
        let mark = format!("HOME={}", self.folder.path().display());
        let carries = |process: &Path| {
            let environment = fs::read(process.join("environ")).unwrap_or_default();
            let mut entries = environment.split(|byte| *byte == 0);
            entries.any(|entry| entry == mark.as_bytes())
        };
        let all = fs::read_dir("/proc").unwrap().flatten();
        let ours = all.filter(|entry| carries(&entry.path()));
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        ours.filter_map(number).map(Pid::from_raw).collect()
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Said {
        said(&mut self.command(arguments))
    }

    /// `baton status`, as soon as the broker is ready: it listens a moment earlier.
    pub(crate) fn status(&self, arguments: &[&str]) -> Said {
        wait_until("the broker is ready", || {
            let said = self.run(&[&["status"], arguments].concat());
            said.stdout.contains("Health: ready").then_some(said)
        })
    }

    pub(crate) fn run_with_input(&self, arguments: &[&str], input: &str) -> Said {
        let file = self.write("input", input);
        said_to(
            &mut self.command(arguments),
            fs::File::open(file).unwrap().into(),
        )
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Service {
        Service::start(&mut self.command(arguments))
    }
}

pub(crate) fn said(command: &mut Command) -> Said {
    said_to(command, Stdio::null())
}

pub(crate) fn said_to(command: &mut Command, input: Stdio) -> Said {
    let output = command.stdin(input).output().unwrap();
    Said {
        status: output.status,
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A command that stays until it is asked to end.
pub(crate) struct Service {
    child: Child,
    stdout: BufReader<std::process::ChildStdout>,
}

impl Service {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    /// Reads on until a line begins so; the rest of that line.
    pub(crate) fn line(&mut self, beginning: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let bytes = self.stdout.read_line(&mut line).unwrap();
            assert!(bytes > 0, "it ended before it said {beginning:?}");
            if let Some(rest) = line.strip_prefix(beginning) {
                return rest.trim().to_owned();
            }
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
    }

    pub(crate) fn ended(&mut self) -> ExitStatus {
        wait_until("the service ended", || self.child.try_wait().unwrap())
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub(crate) fn rest(&mut self) -> String {
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        rest
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn wait_until<Value>(what: &str, mut condition: impl FnMut() -> Option<Value>) -> Value {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < end, "not within {DEADLINE:?}: {what}");
        std::thread::sleep(POLL);
    }
}

pub(crate) fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// A Python with whatever it has.
pub(crate) fn python() -> String {
    std::env::var("BATON_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned())
}
