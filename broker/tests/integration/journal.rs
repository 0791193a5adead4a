//! The log lines about a job.

use crate::harness::{Broker, FakeProxy, FakeWorker, finished, output, started};
use baton_protocol::{Outcome, proxy::FromProxy};
use std::{
    io::{Result, Write},
    sync::{Arc, Mutex},
};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// The lines about one job, without times.
fn lines(log: &Log, job: &str) -> Vec<String> {
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let of_job = text.lines().filter(|line| line.contains(job));
    of_job.map(|line| line.trim().replace(job, "JOB")).collect()
}

/// All tasks of the test run on its thread, so they write to its log.
#[tokio::test]
async fn a_job_is_told_from_its_submission_to_its_end() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .without_time()
        .with_target(false)
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);

    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::in_course(&broker.dial, "ml").await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    let run = vec![
        started(),
        output("{\"text\": \"a secret\"}"),
        finished(Outcome::Ok),
    ];
    worker.report(job, fencing, 1, run).await;
    proxy.events_after(job, 0).await;
    proxy.send(FromProxy::Applied { job }).await;
    broker.stop().await;

    let queued = "INFO job{job.id=JOB person=\"ada\" course=\"ml\"}:";
    let there = "INFO job{job.id=JOB person=\"ada\" course=\"ml\" worker=\"cpu-0\"}:";
    assert_eq!(
        lines(&log, &job.to_string()),
        [
            format!("{queued} Submitted"),
            format!("{there} Assigned fencing=1"),
            format!("{there} Started"),
            format!("{there} Ended outcome=\"ok\" run_ms=5"),
        ]
    );
    let whole = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(!whole.contains("secret") && !whole.contains("print(1)"));
}
