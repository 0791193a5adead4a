//! Cancelling, by the student or because the notebook is gone.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, LONG_GRACE, Rules, finished, started, wait_until,
};
use baton_protocol::{
    Answer, Finished, JobEvent, JobId, Outcome,
    proxy::FromProxy,
    worker::{FromWorker, ToWorker},
};
use std::time::Duration;

fn is_cancelled(event: &JobEvent) -> bool {
    matches!(
        event,
        JobEvent::Finished(Finished {
            outcome: Outcome::Cancelled,
            state: None,
            ..
        })
    )
}

#[tokio::test]
async fn a_queued_job_is_cancelled_at_once() {
    let broker = Broker::start().await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    proxy.position(job).await;
    proxy.send(FromProxy::Cancel { job }).await;
    assert!(is_cancelled(&proxy.event(job).await));
    // The queue does not count it any more either.
    let next = proxy.submit().await;
    assert_eq!(proxy.position(next).await.0, 1);
}

#[tokio::test]
async fn an_assigned_job_is_cancelled_by_its_worker() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    proxy.assigned(job).await;
    proxy.send(FromProxy::Cancel { job }).await;
    assert_eq!(worker.next().await, ToWorker::Cancel { job });
    worker
        .report(job, fencing, 1, vec![finished(Outcome::Cancelled)])
        .await;
    assert!(is_cancelled(&proxy.event(job).await));
}

#[tokio::test]
async fn a_started_job_is_cancelled_by_its_worker() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    proxy.assigned(job).await;
    worker.report(job, fencing, 1, vec![started()]).await;
    proxy.send(FromProxy::Cancel { job }).await;
    assert_eq!(worker.next().await, ToWorker::Cancel { job });
    // If the cell has ended meanwhile, that end is its outcome.
    worker
        .report(job, fencing, 2, vec![finished(Outcome::Ok)])
        .await;
    assert_eq!(proxy.events_after(job, 1).await[1], finished(Outcome::Ok));
}

#[tokio::test]
async fn a_cancellation_reaches_a_worker_that_was_away() {
    let rules = Rules {
        worker_grace: LONG_GRACE,
        ..Rules::default()
    };
    let broker = Broker::start_with(rules).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker.report(job, fencing, 1, vec![started()]).await;
    let id = worker.id;
    drop(worker);
    wait_until_disconnected(&broker).await;
    proxy.send(FromProxy::Cancel { job }).await;
    proxy.batch(job).await;
    proxy.batch(job).await;
    proxy.expect_silence().await;
    assert_eq!(proxy.cancelling, [job]);
    let mut worker = FakeWorker::back(&broker.dial, id, &[(job, fencing)]).await;
    assert!(matches!(
        worker.next().await,
        ToWorker::Acknowledge { number: 1, .. }
    ));
    assert_eq!(worker.next().await, ToWorker::Cancel { job });
}

#[tokio::test]
async fn a_job_whose_worker_is_away_before_the_start_is_cancelled_at_once() {
    let rules = Rules {
        worker_grace: LONG_GRACE,
        ..Rules::default()
    };
    let broker = Broker::start_with(rules).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    proxy.assigned(job).await;
    let id = worker.id;
    drop(worker);
    wait_until_disconnected(&broker).await;
    proxy.send(FromProxy::Cancel { job }).await;
    assert!(is_cancelled(&proxy.event(job).await));
    let mut worker = FakeWorker::back(&broker.dial, id, &[(job, fencing)]).await;
    assert_eq!(worker.next().await, ToWorker::Revoke { job, fencing });
}

#[tokio::test]
async fn jobs_and_session_end_when_the_notebook_is_gone() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let (notebook, job) = (proxy.notebook, proxy.submit().await);
    let (fencing, _) = worker.assignment().await;
    worker.report(job, fencing, 1, vec![started()]).await;
    let queued = proxy.submit().await;
    proxy.send(FromProxy::Goodbye {}).await;

    assert_eq!(worker.next().await, ToWorker::Cancel { job });
    assert_eq!(worker.next().await, ToWorker::EndSession { notebook });
    worker
        .report(job, fencing, 2, vec![finished(Outcome::Cancelled)])
        .await;
    // The notebook is gone, so these events are deleted, and the second job never runs.
    let mut other = FakeProxy::new(&broker.dial).await;
    for gone in [job, queued] {
        other
            .send(FromProxy::Resume {
                job: gone,
                after: 0,
            })
            .await;
        let unknown = baton_protocol::proxy::ToProxy::UnknownJob { job: gone };
        assert_eq!(other.next().await, unknown);
    }
    let next = other.submit().await;
    assert_eq!(worker.run_to_end().await, next);
}

#[tokio::test]
async fn a_session_that_nobody_comes_for_is_ended() {
    let rules = Rules {
        silent_proxy_grace: Duration::from_millis(100),
        ..Rules::default()
    };
    let broker = Broker::start_with(rules).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let notebook = baton_protocol::NotebookId::random();
    let warm = vec![notebook];
    worker
        .send(FromWorker::Sessions {
            warm,
            keeping: Vec::new(),
        })
        .await;
    assert_eq!(worker.next().await, ToWorker::EndSession { notebook });
}

#[tokio::test]
async fn nobody_cancels_the_job_of_another_notebook() {
    let broker = Broker::start().await;
    let mut owner = FakeProxy::new(&broker.dial).await;
    let mut other = FakeProxy::new(&broker.dial).await;
    let job = owner.submit().await;
    owner.position(job).await;
    let attempts: [fn(JobId) -> FromProxy; 4] = [
        |job| FromProxy::Cancel { job },
        |job| FromProxy::Applied { job },
        |job| FromProxy::Resume { job, after: 0 },
        |job| FromProxy::Answer {
            job,
            question: 1,
            answer: Answer::Input(None),
        },
    ];
    for attempt in attempts {
        other.send(attempt(job)).await;
        let unknown = baton_protocol::proxy::ToProxy::UnknownJob { job };
        assert_eq!(other.next().await, unknown);
    }
    owner.expect_silence().await;
}

/// Waits until a page shows the worker as disconnected.
pub(crate) async fn wait_until_disconnected(broker: &Broker) {
    wait_until("the loss of a worker", async || {
        broker.get("/").await.contains("disconnected")
    })
    .await;
}
