//! Deferred state: it may be sent again until the notebook has it, and the worker learns when that is.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, KilledBroker, Rules, finished, started, state, wait_until,
};
use baton_protocol::{
    FencingNumber, Finished, JobEvent, JobId, Outcome, proxy::FromProxy, worker::ToWorker,
};
use std::time::Duration;

fn left_out() -> JobEvent {
    let mut end = finished(Outcome::Ok);
    if let JobEvent::Finished(Finished { deferred_bytes, .. }) = &mut end {
        *deferred_bytes = 500 << 20;
    }
    end
}

fn rest() -> JobEvent {
    JobEvent::DeferredState {
        state: Some(state("what follows")),
        error: None,
    }
}

/// A job that has ended, and whose worker has sent the deferred state.
async fn sent(worker: &mut FakeWorker, proxy: &mut FakeProxy) -> (JobId, FencingNumber) {
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    let events = vec![started(), left_out(), rest()];
    worker.report(job, fencing, 1, events).await;
    proxy.assigned(job).await;
    assert_eq!(proxy.batch(job).await.len(), 3);
    (job, fencing)
}

#[tokio::test]
async fn it_comes_again_until_the_notebook_has_it() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let (job, fencing) = sent(&mut worker, &mut proxy).await;
    for number in 4..6 {
        proxy.send(FromProxy::DeferredWanted { job }).await;
        assert_eq!(worker.next().await, ToWorker::DeferredWanted { job });
        worker.report(job, fencing, number, vec![rest()]).await;
        assert_eq!(proxy.event(job).await, rest());
    }
    proxy.send(FromProxy::Applied { job }).await;
    assert_eq!(worker.next().await, ToWorker::Revoke { job, fencing });
    proxy.expect_silence().await;
}

#[tokio::test]
async fn a_worker_that_was_away_hears_that_it_is_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let broker = KilledBroker::start(folder.path()).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let (id, notebook) = (worker.id, proxy.notebook);
    let (job, fencing) = sent(&mut worker, &mut proxy).await;
    let broker = broker.kill_and_restart().await;
    let mut proxy = FakeProxy::of(&broker.dial, notebook).await;
    proxy.send(FromProxy::Resume { job, after: 4 }).await;
    proxy.send(FromProxy::DeferredWanted { job }).await;
    proxy.expect_silence().await;
    let mut worker = FakeWorker::back(&broker.dial, id, &[(job, fencing)]).await;
    let number = 3;
    let stored = ToWorker::Acknowledge {
        job,
        fencing,
        number,
    };
    assert_eq!(worker.next().await, stored);
    assert_eq!(worker.next().await, ToWorker::DeferredWanted { job });
    worker.report(job, fencing, 4, vec![rest()]).await;
    assert_eq!(proxy.event(job).await, rest());
}

#[tokio::test]
async fn with_its_worker_it_is_lost() {
    let broker = Broker::start_with(Rules {
        worker_grace: Duration::ZERO,
        ..Rules::default()
    })
    .await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let (job, _) = sent(&mut worker, &mut proxy).await;
    drop(worker);
    let lost = proxy.event(job).await;
    assert!(lost.is_last(), "{lost:?}");
    // The notebook may have what was sent before. If not, it has learned of the loss.
    proxy.send(FromProxy::DeferredWanted { job }).await;
    proxy.expect_silence().await;
}

#[tokio::test]
async fn a_worker_that_is_cut_off_for_longer_than_its_cells_may_wait_brings_it_back() {
    let broker = Broker::start_with(Rules {
        // The broker waits twelve times as long for the state that the worker left.
        worker_grace: Duration::from_secs(3),
        ..Rules::default()
    })
    .await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let (job, fencing) = sent(&mut worker, &mut proxy).await;
    let id = worker.id;
    drop(worker);
    wait_until("the end of the grace", async || {
        !broker.get("/v1/workers").await.contains("cpu-0")
    })
    .await;
    let mut worker = FakeWorker::back(&broker.dial, id, &[(job, fencing)]).await;
    let number = 3;
    let stored = ToWorker::Acknowledge {
        job,
        fencing,
        number,
    };
    assert_eq!(worker.next().await, stored);
}
