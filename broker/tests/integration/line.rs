//! Who waits is told where.

use crate::harness::{Broker, FakeProxy, FakeWorker};
use baton_protocol::proxy::{FromProxy, WaitingReason};

#[tokio::test]
async fn notebooks_in_line_see_their_places_change() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut first = FakeProxy::new(&broker.dial).await;
    let mut second = FakeProxy::new(&broker.dial).await;
    let mut third = FakeProxy::new(&broker.dial).await;
    let running = first.submit().await;
    first.assigned(running).await;
    let waiting = second.submit().await;
    assert_eq!(second.place(waiting).await, (1, WaitingReason::InLine));
    let last = third.submit().await;
    assert_eq!(third.place(last).await, (2, WaitingReason::InLine));

    assert_eq!(worker.run_to_end().await, running);
    second.assigned(waiting).await;
    assert_eq!(third.place(last).await, (1, WaitingReason::InLine));
    assert_eq!(worker.run_to_end().await, waiting);
    third.assigned(last).await;
    // Only changes were told.
    first.events_after(running, 1).await;
    first.expect_silence().await;
    third.expect_silence().await;
}

#[tokio::test]
async fn who_leaves_the_line_moves_the_others_up() {
    let broker = Broker::start().await;
    let mut first = FakeProxy::new(&broker.dial).await;
    let mut second = FakeProxy::new(&broker.dial).await;
    let ahead = first.submit().await;
    assert_eq!(first.place(ahead).await, (1, WaitingReason::NoWorker));
    let behind = second.submit().await;
    assert_eq!(second.place(behind).await, (2, WaitingReason::NoWorker));
    first.say(FromProxy::Cancel { job: ahead }).await;
    assert_eq!(second.place(behind).await, (1, WaitingReason::NoWorker));
}

#[tokio::test]
async fn a_notebook_runs_one_cell_at_a_time() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::with_slots(&broker.dial, 4).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let first = proxy.submit().await;
    proxy.assigned(first).await;
    let second = proxy.submit().await;
    assert_eq!(
        proxy.place(second).await,
        (
            1,
            WaitingReason::OwnJobRuns {
                notebook: "lesson.ipynb".to_owned()
            }
        )
    );
    assert_eq!(worker.run_to_end().await, first);
    proxy.events_after(first, 1).await;
    proxy.assigned(second).await;
}

#[tokio::test]
async fn a_proxy_that_comes_back_is_told_its_place() {
    let broker = Broker::start().await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    assert_eq!(proxy.place(job).await, (1, WaitingReason::NoWorker));
    let mut proxy = FakeProxy::of(&broker.dial, proxy.notebook).await;
    proxy.say(FromProxy::Resume { job, after: 0 }).await;
    assert_eq!(proxy.place(job).await, (1, WaitingReason::NoWorker));
}

#[tokio::test]
async fn a_worker_that_is_about_to_leave_gets_nothing_new() {
    let broker = Broker::start().await;
    let mut leaving = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let running = proxy.submit().await;
    let (fencing, _) = leaving.assignment().await;
    proxy.assigned(running).await;
    leaving
        .say(baton_protocol::worker::FromWorker::Drain {})
        .await;
    let events = vec![
        crate::harness::started(),
        crate::harness::finished(baton_protocol::Outcome::Ok),
    ];
    leaving.report(running, fencing, 1, events).await;
    proxy.events_after(running, 1).await;
    let next = proxy.submit().await;
    assert_eq!(proxy.place(next).await, (1, WaitingReason::NoWorker));
    let mut staying = FakeWorker::new(&broker.dial).await;
    assert_eq!(staying.run_to_end().await, next);
}
