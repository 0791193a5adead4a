//! How sessions start and end.

use crate::harness::{Notebook, Ran, Worker, eventually, is_running};
use baton_gpu_worker::{EnvironmentConfig, EnvironmentSource, Stop};
use baton_protocol::{
    Answer, Environment, JobEvent, JobId, Outcome,
    worker::{FromWorker, ToWorker},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant, SystemTime},
};

const PID: &str = "import os; pid = os.getpid()";

fn number(value: &serde_json::Value) -> i32 {
    value.as_i64().unwrap().try_into().unwrap()
}

#[tokio::test]
async fn an_idle_session_is_culled() {
    let mut worker =
        Worker::start_with(|config| config.session_idle = Duration::from_millis(300)).await;
    let mut notebook = Notebook::new();
    let pid = number(&worker.run(notebook.cell(PID)).await.ok().value("pid"));
    worker.until_warm(&[notebook.id]).await;
    worker.until_warm(&[]).await;
    eventually(|| !is_running(pid)).await;

    let submission = notebook.cell("");
    let job = submission.job;
    worker.assign(submission).await;
    notebook.forget();
    let state = notebook.state(&serde_json::json!({}));
    worker.answer_next(job, Answer::State(state)).await;
    worker.until_finished(job).await.ok();
}

#[tokio::test]
async fn a_session_that_dies_between_cells_is_rebuilt() {
    let mut worker = Worker::start().await;
    let mut notebook = Notebook::new();
    let pid = number(&worker.run(notebook.cell(PID)).await.ok().value("pid"));
    worker.until_warm(&[notebook.id]).await;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::SIGKILL).unwrap();
    worker.until_warm(&[]).await;
    let submission = notebook.cell(PID);
    let job = submission.job;
    worker.assign(submission).await;
    notebook.forget();
    let state = notebook.state(&serde_json::json!({}));
    worker.answer_next(job, Answer::State(state)).await;
    assert_ne!(
        number(&worker.until_finished(job).await.ok().value("pid")),
        pid
    );
}

#[tokio::test]
async fn the_broker_can_end_a_session() {
    let mut worker = Worker::start().await;
    let mut notebook = Notebook::new();
    let pid = number(&worker.run(notebook.cell(PID)).await.ok().value("pid"));
    worker
        .line
        .send(ToWorker::EndSession {
            notebook: notebook.id,
        })
        .await;
    eventually(|| !is_running(pid)).await;
}

#[tokio::test]
async fn slots_are_honoured() {
    let mut worker = Worker::start_with(|config| config.slots = Some(1)).await;
    let first = Notebook::new().cell("import time; time.sleep(0.3)");
    let second = Notebook::new().cell("");
    let (first_job, second_job) = (first.job, second.job);
    worker.assign(first).await;
    worker.assign(second).await;
    let mut order = Vec::new();
    while order.len() < 4 {
        if let FromWorker::Events {
            job,
            fencing,
            first,
            events,
        } = worker.line.receive().await
        {
            order.extend(events.iter().map(|event| (job, event.is_last())));
            let number = first + events.len() as u64 - 1;
            let stored = ToWorker::Acknowledge {
                job,
                fencing,
                number,
            };
            worker.line.send(stored).await;
        }
    }
    let expected = [
        (first_job, false),
        (first_job, true),
        (second_job, false),
        (second_job, true),
    ];
    assert_eq!(order, expected);
}

#[tokio::test]
async fn notebooks_run_side_by_side() {
    let mut worker = Worker::start().await;
    let first_job = begin_endless(&mut worker).await;
    worker.run(Notebook::new().cell("x = 1")).await.ok();
    worker.line.send(ToWorker::Cancel { job: first_job }).await;
    assert_eq!(
        worker.until_finished(first_job).await.outcome,
        Outcome::Cancelled
    );
}

#[tokio::test]
async fn a_worker_that_leaves_lets_cells_end_and_leaves_nothing_behind() {
    let mut worker = Worker::start().await;
    let gate = worker.folder.path().join("gate");
    let code = format!(
        "import os, subprocess, time\npid = os.getpid()\n\
         child = subprocess.Popen(['setsid', 'sleep', '600']).pid\n\
         print('ready', flush=True)\n\
         while not os.path.exists({gate:?}): time.sleep(0.01)"
    );
    let submission = Notebook::new().cell(&code);
    let job = worker.begin(submission).await;
    worker.ask_to_leave(Stop::WhenCellsEnd);
    while worker.line.receive().await != (FromWorker::Drain {}) {}
    std::fs::write(gate, "").unwrap();
    let ran = worker.until_finished(job).await.ok();
    let (kernel, child) = (number(&ran.value("pid")), number(&ran.value("child")));
    let run_folder = worker.folder.path().join("run");
    let folder = std::mem::replace(&mut worker.folder, tempfile::tempdir().unwrap());
    worker.gone().await.unwrap();
    eventually(|| !is_running(kernel) && !is_running(child)).await;
    assert_eq!(
        std::fs::read_dir(run_folder).unwrap().count(),
        0,
        "no socket is left"
    );
    drop(folder);
}

/// Starts a cell that never ends by itself. Returns once it runs.
async fn begin_endless(worker: &mut Worker) -> JobId {
    let submission =
        Notebook::new().cell("import time\nprint('ready', flush=True)\ntime.sleep(600)");
    worker.begin(submission).await
}

async fn check_stopped(mut worker: Worker, job: JobId) {
    let ran = worker.until_finished(job).await;
    assert_eq!(ran.outcome, Outcome::WorkerLost);
    assert_eq!(
        ran.error_text(),
        "The worker was stopped while the cell ran. \
         Your variables are as they were before the cell"
    );
    worker.gone().await.unwrap();
}

#[tokio::test]
async fn a_worker_that_is_asked_twice_ends_its_cells() {
    let mut worker = Worker::start().await;
    let job = begin_endless(&mut worker).await;
    worker.ask_to_leave(Stop::WhenCellsEnd);
    while worker.line.receive().await != (FromWorker::Drain {}) {}
    worker.ask_to_leave(Stop::Now);
    check_stopped(worker, job).await;
}

#[tokio::test]
async fn cells_end_with_the_grace_of_their_worker() {
    let mut worker =
        Worker::start_with(|config| config.stop_grace = Some(Duration::from_millis(100))).await;
    let job = begin_endless(&mut worker).await;
    worker.ask_to_leave(Stop::WhenCellsEnd);
    check_stopped(worker, job).await;
}

/// For a worker whose time ends. Its session has two thirds of this to start, so it is longer on a busy machine.
async fn life() -> Duration {
    let since = Instant::now();
    let mut worker = Worker::start().await;
    worker.run(Notebook::new().cell("")).await.ok();
    let took = since.elapsed();
    worker.ask_to_leave(Stop::Now);
    worker.gone().await.unwrap();
    (20 * took).clamp(Duration::from_secs(30), Duration::from_secs(60))
}

#[tokio::test]
async fn a_worker_whose_time_ends_says_so_in_its_cells_and_leaves() {
    let life = life().await;
    let leaves_at = SystemTime::now() + life;
    let mut worker = Worker::start_with(|config| config.leaves_at = Some(leaves_at)).await;
    let job = begin_endless(&mut worker).await;
    let ran = worker.until_finished(job).await;
    assert_eq!(
        ran.error_text(),
        "The cell was stopped because the worker's time on its machine ended. \
         Your variables are as they were before the cell"
    );
    worker.gone().await.unwrap();
    assert!(SystemTime::now() < leaves_at);
}

/// Batch systems announce the end of a job's time with the signal that also means a preemption.
#[tokio::test]
async fn a_worker_that_is_asked_to_leave_when_its_time_ends_uses_the_rest_of_it() {
    let life = life().await;
    let leaves_at = SystemTime::now() + life;
    // In the last half of the worker's own life, and before it begins to leave by itself.
    let late = leaves_at - life * 3 / 8;
    let mut worker = Worker::start_with(|config| {
        config.leaves_at = Some(leaves_at);
        config.stop_grace = Some(Duration::ZERO);
    })
    .await;
    let late = late.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let submission = Notebook::new().cell(&format!(
        "import time\ntime.sleep(max(0, {} - time.time()))\nprint('late', flush=True)\ntime.sleep(0.5)",
        late.as_secs_f64()
    ));
    let job = worker.begin(submission).await;
    worker.ask_to_leave(Stop::WhenCellsEnd);
    worker.until_finished(job).await.ok();
    worker.gone().await.unwrap();
}

#[tokio::test]
async fn an_idle_worker_leaves_only_when_it_is_not_needed() {
    let gates = tempfile::tempdir().unwrap();
    let (python, gate) = (gates.path().join("python"), gates.path().join("open"));
    let script = format!(
        "#!/bin/sh\nuntil [ -e {} ]; do sleep 0.01; done\nexit 1\n",
        gate.display()
    );
    std::fs::write(&python, script).unwrap();
    std::fs::set_permissions(&python, PermissionsExt::from_mode(0o755)).unwrap();
    let mut worker = Worker::start_with(|config| {
        config.idle_exit = Some(Duration::from_millis(1));
        config.environments = vec![EnvironmentConfig {
            name: "ml101".to_owned(),
            source: EnvironmentSource::Python(python),
        }];
    })
    .await;
    // It prepares an environment.
    let mut notebook = Notebook::new();
    worker.run(notebook.cell("keeps = True")).await.ok();
    std::fs::write(gate, "").unwrap();
    let has_failed = |message: FromWorker| match message {
        FromWorker::Environments { environments } => {
            environments.iter().all(Environment::has_failed)
        }
        _ => false,
    };
    while !has_failed(worker.line.receive().await) {}
    // Its session holds objects that no other session can have.
    worker.run(notebook.cell("keeps = False")).await.ok();
    worker.gone().await.unwrap();
}

#[tokio::test]
async fn a_person_keeps_only_the_sessions_that_were_used_last() {
    let mut worker = Worker::start_with(|config| config.slots = Some(2)).await;
    let mut pids = Vec::new();
    for number_of in 0..10 {
        assert!(pids.iter().all(|pid| is_running(*pid)));
        // Only the first session holds objects that no other session can hold.
        let keeps = if number_of == 0 { "keeps = True" } else { "" };
        let ran = worker
            .run(Notebook::new().cell(&format!("{PID}\n{keeps}")))
            .await
            .ok();
        pids.push(number(&ran.value("pid")));
    }
    eventually(|| !is_running(pids[1])).await;
    pids.remove(1);
    assert!(pids.iter().all(|pid| is_running(*pid)));
}

#[tokio::test]
async fn even_sessions_that_keep_objects_are_limited() {
    const MOST: usize = 16;
    let mut worker = Worker::start_with(|config| config.slots = Some(2)).await;
    let mut pids = Vec::new();
    for _ in 0..=MOST {
        assert!(pids.iter().all(|pid| is_running(*pid)));
        let ran = worker
            .run(Notebook::new().cell(&format!("{PID}\nkeeps = True")))
            .await
            .ok();
        pids.push(number(&ran.value("pid")));
    }
    eventually(|| !is_running(pids[0])).await;
    assert!(pids[1..].iter().all(|pid| is_running(*pid)));
}

#[tokio::test]
async fn a_session_that_never_hands_over_its_results_ends() {
    let mut worker =
        Worker::start_with(|config| config.answer_patience = Duration::from_millis(300)).await;
    let submission = Notebook::new().cell(&format!("{PID}\ndeferred_bytes = 1"));
    let job = submission.job;
    worker.assign(submission).await;
    let mut events = worker.events_until(job, is_deferred_state).await;
    let Some(JobEvent::DeferredState { state, error }) = events.pop() else {
        panic!("no deferred state in {events:?}");
    };
    let pid = number(&Ran::new(events).ok().value("pid"));
    assert_eq!(state, None);
    let error = error.unwrap().value;
    assert!(error.contains("ended before all results"), "{error}");
    eventually(|| !is_running(pid)).await;
}

#[tokio::test]
async fn a_cell_after_lost_results_says_which_variables_the_notebook_has() {
    let mut worker = Worker::start().await;
    let mut notebook = Notebook::new();
    let first = notebook.cell(&format!("{PID}\ndeferred_bytes = 1"));
    let job = first.job;
    worker.assign(first).await;
    let events = worker
        .events_until(job, |event| matches!(event, JobEvent::Finished(_)))
        .await;
    let pid = number(&Ran::new(events).ok().value("pid"));
    let second = notebook.cell("");
    let job = second.job;
    worker.assign(second).await;
    // The worker has the second cell once a later one has run.
    worker.run(Notebook::new().cell("")).await.ok();
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    let ran = worker.until_finished(job).await;
    assert_eq!(ran.outcome, Outcome::WorkerLost);
    assert_eq!(
        ran.error_text(),
        "The Python process on the GPU machine ended (signal 9) before all results of an earlier cell had arrived, \
         so this cell did not start. Your variables are as they were before the cell whose results are lost"
    );
}

fn is_deferred_state(event: &JobEvent) -> bool {
    matches!(event, JobEvent::DeferredState { .. })
}

#[tokio::test]
async fn a_leaving_worker_ends_its_cells_at_their_time_limits() {
    let mut worker = Worker::start().await;
    let mut submission = Notebook::new().cell("import time\ntime.sleep(600)");
    submission.cell.timeout_ms = Some(500);
    let job = submission.job;
    worker.assign(submission).await;
    worker
        .events_until(job, |event| matches!(event, JobEvent::Started { .. }))
        .await;
    worker.ask_to_leave(Stop::WhenCellsEnd);
    assert_eq!(worker.until_finished(job).await.outcome, Outcome::TimedOut);
    worker.gone().await.unwrap();
}

#[tokio::test]
async fn a_leaving_worker_takes_nothing_that_crosses_its_word() {
    let mut worker = Worker::start().await;
    let job = begin_endless(&mut worker).await;
    worker.ask_to_leave(Stop::WhenCellsEnd);
    while worker.line.receive().await != (FromWorker::Drain {}) {}
    let crossing = Notebook::new().cell("");
    let crossing_job = crossing.job;
    worker.assign(crossing).await;
    worker.line.send(ToWorker::Cancel { job }).await;
    loop {
        if let FromWorker::Events {
            job: of,
            fencing,
            first,
            events,
        } = worker.line.receive().await
        {
            assert_ne!(of, crossing_job);
            let number = first + events.len() as u64 - 1;
            let stored = ToWorker::Acknowledge {
                job: of,
                fencing,
                number,
            };
            worker.line.send(stored).await;
            if events.last().is_some_and(JobEvent::is_last) {
                break;
            }
        }
    }
    worker.gone().await.unwrap();
}
