//! Cells that do not end by themselves, and sessions that cannot start.

use crate::harness::{
    Notebook, Worker, eventually, fake_python, is_running, manifest, short_folder, stream_text,
};
use baton_protocol::{
    Answer, CHUNK_BYTES, JobEvent, JobId, Outcome, Piece, Submission,
    worker::{FromWorker, ToWorker},
};
use bytes::Bytes;
use serde_json::json;
use std::{path::Path, time::Duration};

/// The time limit of a cell that must do something first, even on a busy machine.
const TIME_LIMIT_MS: u64 = 5000;

fn is_output(event: &JobEvent) -> bool {
    matches!(event, JobEvent::Output(_))
}

/// Starts a cell that prints its process id and then waits. Returns once it has printed.
async fn waiting_cell(
    worker: &mut Worker,
    notebook: &mut Notebook,
    preparation: &str,
) -> (JobId, i32) {
    let submission = notebook.cell(&format!(
        "import os, time\nx = 1\n{preparation}\nprint(os.getpid(), flush=True)\ntime.sleep(600)"
    ));
    let job = submission.job;
    worker.assign(submission).await;
    let events = worker.events_until(job, is_output).await;
    let pid = stream_text(&events, "stdout")
        .lines()
        .next()
        .unwrap()
        .parse()
        .unwrap();
    (job, pid)
}

#[tokio::test]
async fn an_interrupt_ends_the_cell_and_its_state_comes_back() {
    let mut worker = Worker::start().await;
    let mut notebook = Notebook::new();
    let (job, pid) = waiting_cell(&mut worker, &mut notebook, "").await;
    worker.line.send(ToWorker::Cancel { job }).await;
    let ran = worker.until_finished(job).await;
    assert_eq!(ran.outcome, Outcome::Cancelled);
    assert_eq!(ran.value("x"), 1);
    let ran = worker.run(notebook.cell("y = os.getpid()")).await.ok();
    assert_eq!(ran.value("y"), pid, "the session goes on");
}

#[tokio::test]
async fn an_interrupted_cell_may_take_longer_to_return_its_changes() {
    let mut worker =
        Worker::start_with(|config| config.cancel_grace = Duration::from_secs(10)).await;
    let mut notebook = Notebook::new();
    let (job, _) = waiting_cell(&mut worker, &mut notebook, "packing_seconds = 11").await;
    worker.line.send(ToWorker::Cancel { job }).await;
    let ran = worker.until_finished(job).await;
    assert_eq!(ran.outcome, Outcome::Cancelled);
    assert_eq!(ran.value("x"), 1);
}

#[tokio::test]
async fn a_cell_that_ignores_the_interrupt_loses_its_session() {
    let mut worker =
        Worker::start_with(|config| config.cancel_grace = Duration::from_millis(300)).await;
    let mut notebook = Notebook::new();
    let code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n\
                import subprocess\nsubprocess.Popen(['sleep', '600'])";
    let (job, pid) = waiting_cell(&mut worker, &mut notebook, code).await;
    worker.line.send(ToWorker::Cancel { job }).await;
    let ran = worker.until_finished(job).await;
    assert_eq!((ran.outcome, &ran.state), (Outcome::Cancelled, &None));
    eventually(|| !is_running(pid)).await;
}

#[tokio::test]
async fn a_cell_that_reaches_its_limit_keeps_what_it_did() {
    let mut worker = Worker::start().await;
    let mut notebook = Notebook::new();
    let mut submission = notebook.cell("import time\nx = 1\ntime.sleep(600)");
    submission.cell.timeout_ms = Some(TIME_LIMIT_MS);
    let ran = worker.run(submission).await;
    assert_eq!(ran.outcome, Outcome::TimedOut);
    assert_eq!(ran.value("x"), 1);
    let text = ran.error_text();
    assert!(
        text.contains("Stopped after 5 s, the limit of this cell"),
        "{text}"
    );
    worker.run(notebook.cell("y = 2")).await.ok();
}

#[tokio::test]
async fn a_cell_that_ignores_its_limit_loses_its_session() {
    let mut worker =
        Worker::start_with(|config| config.cancel_grace = Duration::from_millis(300)).await;
    let mut notebook = Notebook::new();
    let code = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(600)";
    let mut submission = notebook.cell(code);
    submission.cell.timeout_ms = Some(TIME_LIMIT_MS);
    let ran = worker.run(submission).await;
    assert_eq!((ran.outcome, &ran.state), (Outcome::TimedOut, &None));
    let text = ran.error_text();
    assert!(
        text.contains("Your variables are as they were before the cell"),
        "{text}"
    );
}

#[tokio::test]
async fn the_time_in_which_a_session_applies_its_state_counts() {
    let mut worker = Worker::start().await;
    let mut notebook = Notebook::new();
    let state = json!({"applying_seconds": 0.5});
    let ran = worker.run(notebook.cell_with("x = 1", &state)).await.ok();
    assert!(ran.usage.run_ms >= 400, "{:?}", ran.usage);
}

#[tokio::test]
async fn a_session_that_applies_its_state_for_too_long_is_stopped() {
    let mut worker = Worker::start().await;
    let mut notebook = Notebook::new();
    let state = json!({"applying_seconds": 600});
    let mut submission = notebook.cell_with("x = 1", &state);
    submission.cell.timeout_ms = Some(TIME_LIMIT_MS);
    let ran = worker.run(submission).await;
    assert_eq!((ran.outcome, &ran.state), (Outcome::TimedOut, &None));
    assert!(ran.usage.run_ms >= TIME_LIMIT_MS, "{:?}", ran.usage);
}

/// A state that builds on messages that no session has, so the worker asks for a complete one.
fn incomplete(submission: &mut Submission) {
    manifest(submission).base.messages = 4;
}

#[tokio::test]
async fn a_notebook_that_does_not_answer_gives_up_its_slot() {
    let mut worker = Worker::start_with(|config| {
        config.slots = Some(1);
        config.answer_patience = Duration::from_millis(300);
    })
    .await;
    let mut submission = Notebook::new().cell("");
    incomplete(&mut submission);
    let ran = worker.run(submission).await;
    assert_eq!((ran.outcome, &ran.state), (Outcome::Refused, &None));
    let text = ran.error_text();
    assert!(text.contains("received nothing for 300 ms"), "{text}");
    worker.run(Notebook::new().cell("")).await.ok();
}

#[tokio::test]
async fn a_short_time_limit_does_not_count_before_the_start() {
    let mut worker =
        Worker::start_with(|config| config.answer_patience = Duration::from_millis(300)).await;
    let mut submission = Notebook::new().cell("");
    submission.cell.timeout_ms = Some(1);
    incomplete(&mut submission);
    let job = submission.job;
    worker.assign(submission).await;
    worker.answer_next(job, Answer::Preparing {}).await;
    let ran = worker.until_finished(job).await;
    let text = ran.error_text();
    assert!(text.contains("received nothing for 300 ms"), "{text}");
}

#[tokio::test]
async fn a_notebook_that_answers_with_another_state_is_not_asked_for_ever() {
    let mut worker = Worker::start().await;
    let mut submission = Notebook::new().cell("");
    incomplete(&mut submission);
    let (job, state) = (submission.job, submission.state.clone());
    worker.assign(submission).await;
    worker.answer_next(job, Answer::State(state)).await;
    let ran = worker.until_finished(job).await;
    assert_eq!(ran.outcome, Outcome::WorkerLost);
}

#[tokio::test]
async fn a_cancel_before_the_start_is_obeyed_at_once() {
    let mut worker = Worker::start_with(|config| config.slots = Some(1)).await;
    let (first, _) = waiting_cell(&mut worker, &mut Notebook::new(), "").await;
    let submission = Notebook::new().cell("");
    let job = submission.job;
    worker.assign(submission).await;
    worker.line.send(ToWorker::Cancel { job }).await;
    let ran = worker.until_finished(job).await;
    assert_eq!((ran.outcome, ran.events.len()), (Outcome::Cancelled, 1));
    worker.line.send(ToWorker::Cancel { job: first }).await;
    worker.until_finished(first).await;
}

#[tokio::test]
async fn a_killed_session_is_told_and_the_next_cell_asks_for_the_state() {
    let mut worker = Worker::start().await;
    let mut notebook = Notebook::new();
    let (job, pid) = waiting_cell(&mut worker, &mut notebook, "").await;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL).unwrap();
    let ran = worker.until_finished(job).await;
    assert_eq!((ran.outcome, &ran.state), (Outcome::WorkerLost, &None));
    assert!(
        ran.error_text().contains("signal 9"),
        "{}",
        ran.error_text()
    );
    assert!(
        ran.error_text()
            .contains("Your variables are as they were before the cell")
    );

    // The notebook does not know yet that its session died.
    let submission = notebook.cell("y = x");
    let job = submission.job;
    worker.assign(submission).await;
    notebook.forget();
    let state = notebook.state(&json!({"x": 4}));
    worker.answer_next(job, Answer::State(state)).await;
    assert_eq!(worker.until_finished(job).await.ok().value("y"), 4);
}

#[tokio::test]
async fn a_crash_tells_its_exit_status() {
    let mut worker = Worker::start().await;
    let ran = worker
        .run(Notebook::new().cell("import os; os._exit(7)"))
        .await;
    assert_eq!(ran.outcome, Outcome::WorkerLost);
    assert!(
        ran.error_text().contains("exit status 7"),
        "{}",
        ran.error_text()
    );
}

#[tokio::test]
async fn too_much_memory_ends_the_session() {
    let mut worker =
        Worker::start_with(|config| config.session_memory_bytes = Some(300 << 20)).await;
    let mut notebook = Notebook::new();
    let ran = worker
        .run(notebook.cell("data = b'x' * (500 << 20)\nimport time; time.sleep(600)"))
        .await;
    assert_eq!((ran.outcome, &ran.state), (Outcome::OutOfMemory, &None));
    assert!(
        ran.error_text().contains("the limit is 300 MiB"),
        "{}",
        ran.error_text()
    );
    assert!(ran.usage.peak_memory_bytes > 300 << 20);
    notebook.forget();
    worker.run(notebook.cell("")).await.ok();
}

const LARGE_FILE: &str = "import os, time
path = os.environ['BATON_PACKAGES_FOLDER']
os.makedirs(path)
open(path + '/large', 'wb').write(bytes([1]) * (40 << 20))
time.sleep(600)";

const REMOVED_FILE: &str = "import subprocess, tempfile, time
removed = tempfile.TemporaryFile(dir='/var/tmp')
removed.write(bytes([1]) * (40 << 20))
removed.flush()
child = subprocess.Popen(['sleep', '600'], stdin=removed)
removed.close()
time.sleep(600)";

#[tokio::test]
async fn too_much_on_the_disk_ends_the_session() {
    for code in [LARGE_FILE, REMOVED_FILE] {
        ends_with_a_full_disk(code).await;
    }
}

async fn ends_with_a_full_disk(code: &str) {
    let mut worker = Worker::start_with(|config| config.session_disk_bytes = Some(30 << 20)).await;
    let mut notebook = Notebook::new();
    let ran = worker.run(notebook.cell(code)).await;
    assert_eq!((ran.outcome, &ran.state), (Outcome::WorkerLost, &None));
    let text = ran.error_text();
    assert!(text.contains("the limit is 30 MiB"), "{text}");
    notebook.forget();
    worker.run(notebook.cell("")).await.ok();
}

/// The manifest has less than a hundred kilobytes, and names one chunk a thousand times.
#[tokio::test]
async fn a_manifest_of_more_than_a_session_may_have_takes_no_memory() {
    let mut worker =
        Worker::start_with(|config| config.session_memory_bytes = Some(300 << 20)).await;
    let mut notebook = Notebook::new();
    let mut submission = notebook.cell("print('never')");
    let chunk = Bytes::from(vec![7; CHUNK_BYTES]);
    let hash = baton_chunks::hash(&chunk);
    worker.broker.chunks.lock().unwrap().insert(hash, chunk);
    let piece = Piece::Stored {
        hash,
        bytes: CHUNK_BYTES as u32,
    };
    manifest(&mut submission).stream = vec![piece; 1000];
    let ran = worker.run(submission).await;
    assert_eq!((ran.outcome, ran.events.len()), (Outcome::WorkerLost, 1));
    let text = ran.error_text();
    assert!(text.contains("there is room for 314572800"), "{text}");
    notebook.forget();
    worker.run(notebook.cell("")).await.ok();
}

/// The cell finds the session's private socket and writes to it itself.
#[tokio::test]
async fn a_session_that_announces_more_than_it_may_have_ends_alone() {
    let mut worker =
        Worker::start_with(|config| config.session_memory_bytes = Some(300 << 20)).await;
    let mut other = Notebook::new();
    worker.run(other.cell("x = 1")).await.ok();
    let code = "import os, socket, struct, time
for number in map(int, os.listdir('/proc/self/fd')):
    try:
        found = socket.socket(fileno=os.dup(number))
        if found.family == socket.AF_UNIX:
            found.send(struct.pack('>Q', 7 << 30))
    except OSError:
        pass
time.sleep(600)";
    let ran = worker.run(Notebook::new().cell(code)).await;
    assert_eq!(ran.outcome, Outcome::WorkerLost);
    let ran = worker.run(other.cell("print(x)")).await.ok();
    assert_eq!(ran.text("stdout"), "1\n");
}

async fn worker_with_environment(environment: &str) -> Worker {
    Worker::start_with(|config| {
        let python = config.python.clone().unwrap();
        config.python = Some(fake_python(python.parent().unwrap(), environment));
    })
    .await
}

/// The job may go to another worker. The error says why no session starts, and nothing about the job's variables.
async fn check_not_started(mut worker: Worker, expected: &[&str]) {
    let submission = Notebook::new().cell("");
    let job = submission.job;
    worker.assign(submission).await;
    let events = worker.events_until(job, JobEvent::is_last).await;
    let [JobEvent::NotStarted { error }] = &events[..] else {
        panic!("{events:?}");
    };
    for part in expected {
        assert!(error.value.contains(part), "{}", error.value);
    }
    assert!(!error.value.contains("variables"), "{}", error.value);
    assert!(error.hint.is_some());
}

/// A worker with these variables for all sessions but the first, which is the worker's own trial.
async fn worker_that_changes(folder: &Path, variables: &str) -> Worker {
    let lines = format!("[ $(wc -l < $TRIES) -gt 1 ] && export {variables}");
    worker_with_starts(folder, &lines).await
}

/// A worker whose sessions run these shell lines first. The file `$TRIES` has a line for each start.
async fn worker_with_starts(folder: &Path, lines: &str) -> Worker {
    let tries = folder.join("tries");
    let environment = format!("TRIES={}\necho >> $TRIES\n{lines}", tries.display());
    worker_with_environment(&environment).await
}

#[tokio::test]
async fn a_session_that_could_not_start_is_tried_once_more() {
    let folder = short_folder();
    // The first start is the worker's own trial.
    let second_fails = "[ $(wc -l < $TRIES) -ne 2 ] || exit 3";
    let mut worker = worker_with_starts(folder.path(), second_fails).await;
    worker.run(Notebook::new().cell("")).await.ok();
}

#[tokio::test]
async fn a_worker_on_which_sessions_start_again_says_so() {
    let folder = short_folder();
    // Two starts fail for the job, and one as a trial.
    let three_fail = "[ $(wc -l < $TRIES) -gt 4 ] || [ $(wc -l < $TRIES) -eq 1 ] || exit 3";
    let mut worker = worker_with_starts(folder.path(), three_fail).await;
    worker.assign(Notebook::new().cell("")).await;
    while worker.line.receive().await != (FromWorker::Recovered {}) {}
    worker.run(Notebook::new().cell("")).await.ok();
}

#[tokio::test]
async fn a_session_that_starts_for_everybody_else_is_refused() {
    let folder = short_folder();
    let mine = folder.path().join("mine");
    std::fs::create_dir(&mine).unwrap();
    let only_elsewhere = format!("[ $PWD != {} ] || exit 3", mine.display());
    let mut worker = worker_with_starts(folder.path(), &only_elsewhere).await;
    let mut submission = Notebook::new().cell("");
    submission.cell.folder = mine.display().to_string();
    let ran = worker.run(submission).await;
    assert_eq!((ran.outcome, ran.events.len()), (Outcome::Refused, 1));
}

#[tokio::test]
async fn another_python_is_refused_by_name() {
    let mut worker = worker_with_environment("FAKE_PYTHON_VERSION=3.other").await;
    let ran = worker.run(Notebook::new().cell("")).await;
    assert_eq!((ran.outcome, ran.events.len()), (Outcome::Refused, 1));
    for part in ["3.test", "3.other"] {
        assert!(ran.error_text().contains(part), "{}", ran.error_text());
    }
    assert!(ran.error.unwrap().hint.is_some());
}

#[tokio::test]
async fn another_version_of_the_shim_does_not_start() {
    let folder = short_folder();
    let worker = worker_that_changes(folder.path(), "FAKE_SHIM_VERSION=0.0.0").await;
    check_not_started(worker, &["0.0.0", env!("CARGO_PKG_VERSION")]).await;
}

#[tokio::test]
async fn a_session_that_crashes_at_its_start_says_why() {
    let folder = short_folder();
    let worker = worker_that_changes(folder.path(), "FAKE_CRASH=1").await;
    let why = ["exit status: 3", "this session does not want to start"];
    check_not_started(worker, &why).await;
}

#[tokio::test]
async fn a_python_without_the_shim_says_so() {
    let folder = short_folder();
    let package = folder.path().join("baton_shim");
    std::fs::create_dir(&package).unwrap();
    // A regular package, which hides an installed one.
    std::fs::write(package.join("__init__.py"), "").unwrap();
    let hidden = format!("PYTHONPATH={}", folder.path().display());
    let worker = worker_that_changes(folder.path(), &hidden).await;
    check_not_started(worker, &["No module named 'baton_shim.session'"]).await;
}

#[tokio::test]
async fn a_python_that_is_not_there_is_named() {
    let mut python = None;
    let worker = Worker::start_with(|config| python = config.python.clone()).await;
    let python = python.unwrap();
    std::fs::remove_file(&python).unwrap();
    check_not_started(worker, &[&python.display().to_string()]).await;
}

#[tokio::test]
async fn a_chunk_that_nobody_has_is_an_error_without_state() {
    let mut worker = Worker::start().await;
    let mut submission = Notebook::new().cell("");
    manifest(&mut submission).stream = vec![baton_protocol::Piece::Stored {
        hash: baton_chunks::hash(b"unknown"),
        bytes: 7,
    }];
    let ran = worker.run(submission).await;
    assert_eq!((ran.outcome, &ran.state), (Outcome::WorkerLost, &None));
    assert!(
        ran.error_text().contains("does not have a required chunk"),
        "{}",
        ran.error_text()
    );
}
