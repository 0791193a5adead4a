//! `kill -9` of the broker: every job finishes once, with every event once and in order.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, KilledBroker, Rules, finished, output, outputs,
    serve_in_this_process, started,
};
use baton_protocol::{
    Finished, JobEvent, Outcome,
    proxy::{FromProxy, ToProxy, WaitingReason},
    worker::{Acknowledged, ToWorker},
};
use baton_transport::Api;
use std::{fs, path::Path};

/// Not a test: the broker that the tests below kill.
#[test]
fn broker_process() {
    serve_in_this_process();
}

#[tokio::test]
async fn a_job_that_waited_runs_after_the_restart() {
    let folder = tempfile::tempdir().unwrap();
    let broker = KilledBroker::start(folder.path()).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    assert_eq!(proxy.position(job).await, (1, WaitingReason::NoWorker));

    let broker = broker.kill_and_restart().await;
    let mut proxy = FakeProxy::of(&broker.dial, proxy.notebook).await;
    proxy.send(FromProxy::Resume { job, after: 0 }).await;
    assert_eq!(proxy.position(job).await, (1, WaitingReason::NoWorker));
    let mut worker = FakeWorker::new(&broker.dial).await;
    assert_eq!(worker.run_to_end().await, job);
    assert_eq!(proxy.events_after(job, 0).await.len(), 3);
    proxy.send(FromProxy::Applied { job }).await;
    proxy.expect_silence().await;
}

#[tokio::test]
async fn a_job_that_ran_goes_on_where_both_sides_were() {
    let folder = tempfile::tempdir().unwrap();
    let broker = KilledBroker::start(folder.path()).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let (notebook, id) = (proxy.notebook, worker.id);
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker
        .report(job, fencing, 1, vec![started(), output("before")])
        .await;
    proxy.assigned(job).await;
    assert_eq!(proxy.batch(job).await.len(), 2);

    let broker = broker.kill_and_restart().await;
    let mut proxy = FakeProxy::of(&broker.dial, notebook).await;
    proxy.send(FromProxy::Resume { job, after: 3 }).await;
    let mut worker = FakeWorker::back(&broker.dial, id, &[(job, fencing)]).await;
    let stored = ToWorker::Acknowledge {
        job,
        fencing,
        number: 2,
    };
    assert_eq!(worker.next().await, stored);
    // The worker did not know that the second event was stored, so it repeats it.
    let rest = vec![output("before"), output("after"), finished(Outcome::Ok)];
    worker.report(job, fencing, 2, rest).await;
    let events = proxy.events_after(job, 3).await;
    assert_eq!(outputs(&events), ["after"]);
    assert_eq!(events.last(), Some(&finished(Outcome::Ok)));
}

#[tokio::test]
async fn a_kill_after_every_event_loses_and_doubles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = KilledBroker::start(folder.path()).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let (notebook, id) = (proxy.notebook, worker.id);
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    let events = [
        started(),
        output("1"),
        output("2"),
        output("3"),
        finished(Outcome::Ok),
    ];
    for (number, event) in (1..).zip(&events) {
        // The worker received no acknowledgement, so it repeats the event after the kill.
        worker
            .report(job, fencing, number, vec![event.clone()])
            .await;
        broker = broker.kill_and_restart().await;
        worker = FakeWorker::back(&broker.dial, id, &[(job, fencing)]).await;
        assert!(matches!(worker.next().await, ToWorker::Acknowledge { .. }));
        worker
            .report(job, fencing, number, vec![event.clone()])
            .await;
    }
    let mut proxy = FakeProxy::of(&broker.dial, notebook).await;
    proxy.send(FromProxy::Resume { job, after: 0 }).await;
    let heard = proxy.events_after(job, 0).await;
    assert!(matches!(heard[0], JobEvent::Assigned { .. }));
    assert_eq!(heard[1..], events);
}

#[tokio::test]
async fn an_orderly_end_keeps_the_line_too() {
    let broker = Broker::start().await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    proxy.position(job).await;
    let folder = broker.stop().await;
    proxy.expect_closed().await;
    assert!(!folder.path().join("broker.sock").exists());

    let broker = Broker::start_in(folder, Rules::default()).await;
    let mut proxy = FakeProxy::of(&broker.dial, proxy.notebook).await;
    proxy.send(FromProxy::Resume { job, after: 0 }).await;
    assert_eq!(proxy.position(job).await, (1, WaitingReason::NoWorker));
}

#[tokio::test]
async fn a_second_broker_on_the_same_database_is_refused() {
    let broker = Broker::start().await;
    let folder = broker.folder.path();
    let config = baton_broker::Config::new(
        baton_broker::Listen::Unix(folder.join("other.sock")),
        folder.join("broker.db"),
        folder.join("chunks"),
    );
    let error = baton_broker::run(config, drop, std::future::pending())
        .await
        .unwrap_err();
    let holder = format!("Another broker (process {}) uses", std::process::id());
    assert!(error.to_string().contains(&holder), "{error}");
}

#[tokio::test]
async fn a_broker_leaves_the_socket_of_its_successor() {
    let broker = Broker::start().await;
    let socket = broker.folder.path().join("broker.sock");
    std::fs::remove_file(&socket).unwrap();
    std::fs::write(&socket, "of its successor").unwrap();
    let folder = broker.stop().await;
    assert!(folder.path().join("broker.sock").exists());
}

/// A copy of the database's log. Restoring it loses everything stored later, as in a power failure.
struct Log {
    path: std::path::PathBuf,
    bytes: u64,
}

impl Log {
    fn of(folder: &Path) -> Self {
        let path = folder.join("broker.db-wal");
        let bytes = fs::metadata(&path).unwrap().len();
        Self { path, bytes }
    }

    async fn lose_deferred(self, mut broker: KilledBroker) -> KilledBroker {
        broker.kill();
        let log = fs::OpenOptions::new().write(true).open(&self.path).unwrap();
        assert!(log.metadata().unwrap().len() > self.bytes);
        log.set_len(self.bytes).unwrap();
        broker.kill_and_restart().await
    }
}

#[tokio::test]
async fn a_start_that_the_database_lost_ends_the_job_and_the_student_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let broker = KilledBroker::start(folder.path()).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let (notebook, id) = (proxy.notebook, worker.id);
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    proxy.assigned(job).await;
    let log = Log::of(folder.path());
    drop(proxy);
    worker
        .report(job, fencing, 1, vec![started(), output("it runs")])
        .await;

    let broker = log.lose_deferred(broker).await;
    let acknowledged = Acknowledged {
        job,
        number: 2,
        started: true,
    };
    let held = [(job, fencing)];
    let mut worker = FakeWorker::knowing(&broker.dial, id, 1, &[], &held, &[acknowledged]).await;
    assert_eq!(worker.next().await, ToWorker::Revoke { job, fencing });
    let mut proxy = FakeProxy::of(&broker.dial, notebook).await;
    proxy.send(FromProxy::Resume { job, after: 1 }).await;
    let events = proxy.events_after(job, 1).await;
    let [
        JobEvent::Finished(Finished {
            outcome: Outcome::WorkerLost,
            error: Some(error),
            ..
        }),
    ] = &events[..]
    else {
        panic!("{events:?}");
    };
    assert!(
        error.value.contains("cannot tell whether this cell ran"),
        "{error:?}"
    );
    proxy.send(FromProxy::Applied { job }).await;
    let other = proxy.submit().await;
    assert_eq!(worker.run_to_end().await, other);
}

#[tokio::test]
async fn what_a_worker_was_told_before_the_start_may_be_lost() {
    let folder = tempfile::tempdir().unwrap();
    let broker = KilledBroker::start(folder.path()).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let (notebook, id) = (proxy.notebook, worker.id);
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    proxy.assigned(job).await;
    let log = Log::of(folder.path());
    drop(proxy);
    worker
        .report(job, fencing, 1, vec![JobEvent::StateWanted { question: 1 }])
        .await;

    let broker = log.lose_deferred(broker).await;
    let mut proxy = FakeProxy::of(&broker.dial, notebook).await;
    proxy.send(FromProxy::Resume { job, after: 1 }).await;
    let acknowledged = Acknowledged {
        job,
        number: 1,
        started: false,
    };
    let held = [(job, fencing)];
    let mut worker = FakeWorker::knowing(&broker.dial, id, 1, &[], &held, &[acknowledged]).await;
    assert_eq!(worker.next().await, ToWorker::Revoke { job, fencing });
    assert_eq!(worker.run_to_end().await, job);
}

#[tokio::test]
async fn a_job_of_which_its_proxy_has_heard_more_is_not_given_to_another_worker() {
    let folder = tempfile::tempdir().unwrap();
    let broker = KilledBroker::start(folder.path()).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let notebook = proxy.notebook;
    let job = proxy.submit().await;
    proxy.position(job).await;
    let log = Log::of(folder.path());
    let mut worker = FakeWorker::new(&broker.dial).await;
    let (fencing, _) = worker.assignment().await;
    worker.report(job, fencing, 1, vec![started()]).await;
    drop(worker);

    let broker = log.lose_deferred(broker).await;
    let mut other = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::of(&broker.dial, notebook).await;
    proxy.send(FromProxy::Resume { job, after: 2 }).await;
    assert_eq!(proxy.next().await, ToProxy::UnknownJob { job });
    let next = proxy.submit().await;
    assert_eq!(other.run_to_end().await, next);
}

/// The outcomes in the list of jobs.
async fn listed(broker: &KilledBroker) -> Vec<String> {
    let page = Api::new(&broker.dial).unwrap().get("/v1/jobs").await;
    let page: serde_json::Value = serde_json::from_slice(&page.unwrap()).unwrap();
    let jobs = page["items"].as_array().unwrap().iter();
    jobs.map(|job| job["outcome"].as_str().unwrap().to_owned())
        .collect()
}

/// A proxy repeats its last message until the broker has stored it.
#[tokio::test]
async fn what_a_notebook_told_its_student_is_in_the_list_whenever_the_broker_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = KilledBroker::start(folder.path()).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker.report(job, fencing, 1, vec![started()]).await;
    let word = FromProxy::GivenUp {
        job,
        outcome: Some(Outcome::WorkerLost),
    };
    proxy.send(word.clone()).await;
    assert_eq!(worker.next().await, ToWorker::Cancel { job });

    // The broker has lost that the job was given up, and the job succeeds.
    broker = broker.kill_and_restart().await;
    let mut worker = FakeWorker::back(&broker.dial, worker.id, &[(job, fencing)]).await;
    assert!(matches!(worker.next().await, ToWorker::Acknowledge { .. }));
    assert_eq!(worker.next().await, ToWorker::Cancel { job });
    worker
        .report(job, fencing, 2, vec![finished(Outcome::Ok)])
        .await;
    for _ in 0..2 {
        let mut proxy = FakeProxy::of(&broker.dial, proxy.notebook).await;
        proxy.send(word.clone()).await;
        proxy.expect_silence().await;
        assert_eq!(proxy.closed, [job]);
        assert_eq!(listed(&broker).await, ["worker_lost"]);
        broker = broker.kill_and_restart().await;
    }
}

#[tokio::test]
async fn a_cell_that_is_submitted_anew_leaves_no_trace_whenever_the_broker_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut broker = KilledBroker::start(folder.path()).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let (job, outcome) = (proxy.submit().await, None);
    proxy.position(job).await;
    proxy.send(FromProxy::Cancel { job }).await;
    assert!(proxy.event(job).await.is_last());

    broker = broker.kill_and_restart().await;
    assert_eq!(listed(&broker).await, ["cancelled"]);
    let mut proxy = FakeProxy::of(&broker.dial, proxy.notebook).await;
    proxy.send(FromProxy::GivenUp { job, outcome }).await;
    proxy.expect_silence().await;
    assert_eq!(proxy.closed, [job]);
    assert!(listed(&broker).await.is_empty());
    proxy.send(FromProxy::GivenUp { job, outcome }).await;
    assert_eq!(proxy.next().await, ToProxy::UnknownJob { job });
}
