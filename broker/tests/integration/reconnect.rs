//! Connections break, but nothing is lost and nothing arrives twice.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, LONG_GRACE, Rules, finished, output, outputs, started,
    submission,
};
use baton_protocol::{
    Finished, JobEvent, Outcome,
    proxy::{FromProxy, ToProxy},
    worker::{FromWorker, ToWorker},
};

fn patient() -> Rules {
    Rules {
        worker_grace: LONG_GRACE,
        ..Rules::default()
    }
}

#[tokio::test]
async fn a_proxy_goes_on_after_the_last_number_that_it_saw() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let notebook = proxy.notebook;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    proxy.assigned(job).await;
    worker.report(job, fencing, 1, vec![started()]).await;
    assert_eq!(proxy.event(job).await, started());
    drop(proxy);
    worker
        .report(job, fencing, 2, vec![output("unheard")])
        .await;

    let mut proxy = FakeProxy::of(&broker.dial, notebook).await;
    proxy.send(FromProxy::Resume { job, after: 2 }).await;
    assert_eq!(proxy.event(job).await, output("unheard"));
    worker
        .report(job, fencing, 3, vec![output("live"), finished(Outcome::Ok)])
        .await;
    let events = proxy.events_after(job, 3).await;
    assert_eq!(outputs(&events), ["live"]);
}

#[tokio::test]
async fn many_stored_events_come_in_pages() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let notebook = proxy.notebook;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    drop(proxy);
    worker.report(job, fencing, 1, vec![started()]).await;
    let texts: Vec<String> = (0..1000).map(|number| format!("line {number}")).collect();
    let events: Vec<JobEvent> = texts.iter().map(|text| output(text)).collect();
    worker.report(job, fencing, 2, events).await;
    worker
        .report(job, fencing, 1002, vec![finished(Outcome::Ok)])
        .await;

    let mut proxy = FakeProxy::of(&broker.dial, notebook).await;
    proxy.send(FromProxy::Resume { job, after: 0 }).await;
    let events = proxy.events_after(job, 0).await;
    assert_eq!(outputs(&events), texts);
}

#[tokio::test]
async fn a_proxy_that_does_not_read_holds_up_nobody_and_loses_nothing() {
    let broker = Broker::start_with(Rules {
        output_limit_bytes: 1 << 30,
        ..Rules::default()
    })
    .await;
    let mut worker = FakeWorker::with_slots(&broker.dial, 2).await;
    let mut lazy = FakeProxy::new(&broker.dial).await;
    let job = lazy.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker.report(job, fencing, 1, vec![started()]).await;
    // More than all buffers in between can hold.
    let text = "x".repeat(1 << 20);
    let texts: Vec<String> = (0..400).map(|number| format!("{number} {text}")).collect();
    for (number, text) in (2..).zip(&texts) {
        worker
            .report(job, fencing, number, vec![output(text)])
            .await;
    }
    worker
        .report(job, fencing, 402, vec![finished(Outcome::Ok)])
        .await;

    let mut other = FakeProxy::new(&broker.dial).await;
    let quick = other.submit().await;
    assert_eq!(worker.run_to_end().await, quick);
    other.events_after(quick, 0).await;

    let events = lazy.events_after(job, 0).await;
    assert!(outputs(&events) == texts);
}

#[tokio::test]
async fn a_worker_repeats_what_was_not_acknowledged_and_it_is_stored_once() {
    let broker = Broker::start_with(patient()).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker
        .report(job, fencing, 1, vec![started(), output("one")])
        .await;
    let id = worker.id;
    drop(worker);

    let mut worker = FakeWorker::back(&broker.dial, id, &[(job, fencing)]).await;
    let stored = ToWorker::Acknowledge {
        job,
        fencing,
        number: 2,
    };
    assert_eq!(worker.next().await, stored);
    let again = vec![output("one"), output("two"), finished(Outcome::Ok)];
    worker.report(job, fencing, 2, again).await;
    let events = proxy.events_after(job, 0).await;
    assert_eq!(outputs(&events), ["one", "two"]);
    assert_eq!(events.len(), 5);
    proxy.expect_silence().await;
}

#[tokio::test]
async fn a_gap_in_the_numbers_ends_the_connection() {
    let broker = Broker::start_with(patient()).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker
        .send(FromWorker::Events {
            job,
            fencing,
            first: 2,
            events: vec![output("early")],
        })
        .await;
    worker.expect_closed().await;
    let mut worker = FakeWorker::back(&broker.dial, worker.id, &[(job, fencing)]).await;
    assert!(matches!(
        worker.next().await,
        ToWorker::Acknowledge { number: 0, .. }
    ));
    worker
        .report(job, fencing, 1, vec![started(), finished(Outcome::Ok)])
        .await;
    proxy.events_after(job, 0).await;
}

#[tokio::test]
async fn an_assignment_that_did_not_arrive_is_sent_again() {
    let broker = Broker::start_with(patient()).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let first = worker.assignment().await;
    let mut worker = FakeWorker::back(&broker.dial, worker.id, &[]).await;
    assert_eq!(worker.assignment().await, first);
    let (fencing, _) = first;
    worker
        .report(job, fencing, 1, vec![started(), finished(Outcome::Ok)])
        .await;
    proxy.events_after(job, 0).await;
}

#[tokio::test]
async fn a_job_that_is_submitted_twice_runs_once() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::with_slots(&broker.dial, 4).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let notebook = proxy.notebook;
    let submission = submission(notebook);
    let job = submission.job;
    proxy.send(FromProxy::Submit(submission.clone())).await;
    proxy.send(FromProxy::Submit(submission.clone())).await;
    drop(proxy);
    let mut proxy = FakeProxy::of(&broker.dial, notebook).await;
    proxy.send(FromProxy::Submit(submission.clone())).await;
    assert_eq!(worker.run_to_end().await, job);
    let events = proxy.events_after(job, 0).await;
    assert_eq!(events.len(), 3);

    // This holds long after its end, too: the proxy receives an end and does not try again.
    proxy.send(FromProxy::Applied { job }).await;
    proxy.send(FromProxy::Submit(submission)).await;
    let end = proxy.event(job).await;
    assert!(end.is_last(), "{end:?}");
    let other = proxy.submit().await;
    assert_eq!(worker.run_to_end().await, other);
}

#[tokio::test]
async fn a_late_worker_is_harmless() {
    let broker = Broker::start().await;
    let mut late = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (old, _) = late.assignment().await;
    proxy.assigned(job).await;
    let id = late.id;
    drop(late);
    // Wait until the grace has passed.
    proxy.position(job).await;

    let mut worker = FakeWorker::new(&broker.dial).await;
    let (fencing, _) = worker.assignment().await;
    assert!(fencing > old);
    let mut late = FakeWorker::back(&broker.dial, id, &[(job, old)]).await;
    assert_eq!(late.next().await, ToWorker::Revoke { job, fencing: old });
    late.send(FromWorker::Events {
        job,
        fencing: old,
        first: 1,
        events: vec![started(), output("late"), finished(Outcome::Ok)],
    })
    .await;
    assert_eq!(late.next().await, ToWorker::Revoke { job, fencing: old });

    worker
        .report(
            job,
            fencing,
            1,
            vec![started(), output("right"), finished(Outcome::Ok)],
        )
        .await;
    let events = proxy.events_after(job, 1).await;
    assert_eq!(outputs(&events), ["right"]);
}

#[tokio::test]
async fn a_started_job_of_a_lost_worker_is_not_run_again() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker.report(job, fencing, 1, vec![started()]).await;
    let id = worker.id;
    drop(worker);

    let events = proxy.events_after(job, 0).await;
    let Some(JobEvent::Finished(Finished {
        outcome: Outcome::WorkerLost,
        error: Some(error),
        state: None,
        ..
    })) = events.last()
    else {
        panic!("{events:?}");
    };
    assert!(
        error.value.contains("cpu-0") && error.value.contains("variables are as they were"),
        "{error:?}"
    );
    assert_eq!(error.hint.as_deref(), Some("run the cell again"));

    // The lost worker learns that the job is no longer its own, and gets the next one.
    let mut back = FakeWorker::back(&broker.dial, id, &[(job, fencing)]).await;
    assert_eq!(back.next().await, ToWorker::Revoke { job, fencing });
    let next = proxy.submit().await;
    assert_eq!(back.run_to_end().await, next);
}

#[tokio::test]
async fn the_newest_connection_of_a_proxy_counts() {
    let broker = Broker::start().await;
    let mut older = FakeProxy::new(&broker.dial).await;
    let mut newer = FakeProxy::of(&broker.dial, older.notebook).await;
    older.expect_closed().await;
    let job = newer.submit().await;
    newer.position(job).await;
    assert!(matches!(
        newer.next_after_cancel(job).await,
        ToProxy::Events { .. }
    ));
}

impl FakeProxy {
    async fn next_after_cancel(&mut self, job: baton_protocol::JobId) -> ToProxy {
        self.send(FromProxy::Cancel { job }).await;
        self.next().await
    }
}
