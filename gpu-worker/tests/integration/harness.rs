//! A worker in this process, and the verbs that tests use on it.

use crate::broker::{Broker, Line};
use baton_gpu_worker::{
    Config, FilesChoice, NetworkChoice, SandboxChoice, Stop, gpu::GpuMode, run,
};
use baton_protocol::{
    Answer, Cell, FencingNumber, Finished, JobEvent, JobId, JobKind, Manifest, NotebookId, Outcome,
    Payload, Piece, Priority, RemoteError, State, StateVersion, Submission, TableId, Usage,
    WorkerId,
    worker::{FromWorker, ToWorker},
};
use baton_transport::{Dial, TransportChoice};
use bytes::Bytes;
use std::{
    collections::VecDeque,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{sync::watch, task::JoinHandle};

/// Long enough for a slow machine; a test that gets here has failed.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future)
        .await
        .expect("this takes far too long")
}

pub(crate) async fn eventually(mut condition: impl FnMut() -> bool) {
    within(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

pub(crate) fn is_running(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

pub(crate) fn test_python() -> PathBuf {
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

/// A Python that finds the fake session; `environment` is exported before the command.
pub(crate) fn fake_python(folder: &Path, environment: &str) -> PathBuf {
    let fake = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fake_session");
    let version = env!("CARGO_PKG_VERSION");
    python_with(
        folder,
        &format!("PYTHONPATH={fake} BATON_TEST_VERSION={version} {environment}"),
    )
}

/// A Python that finds the package of this repository.
pub(crate) fn real_python(folder: &Path) -> PathBuf {
    python_with(folder, &format!("PYTHONPATH={}", shim_folder().display()))
}

pub(crate) fn shim_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("python-shim")
}

fn python_with(folder: &Path, environment: &str) -> PathBuf {
    let path = folder.join("python");
    let python = test_python();
    let script = format!(
        "#!/bin/sh\nexport {environment}\nexec {} \"$@\"\n",
        python.display()
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

/// The paths of sockets must be short.
pub(crate) fn short_folder() -> tempfile::TempDir {
    tempfile::Builder::new()
        .prefix("w")
        .tempdir_in("/tmp")
        .unwrap()
}

pub(crate) fn config(dial: Dial, folder: &Path) -> Config {
    Config {
        id: WorkerId::random(),
        dial,
        transport: TransportChoice::Auto,
        patience: Duration::from_secs(600),
        name: None,
        slots: Some(2),
        python: Some(fake_python(folder, "")),
        usual_python: None,
        environments: Vec::new(),
        environments_folder: folder.join("environments"),
        cache: folder.join("cache"),
        cache_limit_bytes: 1 << 30,
        session_idle: Duration::from_secs(600),
        session_memory_bytes: None,
        session_disk_bytes: None,
        answer_patience: DEADLINE,
        cancel_grace: DEADLINE,
        stop_grace: None,
        files: FilesChoice::Auto,
        mirrors: folder.join("mirrors"),
        install_packages: true,
        files_limit_bytes: 1 << 30,
        idle_exit: None,
        labels: Vec::new(),
        leaves_at: None,
        gpu_mode: GpuMode::Open,
        gpu_memory_bytes: None,
        baton: None,
        session_environment: Vec::new(),
        session_processes: 4096,
        session_cpus: None,
        session_scratch_bytes: 8 << 30,
        sandbox: SandboxChoice::None,
        network: NetworkChoice::None,
        warm_starts: false,
        preload: Vec::new(),
        readable: Vec::new(),
        runtime_folder: folder.join("run"),
        status: watch::Sender::default(),
    }
}

pub(crate) struct Worker {
    pub(crate) broker: Broker,
    pub(crate) line: Line,
    pub(crate) hello: FromWorker,
    pub(crate) folder: tempfile::TempDir,
    /// `None` if it runs in another process.
    task: Option<JoinHandle<anyhow::Result<()>>>,
    stop: watch::Sender<Stop>,
    fencing: FencingNumber,
    /// Reports about warm sessions that no test has looked at yet.
    sessions: VecDeque<Vec<NotebookId>>,
}

impl Worker {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// Starts a worker, and welcomes it.
    pub(crate) async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let _ = tracing_subscriber::fmt()
            .with_test_writer()
            .with_max_level(tracing::Level::DEBUG)
            .try_init();
        let broker = Broker::start().await;
        let folder = short_folder();
        let mut config = config(broker.dial(), folder.path());
        change(&mut config);
        let stop = watch::Sender::default();
        let task = tokio::spawn(run(config, stop.subscribe()));
        let (line, hello) = broker.welcome().await;
        Self {
            broker,
            line,
            hello,
            folder,
            task: Some(task),
            stop,
            fencing: 0,
            sessions: VecDeque::new(),
        }
    }

    /// Welcomes a worker in another process that connects to this broker.
    pub(crate) async fn attach(broker: Broker, folder: tempfile::TempDir) -> Self {
        let (line, hello) = broker.welcome().await;
        Self {
            broker,
            line,
            hello,
            folder,
            task: None,
            stop: watch::Sender::default(),
            fencing: 0,
            sessions: VecDeque::new(),
        }
    }

    /// Gives the worker a job. Returns its fencing number.
    pub(crate) async fn assign(&mut self, submission: Submission) -> FencingNumber {
        self.fencing += 1;
        let fencing = self.fencing;
        self.line
            .send(ToWorker::Assign {
                fencing,
                account: 1,
                environment: None,
                submission,
            })
            .await;
        fencing
    }

    async fn receive(&mut self) -> FromWorker {
        let message = self.line.receive().await;
        if let FromWorker::Sessions { warm, .. } = &message {
            self.sessions.push_back(warm.clone());
        }
        message
    }

    /// The next events of a job, which are acknowledged at once.
    pub(crate) async fn events(&mut self, job: JobId) -> Vec<JobEvent> {
        loop {
            if let FromWorker::Events {
                job: of,
                fencing,
                first,
                events,
            } = self.receive().await
                && of == job
            {
                let number = first + events.len() as u64 - 1;
                self.line
                    .send(ToWorker::Acknowledge {
                        job,
                        fencing,
                        number,
                    })
                    .await;
                return events;
            }
        }
    }

    /// Waits for an event. Returns it and the events before it.
    pub(crate) async fn events_until(
        &mut self,
        job: JobId,
        is_it: impl Fn(&JobEvent) -> bool,
    ) -> Vec<JobEvent> {
        within(async {
            let mut events = Vec::new();
            while !events.iter().any(&is_it) {
                events.extend(self.events(job).await);
            }
            events
        })
        .await
    }

    /// Waits for the job's next question and answers it. Returns the events up to the question.
    pub(crate) async fn answer_next(&mut self, job: JobId, answer: Answer) -> Vec<JobEvent> {
        let is_question = |event: &JobEvent| event.question().is_some();
        let events = self.events_until(job, is_question).await;
        let question = events.iter().find_map(JobEvent::question).unwrap();
        self.answer(job, question, answer).await;
        events
    }

    pub(crate) async fn answer(&mut self, job: JobId, question: u64, answer: Answer) {
        let answer = ToWorker::Answer {
            job,
            question,
            answer,
        };
        self.line.send(answer).await;
    }

    pub(crate) async fn until_finished(&mut self, job: JobId) -> Ran {
        let events = self.events_until(job, JobEvent::is_last).await;
        Ran::new(events)
    }

    /// Runs a job from its assignment to its end.
    pub(crate) async fn run(&mut self, submission: Submission) -> Ran {
        let job = submission.job;
        self.assign(submission).await;
        self.until_finished(job).await
    }

    /// Begins a cell, and returns when it has shown something.
    pub(crate) async fn begin(&mut self, submission: Submission) -> JobId {
        let job = submission.job;
        self.assign(submission).await;
        self.events_until(job, |event| matches!(event, JobEvent::Output(_)))
            .await;
        job
    }

    /// Waits until the worker has reported that exactly these notebooks have warm sessions.
    pub(crate) async fn until_warm(&mut self, expected: &[NotebookId]) {
        within(async {
            loop {
                match self.sessions.pop_front() {
                    Some(warm) if warm == expected => return,
                    Some(_) => {}
                    None => drop(self.receive().await),
                }
            }
        })
        .await;
    }

    pub(crate) fn ask_to_leave(&self, stop: Stop) {
        stop.ask(&self.stop);
    }

    /// Returns when the worker has ended, with the result of `run`.
    pub(crate) async fn gone(self) -> anyhow::Result<()> {
        within(self.task.unwrap()).await.unwrap()
    }
}

pub(crate) fn welcome() -> ToWorker {
    ToWorker::Welcome {
        broker_version: "test".to_owned(),
        name: "cpu-0".to_owned(),
    }
}

/// The manifest of a state that was sent through the broker.
pub(crate) fn in_chunks(state: State) -> Manifest {
    match state {
        State::Chunks(manifest) => manifest,
        State::Memory(held) => panic!("{held:?} is not in chunks"),
    }
}

/// The manifest of a submission, to change it.
pub(crate) fn manifest(submission: &mut Submission) -> &mut Manifest {
    match &mut submission.state {
        State::Chunks(manifest) => manifest,
        State::Memory(held) => panic!("{held:?} is not in chunks"),
    }
}

/// What a job's events show.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) events: Vec<JobEvent>,
    pub(crate) outcome: Outcome,
    pub(crate) error: Option<RemoteError>,
    pub(crate) state: Option<Manifest>,
    pub(crate) usage: Usage,
    pub(crate) files: Option<Payload>,
}

impl Ran {
    pub(crate) fn new(events: Vec<JobEvent>) -> Self {
        let Some(JobEvent::Finished(Finished {
            outcome,
            error,
            state,
            usage,
            files,
            ..
        })) = events.last().cloned()
        else {
            panic!("no last event in {events:?}");
        };
        Self {
            events,
            outcome,
            error,
            state: state.map(in_chunks),
            usage,
            files,
        }
    }

    pub(crate) fn ok(self) -> Self {
        assert_eq!((self.outcome, &self.error), (Outcome::Ok, &None));
        self
    }

    pub(crate) fn error_text(&self) -> &str {
        &self.error.as_ref().expect("an error").value
    }

    /// All that was written to a stream.
    pub(crate) fn text(&self, name: &str) -> String {
        stream_text(&self.events, name)
    }

    pub(crate) fn outputs(&self) -> impl Iterator<Item = (&str, serde_json::Value)> {
        outputs(&self.events)
    }

    /// The value of a name that was returned.
    pub(crate) fn value(&self, name: &str) -> serde_json::Value {
        let manifest = self.state.as_ref().expect("a state");
        let stream: Vec<u8> = manifest
            .stream
            .iter()
            .flat_map(|piece| match piece {
                Piece::Inline(bytes) => bytes.to_vec(),
                Piece::Stored { .. } => panic!("a small stream travels in the manifest"),
            })
            .collect();
        serde_json::from_slice::<serde_json::Value>(&stream).unwrap()[name].take()
    }
}

/// The notebook's side: one object table, and cells.
pub(crate) struct Notebook {
    pub(crate) id: NotebookId,
    pub(crate) version: StateVersion,
    cells: u32,
}

impl Notebook {
    pub(crate) fn new() -> Self {
        Self {
            id: NotebookId::random(),
            version: fresh(),
            cells: 0,
        }
    }

    /// A cell that continues the state that both ends hold, and sends `values`.
    pub(crate) fn cell_with(&mut self, code: &str, values: &serde_json::Value) -> Submission {
        self.cells += 1;
        let submission = Submission {
            job: JobId::random(),
            notebook: self.id,
            notebook_name: "test.ipynb".to_owned(),
            cell_key: None,
            priority: Priority::Normal,
            group: None,
            cell: Cell {
                code: code.to_owned(),
                message_id: format!("cell-{}", self.cells),
                execution_count: self.cells,
                kind: JobKind::Cell,
                silent: false,
                timeout_ms: None,
                longest_timeout_ms: None,
                gpu_memory_bytes: None,
                gpu: None,
                environment: None,
                allow_stdin: true,
                python: "python3".to_owned(),
                python_version: "3.test".to_owned(),
                folder: "/tmp".to_owned(),
                notebook_folder: None,
            },
            state: self.state(values),
        };
        self.version.messages += 2;
        submission
    }

    pub(crate) fn cell(&mut self, code: &str) -> Submission {
        self.cell_with(code, &serde_json::json!({}))
    }

    /// A state that continues what both ends hold.
    pub(crate) fn state(&self, values: &serde_json::Value) -> State {
        State::Chunks(Manifest {
            base: self.version,
            stream: vec![Piece::Inline(Bytes::from(values.to_string()))],
            segments: Vec::new(),
            dropped_segments: Vec::new(),
        })
    }

    /// The table is void: the next cell starts a new one.
    pub(crate) fn forget(&mut self) {
        self.version = fresh();
    }
}

fn fresh() -> StateVersion {
    StateVersion {
        table: TableId::random(),
        messages: 0,
    }
}

fn outputs(events: &[JobEvent]) -> impl Iterator<Item = (&str, serde_json::Value)> {
    events.iter().filter_map(|event| match event {
        JobEvent::Output(output) => {
            let content = serde_json::from_slice(&output.content).unwrap();
            Some((output.kind.as_str(), content))
        }
        _ => None,
    })
}

/// All that was written to a stream.
pub(crate) fn stream_text(events: &[JobEvent], name: &str) -> String {
    outputs(events)
        .filter(|(kind, content)| *kind == "stream" && content["name"] == name)
        .map(|(_, content)| content["text"].as_str().unwrap().to_owned())
        .collect()
}
