//! Cells in the package's own session, with its object table.

use crate::{
    broker::Broker,
    harness::{
        Notebook, Worker, config, eventually, is_running, manifest, real_python, shim_folder,
        short_folder, stream_text, test_python,
    },
};
use baton_gpu_worker::Config;
use baton_protocol::{JobEvent, Outcome, Piece};
use bytes::Bytes;
use std::process::Command;

/// What a notebook's shim sends for a first cell that needs `a`, which is 20.
const SNAPSHOT: &str = r#"
import sys
from baton_shim.state import Table
table = Table({"a": 20})
extra = {"names": ["a"], "stores": [], "sources": {}, "around": {}, "figures": None, "handlers": None, "drop": [], "returns": True, "notebook": "", "dynamic": False, "last_error": None, "hooks": None, "patched": "", "deleted": [], "results": 0}
snapshot = table.snapshot(["a"], extra=extra)
assert snapshot.messages == 0 and not snapshot.segments
sys.stdout.buffer.write(bytes(snapshot.stream))
major, minor = sys.version_info[:2]
sys.stderr.write(f"{major}.{minor}")
"#;

pub(crate) struct Real {
    pub(crate) worker: Worker,
    pub(crate) notebook: Notebook,
    stream: Bytes,
    python_version: String,
}

impl Real {
    async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    pub(crate) async fn start_with(change: impl FnOnce(&mut Config)) -> Self {
        let worker = Worker::start_with(|config| {
            let folder = config.runtime_folder.parent().unwrap();
            config.python = Some(real_python(folder));
            change(config);
        })
        .await;
        Self::with(worker)
    }

    fn with(worker: Worker) -> Self {
        let made = Command::new(test_python())
            .args(["-c", SNAPSHOT])
            .env("PYTHONPATH", shim_folder())
            .output()
            .unwrap();
        let python_version = String::from_utf8(made.stderr).unwrap();
        assert!(made.status.success(), "{python_version}");
        Self {
            worker,
            notebook: Notebook::new(),
            stream: made.stdout.into(),
            python_version,
        }
    }

    pub(crate) fn cell(&mut self, code: &str) -> baton_protocol::Submission {
        let mut submission = self.notebook.cell(code);
        submission
            .cell
            .python_version
            .clone_from(&self.python_version);
        manifest(&mut submission).stream = vec![Piece::Inline(self.stream.clone())];
        submission
    }
}

#[tokio::test]
async fn a_cell_runs_in_the_session_of_the_package() {
    let mut real = Real::start().await;
    let submission = real.cell("print(a + 1)\nb = a * 2\nb");
    let ran = real.worker.run(submission).await.ok();
    assert_eq!(ran.text("stdout"), "21\n");
    assert!(matches!(ran.events[0], JobEvent::Started { .. }));
    let state = ran.state.unwrap();
    assert_eq!(state.base.messages, 1);
    assert!(state.bytes() > 0);
}

#[tokio::test]
async fn an_error_of_the_package_s_session_names_the_exception() {
    let mut real = Real::start().await;
    let submission = real.cell("a / 0");
    let ran = real.worker.run(submission).await;
    assert_eq!(ran.outcome, Outcome::Error);
    assert_eq!(ran.error.unwrap().name, "ZeroDivisionError");
}

#[tokio::test]
async fn a_state_that_the_package_cannot_read_is_refused() {
    let mut real = Real::start().await;
    real.stream = Bytes::from_static(b"no pickle");
    let submission = real.cell("a");
    let ran = real.worker.run(submission).await;
    assert_eq!((ran.outcome, &ran.state), (Outcome::Refused, &None));
    assert!(ran.usage.run_ms < 10_000, "{:?}", ran.usage);
}

/// Set if this test runs as the worker, in a process of its own.
const BROKER: &str = "BATON_TEST_BROKER";

#[tokio::test]
async fn sessions_end_with_a_worker_that_is_killed() {
    if let Ok(address) = std::env::var(BROKER) {
        return be_the_worker(&address).await;
    }
    let broker = Broker::start().await;
    let folder = short_folder();
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "real::sessions_end_with_a_worker_that_is_killed"])
        .env(BROKER, &broker.address)
        .env(FOLDER, folder.path())
        .spawn()
        .unwrap();
    let mut real = Real::with(Worker::attach(broker, folder).await);

    let idle = real.cell("import os\nprint(os.getpid())");
    let idle = real.worker.run(idle).await.ok().text("stdout");
    real.notebook = Notebook::new();
    let busy = real.cell("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(600)");
    let job = busy.job;
    real.worker.assign(busy).await;
    let is_output = |event: &JobEvent| matches!(event, JobEvent::Output(_));
    let events = real.worker.events_until(job, is_output).await;
    let busy = stream_text(&events, "stdout");

    process.kill().unwrap();
    process.wait().unwrap();
    let pids = [idle, busy].map(|text| text.trim().parse().unwrap());
    eventually(|| !pids.iter().any(|pid| is_running(*pid))).await;
}

const FOLDER: &str = "BATON_TEST_FOLDER";

async fn be_the_worker(address: &str) {
    let folder = std::path::PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let dial = baton_transport::Dial {
        address: address.parse().unwrap(),
        token: None,
        ca_file: None,
    };
    let mut config = config(dial, &folder);
    config.python = Some(real_python(&folder));
    baton_gpu_worker::run(config, tokio::sync::watch::Sender::default().subscribe())
        .await
        .unwrap();
}
