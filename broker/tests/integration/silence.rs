//! A notebook does not respond, for example because its machine sleeps. The results of its cells wait for its return.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, KilledBroker, Rules, finished, started, state,
};
use baton_protocol::{Finished, JobEvent, JobId, Outcome, proxy::FromProxy, worker::ToWorker};
use std::time::Duration;

fn rules() -> Rules {
    Rules {
        proxy_grace: Duration::ZERO,
        ..Rules::default()
    }
}

/// The cell was interrupted and returns its changes, some of them later.
fn interrupted() -> JobEvent {
    let mut end = finished(Outcome::Cancelled);
    if let JobEvent::Finished(Finished {
        state: changes,
        deferred_bytes,
        ..
    }) = &mut end
    {
        (*changes, *deferred_bytes) = (Some(state("changes")), 500 << 20);
    }
    end
}

fn deferred() -> JobEvent {
    JobEvent::DeferredState {
        state: Some(state("what follows")),
        error: None,
    }
}

/// The events of the job that a notebook receives when it returns.
async fn returns(proxy: &mut FakeProxy, job: JobId, count: usize) -> Vec<JobEvent> {
    proxy.send(FromProxy::Resume { job, after: 0 }).await;
    let mut events = Vec::new();
    while events.len() < count {
        let batch = proxy.batch(job).await;
        events.extend(batch.into_iter().map(|numbered| numbered.event));
    }
    events
}

#[tokio::test]
async fn what_ran_is_stopped_and_its_changes_are_kept() {
    let broker = Broker::start_with(rules()).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let (notebook, job) = (proxy.notebook, proxy.submit().await);
    let (fencing, _) = worker.assignment().await;
    worker.report(job, fencing, 1, vec![started()]).await;
    drop(proxy);
    assert_eq!(worker.next().await, ToWorker::Cancel { job });
    worker.report(job, fencing, 2, vec![interrupted()]).await;
    // Only now, because until then only the session had these bytes.
    worker.send_events(job, fencing, 3, vec![deferred()]).await;
    assert_eq!(worker.next().await, ToWorker::EndSession { notebook });

    let mut proxy = FakeProxy::of(&broker.dial, notebook).await;
    let events = returns(&mut proxy, job, 4).await;
    assert_eq!(events[2..], [interrupted(), deferred()]);
    proxy.send(FromProxy::Applied { job }).await;
    proxy.expect_silence().await;
    assert_eq!(proxy.closed, [job]);
}

#[tokio::test]
async fn a_result_is_kept_by_a_killed_broker_too() {
    let folder = tempfile::tempdir().unwrap();
    let broker = KilledBroker::start(folder.path()).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let (notebook, job) = (proxy.notebook, proxy.submit().await);
    let (fencing, _) = worker.assignment().await;
    let events = vec![started(), finished(Outcome::Ok)];
    worker.report(job, fencing, 1, events).await;
    drop((proxy, worker));
    let broker = broker.kill_and_restart().await;
    let mut proxy = FakeProxy::of(&broker.dial, notebook).await;
    let events = returns(&mut proxy, job, 3).await;
    assert_eq!(events.last(), Some(&finished(Outcome::Ok)));
}

#[tokio::test]
async fn nothing_is_kept_for_a_notebook_that_said_goodbye() {
    let broker = Broker::start_with(rules()).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let (notebook, job) = (proxy.notebook, proxy.submit().await);
    let (fencing, _) = worker.assignment().await;
    let events = vec![started(), finished(Outcome::Ok)];
    worker.report(job, fencing, 1, events).await;
    proxy.send(FromProxy::Goodbye {}).await;
    assert_eq!(worker.next().await, ToWorker::EndSession { notebook });
    let mut proxy = FakeProxy::of(&broker.dial, notebook).await;
    proxy.send(FromProxy::Resume { job, after: 0 }).await;
    let unknown = baton_protocol::proxy::ToProxy::UnknownJob { job };
    assert_eq!(proxy.next().await, unknown);
}
