//! A machine with one card, the worker's side, and programs on it.

use baton_gpu_tests::{CARD, Machine};
use baton_gpu_worker::gpu::{Admission, Cell, Gpu, HostRoom, Listener, Monitored, Token, Usage};
use baton_interposer::wire::{SOCKET, TOKEN};
use baton_scheduling::arbiter::{Memory, Settings};
use nix::unistd::Pid;
use std::{
    collections::HashMap,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::{runtime::Runtime, sync::watch};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) struct World {
    pub(crate) machine: Machine,
    folder: TempDir,
    runtime: Runtime,
    gpu: Option<Gpu>,
    listener: Option<Listener>,
    /// The worker's monitoring of the card, from its next start on.
    pub(crate) monitored: Option<Monitored>,
    settings: Settings,
    interposer: PathBuf,
    pub(crate) tokens: Vec<Token>,
    admitted: Token,
    released: HashMap<Token, watch::Receiver<bool>>,
    host: Option<Arc<Host>>,
}

/// What the worker finds of the host's memory.
#[derive(Default)]
struct Host {
    /// For all sessions, and for each process.
    room: Mutex<(u64, u64)>,
    /// How often it has looked.
    looks: AtomicU64,
}

impl World {
    pub(crate) fn new(memory_bytes: u64) -> Self {
        Self::with_settings(memory_bytes, |_| {})
    }

    /// Levels and slices are much shorter than usual, so that leases are short.
    pub(crate) fn with_settings(memory_bytes: u64, change: impl Fn(&mut Settings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine::create(folder.path(), memory_bytes).unwrap();
        let interposer = baton_interposer::install(folder.path()).unwrap();
        let mut settings = Settings::new(Memory {
            usable_bytes: memory_bytes,
            reserve_bytes: 0,
            host_bytes: 64 * memory_bytes,
        });
        settings.levels = [100, 400, 1600].map(Duration::from_millis);
        settings.slice = Duration::from_millis(400);
        settings.together = 1;
        change(&mut settings);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let mut world = Self {
            machine,
            folder,
            runtime,
            gpu: None,
            listener: None,
            monitored: None,
            settings,
            interposer,
            tokens: Vec::new(),
            admitted: 0,
            released: HashMap::new(),
            host: None,
        };
        world.start_worker();
        world
    }

    pub(crate) fn start_worker(&mut self) {
        let _entered = self.runtime.enter();
        let settings = self.settings.clone();
        let gpu = Gpu::start(|_| settings, self.monitored.clone());
        self.listener = Some(gpu.listen(&self.socket()).unwrap());
        for token in &self.tokens {
            let released = gpu.admit(admission(*token, None));
            self.released.insert(*token, released);
        }
        self.gpu = Some(gpu);
    }

    /// Ends all connections at once.
    pub(crate) fn stop_worker(&mut self) {
        self.listener = None;
        self.gpu = None;
    }

    fn gpu(&self) -> &Gpu {
        self.gpu.as_ref().unwrap()
    }

    pub(crate) fn cell(&self, token: Token, cell: Cell) {
        self.gpu().cell(token, cell);
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    pub(crate) fn usage(&self, token: Token) -> Usage {
        self.runtime.block_on(self.gpu().usage(token))
    }

    pub(crate) fn admit(&mut self, cap_bytes: Option<u64>) -> Token {
        self.admitted += 1;
        let token = Token::from(u64::MAX) + self.admitted;
        self.tokens.push(token);
        let released = self.gpu().admit(admission(token, cap_bytes));
        self.released.insert(token, released);
        token
    }

    /// Waits until the session is asked to leave the GPU.
    pub(crate) fn wait_for_release(&mut self, token: Token) {
        let released = self.released.get_mut(&token).unwrap();
        let told = self
            .runtime
            .block_on(released.wait_for(|released| *released));
        told.unwrap();
    }

    pub(crate) fn is_released(&self, token: Token) -> bool {
        *self.released[&token].borrow()
    }

    pub(crate) fn limit(&self, token: Token, bytes: Option<u64>) {
        self.runtime.block_on(self.gpu().limit(token, bytes));
    }

    pub(crate) fn dismiss(&mut self, token: Token) {
        self.tokens.retain(|one| *one != token);
        self.gpu().dismiss(token);
    }

    /// From now on, the worker finds this much more host memory for all sessions, and for each process by its own
    /// limits.
    pub(crate) fn host_has(&mut self, bytes: u64, own_bytes: u64) {
        let host = self.host.take().unwrap_or_else(|| self.follow_host());
        *host.room.lock().unwrap() = (bytes, own_bytes);
        let looks = host.looks.load(SeqCst);
        // What the first look finds is reported before the second.
        assert!(eventually(|| host.looks.load(SeqCst) > looks + 1));
        self.host = Some(host);
    }

    fn follow_host(&self) -> Arc<Host> {
        let host = Arc::<Host>::default();
        let seen = host.clone();
        let _entered = self.runtime.enter();
        self.gpu().follow_host(move |processes: &[Pid]| {
            seen.looks.fetch_add(1, SeqCst);
            let (bytes, own_bytes) = *seen.room.lock().unwrap();
            let of_processes = processes.iter().map(|one| (*one, own_bytes)).collect();
            HostRoom {
                bytes,
                of_processes,
            }
        });
        host
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("gpu")
    }

    /// The environment of every process of a session.
    pub(crate) fn environment(&self, token: Token) -> HashMap<String, String> {
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let folder = self.folder.path();
        HashMap::from([
            ("LD_PRELOAD".to_owned(), text(self.interposer.clone())),
            ("LD_LIBRARY_PATH".to_owned(), text(folder.to_owned())),
            (CARD.to_owned(), text(self.machine.card())),
            (SOCKET.to_owned(), text(self.socket())),
            (TOKEN.to_owned(), format!("{token:x}")),
        ])
    }

    /// A program in its own new session.
    pub(crate) fn client(&mut self) -> Client {
        let token = self.admit(None);
        self.client_of(token, &[])
    }

    /// The same with NVIDIA's Python bindings.
    pub(crate) fn bindings(&mut self, bytes: u64, rounds: u32) -> Client {
        let token = self.admit(None);
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let packages = here.join("../../.venv/cuda");
        assert!(packages.exists(), "Missing: make .venv/.requirements-cuda");
        let python = std::env::var_os("BATON_TEST_PYTHON").unwrap_or_else(|| "python3".into());
        let mut command = Command::new(python);
        command
            .arg(here.join("tests/integration/bindings.py"))
            .args([bytes.to_string(), rounds.to_string()])
            .envs(self.environment(token))
            .env("PYTHONPATH", packages);
        Client::start(command)
    }

    pub(crate) fn command_of(&self, token: Token) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gpu-client"));
        command.envs(self.environment(token));
        command
    }

    /// A program without the interposer.
    pub(crate) fn client_alone(&mut self) -> Client {
        let mut command = self.command_of(0);
        command.env_remove("LD_PRELOAD");
        Client::start(command)
    }

    pub(crate) fn client_of(&self, token: Token, variables: &[(&str, &str)]) -> Client {
        let mut command = self.command_of(token);
        command.envs(variables.iter().copied());
        Client::start(command)
    }
}

fn admission(token: Token, cap_bytes: Option<u64>) -> Admission {
    Admission {
        token,
        user: token as u64,
        cap_bytes,
    }
}

pub(crate) struct Client {
    pub(crate) child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Client {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut client = Self {
            input: child.stdin.take(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        assert_eq!(client.answer().unwrap(), "ok ready");
        client
    }

    /// Sends a command without waiting for the answer.
    pub(crate) fn send(&mut self, command: &str) {
        writeln!(self.input.as_mut().unwrap(), "{command}").unwrap();
    }

    /// Returns `None` if the program has ended.
    pub(crate) fn answer(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line).unwrap();
        (read > 0).then(|| line.trim_end().to_owned())
    }

    /// Runs a command, and returns the answer without the word `ok`.
    pub(crate) fn does(&mut self, command: &str) -> String {
        let answer = self.says(command);
        let result = answer
            .strip_prefix("ok")
            .map(|rest| rest.trim_start().to_owned());
        result.unwrap_or_else(|| panic!("{command}: {answer}"))
    }

    pub(crate) fn says(&mut self, command: &str) -> String {
        self.send(command);
        let answer = self.answer();
        answer.unwrap_or_else(|| panic!("{command}: it ended with {:?}", self.child.wait()))
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Longer than anything takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + PATIENCE;
    while !condition() {
        if Instant::now() > until {
            return false;
        }
        std::thread::yield_now();
    }
    true
}
