//! Broken connections to the broker, and what fencing numbers are for.

use crate::{
    broker::Line,
    harness::{Notebook, Ran, Worker, eventually, is_running, stream_text, welcome, within},
};
use baton_protocol::{
    Answer, JobEvent, JobId, Outcome, Refusal, Submission,
    worker::{FromWorker, ToWorker},
};
use std::{path::PathBuf, time::Duration};

#[tokio::test]
async fn a_reconnect_loses_and_doubles_nothing() {
    let mut worker = Worker::start().await;
    let code = "import time\nfor number in range(100):\n    print(number, flush=True)\n    time.sleep(0.005)";
    let submission = Notebook::new().cell(code);
    let job = submission.job;
    let fencing = worker.assign(submission).await;

    let mut stored = worker
        .events_until(job, |event| matches!(event, JobEvent::Started { .. }))
        .await;
    // Each connection breaks after one message that was not acknowledged.
    for _ in 0..4 {
        receive(&mut worker.line, &mut stored).await;
        worker.line.close().await;
        let (line, hello) = worker.broker.welcome().await;
        worker.line = line;
        let FromWorker::Hello {
            name, assignments, ..
        } = hello
        else {
            unreachable!();
        };
        assert_eq!(name, "cpu-0", "the name that the broker chose");
        assert_eq!(assignments, [(job, fencing)]);
        let number = 1 + stored.len() as u64 / 2;
        let acknowledge = ToWorker::Acknowledge {
            job,
            fencing,
            number,
        };
        worker.line.send(acknowledge).await;
    }
    while !stored.last().is_some_and(JobEvent::is_last) {
        receive(&mut worker.line, &mut stored).await;
    }
    let ran = Ran::new(stored).ok();
    let expected: String = (0..100).map(|number| format!("{number}\n")).collect();
    assert_eq!(ran.text("stdout"), expected);
}

/// Stores the next events as a broker would: each number once, without a gap.
async fn receive(line: &mut Line, stored: &mut Vec<JobEvent>) {
    within(async {
        loop {
            if let FromWorker::Events { first, events, .. } = line.receive().await {
                let known = stored.len() as u64;
                assert!(first <= known + 1, "no gap");
                let repeated = usize::try_from(known + 1 - first).unwrap();
                stored.extend(events.into_iter().skip(repeated));
                return;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_job_may_end_while_the_broker_is_away() {
    let mut worker = Worker::start().await;
    let submission = Notebook::new().cell("import time; time.sleep(0.2); x = 1");
    let job = submission.job;
    worker.assign(submission).await;
    worker
        .events_until(job, |event| matches!(event, JobEvent::Started { .. }))
        .await;
    worker.line.close().await;
    let (line, _) = worker.broker.accept().await;
    worker.line = line;
    worker.line.send(welcome()).await;
    assert_eq!(worker.until_finished(job).await.ok().value("x"), 1);
}

#[tokio::test]
async fn a_question_is_asked_again_until_it_has_an_answer() {
    let mut worker = Worker::start().await;
    let submission = Notebook::new().cell("first = input()\nsecond = input()");
    let job = submission.job;
    worker.assign(submission).await;
    let mut asked = Vec::new();
    for name in ["Ada", "Bob"] {
        let is_question = |event: &JobEvent| event.question().is_some();
        let events = worker.events_until(job, is_question).await;
        let question = events.iter().find_map(JobEvent::question).unwrap();
        // The answer was lost with this connection.
        worker.line.close().await;
        let (line, _) = worker.broker.accept().await;
        worker.line = line;
        worker.line.send(welcome()).await;
        let answer = || Answer::Input(Some(name.to_owned()));
        // A repeated answer to an earlier question.
        for earlier in &asked {
            worker.answer(job, *earlier, answer()).await;
        }
        let again = worker.answer_next(job, answer()).await;
        assert_eq!(again.iter().find_map(JobEvent::question), Some(question));
        asked.push(question);
    }
    let ran = worker.until_finished(job).await.ok();
    assert_eq!(
        (ran.value("first"), ran.value("second")),
        ("Ada".into(), "Bob".into())
    );
}

/// A cell that leaves a mark outside of any notebook, and the file with the mark.
fn marking_cell(worker: &Worker) -> (Submission, PathBuf) {
    let mark = worker.folder.path().join("mark");
    let code = format!("with open({mark:?}, 'a') as mark: mark.write('x')");
    (Notebook::new().cell(&code), mark)
}

/// Waits until the worker asks to start the job, and does not acknowledge that. The worker then runs another cell,
/// so it has had time to start this one.
async fn asked_to_start(worker: &mut Worker, job: JobId) {
    loop {
        if let FromWorker::Events {
            job: of, events, ..
        } = worker.line.receive().await
        {
            assert_eq!(of, job);
            assert!(matches!(events[..], [JobEvent::Started { .. }]));
            break;
        }
    }
    worker.run(Notebook::new().cell("")).await.ok();
}

#[tokio::test]
async fn a_cell_starts_only_when_its_start_is_stored() {
    let mut worker = Worker::start().await;
    let (submission, mark) = marking_cell(&worker);
    let job = submission.job;
    let fencing = worker.assign(submission).await;
    asked_to_start(&mut worker, job).await;
    assert!(!mark.exists());
    let stored = ToWorker::Acknowledge {
        job,
        fencing,
        number: 1,
    };
    worker.line.send(stored).await;
    worker.until_finished(job).await.ok();
    assert_eq!(std::fs::read_to_string(mark).unwrap(), "x");
}

#[tokio::test]
async fn a_cell_that_another_worker_has_by_now_never_starts_here() {
    let mut worker = Worker::start().await;
    let (submission, mark) = marking_cell(&worker);
    let (job, notebook) = (submission.job, submission.notebook);
    let fencing = worker.assign(submission).await;
    asked_to_start(&mut worker, job).await;
    worker.line.send(ToWorker::Revoke { job, fencing }).await;
    let mut after = Notebook::new().cell("");
    after.notebook = notebook;
    worker.run(after).await.ok();
    assert!(!mark.exists());
}

#[tokio::test]
async fn a_cancel_before_the_start_is_stored_ends_the_cell() {
    let mut worker =
        Worker::start_with(|config| config.cancel_grace = Duration::from_millis(300)).await;
    let (submission, mark) = marking_cell(&worker);
    let job = submission.job;
    worker.assign(submission).await;
    asked_to_start(&mut worker, job).await;
    worker.line.send(ToWorker::Cancel { job }).await;
    assert_eq!(worker.until_finished(job).await.outcome, Outcome::Cancelled);
    assert!(!mark.exists());
}

#[tokio::test]
async fn a_revoked_job_stops_and_is_not_spoken_of() {
    let mut worker = Worker::start().await;
    // With one write, so that there is one output.
    let code = "import os, time\nprint(f'{os.getpid()}\\n', end='', flush=True)\ntime.sleep(600)";
    let submission = Notebook::new().cell(code);
    let job = submission.job;
    let fencing = worker.assign(submission).await;
    let events = worker
        .events_until(job, |event| matches!(event, JobEvent::Output(_)))
        .await;
    let pid = stream_text(&events, "stdout").trim().parse().unwrap();
    worker.line.send(ToWorker::Revoke { job, fencing }).await;
    eventually(|| !is_running(pid)).await;

    // The next events are those of another job.
    let submission = Notebook::new().cell("");
    let other = submission.job;
    let fencing = worker.assign(submission).await;
    let mut stored: Vec<JobEvent> = Vec::new();
    while !stored.last().is_some_and(JobEvent::is_last) {
        if let FromWorker::Events { job, events, .. } = worker.line.receive().await {
            assert_eq!(job, other);
            stored.extend(events);
            let number = stored.len() as u64;
            let acknowledge = ToWorker::Acknowledge {
                job,
                fencing,
                number,
            };
            worker.line.send(acknowledge).await;
        }
    }
}

#[tokio::test]
async fn an_assignment_that_comes_twice_runs_once() {
    let mut worker = Worker::start().await;
    let submission = Notebook::new().cell("print('once')");
    let job = submission.job;
    let fencing = worker.assign(submission.clone()).await;
    worker
        .line
        .send(ToWorker::Assign {
            fencing,
            account: 1,
            environment: None,
            submission,
        })
        .await;
    let ran = worker.until_finished(job).await.ok();
    assert_eq!(ran.text("stdout"), "once\n");
    assert_eq!(ran.outcome, Outcome::Ok);
}

#[tokio::test]
async fn a_broker_of_another_version_ends_the_worker() {
    let mut worker = Worker::start().await;
    let refusal = Refusal::ProtocolVersion { broker: 2, peer: 1 };
    worker.line.send(ToWorker::Refused(refusal)).await;
    let error = worker.gone().await.unwrap_err();
    assert!(
        format!("{error:#}").contains("protocol version 2"),
        "{error:#}"
    );
}

/// After a crash of a worker's machine, the broker may not know yet that the worker's previous process is gone.
#[tokio::test]
async fn a_worker_whose_place_is_not_free_yet_tries_again() {
    let mut worker = Worker::start().await;
    let refusal = Refusal::WorkerConnected {
        name: "gpu-1".to_owned(),
    };
    worker.line.send(ToWorker::Refused(refusal)).await;
    worker.line.close().await;
    (worker.line, _) = worker.broker.welcome().await;
    let ran = worker.run(Notebook::new().cell("print(1)")).await.ok();
    assert_eq!(ran.text("stdout"), "1\n");
}

#[tokio::test]
async fn a_worker_that_another_connection_replaced_ends_and_says_so() {
    let mut worker = Worker::start().await;
    let refusal = Refusal::Replaced {
        name: "gpu-1".to_owned(),
    };
    worker.line.send(ToWorker::Refused(refusal)).await;
    let error = worker.gone().await.unwrap_err();
    assert!(format!("{error:#}").contains("gpu-1 replaced"), "{error:#}");
}
