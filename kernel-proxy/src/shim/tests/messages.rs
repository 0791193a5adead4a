//! Messages between a shim and a broker that the proxy may not or cannot pass on at once.

use super::scripted::{Broker, Shim, returning, started, submit_background_cell};
use crate::shim::*;
use baton_protocol::{
    Bound, JobEvent, JobKind, Piece, RemoteError, Submission,
    proxy::FromProxy,
    shim::{SegmentView, ToNotebook},
};

#[tokio::test]
async fn a_cell_that_no_broker_accepts_fails_once() {
    let mut broker = Broker::start([]).await;
    let mut shim = Shim::start(&broker, JobKind::Block);
    shim.run(&"x".repeat(Bound::MESSAGE.bytes)).await;
    broker.welcome().await;
    let error = failure(&mut shim).await.value;
    assert!(error.contains("accepts 60 MiB"), "{error}");
    check_goes_on(broker, shim).await;
}

#[tokio::test]
async fn a_state_of_too_many_objects_is_not_sent() {
    let mut broker = Broker::start([]).await;
    let mut shim = Shim::start(&broker, JobKind::Block);
    let memory = [0_u8; 8];
    let segment = |number| SegmentView {
        number,
        address: memory.as_ptr().addr() as u64,
        bytes: memory.len() as u64,
        fresh: true,
        digests: None,
    };
    let segments = (0..140_000).map(segment).collect();
    shim.run_with("pass", segments).await;
    broker.welcome().await;
    let error = failure(&mut shim).await.value;
    assert!(error.contains("many small objects"), "{error}");
    check_goes_on(broker, shim).await;
}

#[tokio::test]
async fn a_background_cell_outlives_the_refusals_of_its_broker() {
    let mut broker = Broker::start([]).await;
    let (mut shim, submission) = submit_background_cell(&mut broker).await;
    let job = submission.job;
    broker.send_events(job, 1, started()).await;
    until_started(&mut shim).await;

    broker.drop_and_refuse(2);
    let expected = "needs a token, and none was given. The cell goes on";
    until_shown(&mut shim, expected).await;
    broker.welcome().await;
    assert_eq!(broker.receive().await, FromProxy::Resume { job, after: 2 });
    let end = returning(&submission, Piece::Inline("trained".into()));
    let events = [JobEvent::Finished(end)];
    broker.send_events(job, 3, events).await;
    apply_result(&mut shim).await;
    assert_eq!(broker.receive().await, FromProxy::Applied { job });
}

/// The next cell is submitted over the same connection.
async fn check_goes_on(mut broker: Broker, mut shim: Shim) {
    shim.run("pass").await;
    loop {
        match broker.receive().await {
            FromProxy::Submit(Submission { cell, .. }) => return assert_eq!(cell.code, "pass"),
            FromProxy::GivenUp { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

async fn failure(shim: &mut Shim) -> RemoteError {
    shim.until(|message| match message {
        ToNotebook::Failed { error, .. } => Some(error),
        _ => None,
    })
    .await
}

async fn until_started(shim: &mut Shim) {
    shim.until(|message| matches!(message, ToNotebook::Started { .. }).then_some(()))
        .await;
}

/// Waits for an output with this text.
async fn until_shown(shim: &mut Shim, text: &str) {
    let shows = |content: &[u8]| String::from_utf8_lossy(content).contains(text);
    shim.until(|message| match message {
        ToNotebook::Publish { output, .. } => shows(&output.content).then_some(()),
        ToNotebook::Failed { error, .. } => panic!("{error:?}"),
        _ => None,
    })
    .await;
}

/// Waits for the result of the cell, and applies it.
async fn apply_result(shim: &mut Shim) {
    let finished = shim.until(|message| match message {
        ToNotebook::Finished { call, delta, .. } => Some((call, delta)),
        _ => None,
    });
    let (call, delta) = finished.await;
    assert!(delta.is_some());
    shim.send(FromNotebook::Applied { call, error: None }).await;
}
