//! Messages between a shim and a broker that the proxy may not or cannot pass on at once.

use super::scripted::{Broker, Shim};
use baton_protocol::{
    Bound, JobKind, Submission,
    proxy::FromProxy,
    shim::{SegmentView, ToNotebook},
};

#[tokio::test]
async fn a_cell_that_no_broker_accepts_fails_once() {
    let mut broker = Broker::start([]).await;
    let mut shim = Shim::start(&broker, JobKind::Block);
    shim.run(&"x".repeat(Bound::MESSAGE.bytes)).await;
    broker.welcome().await;
    let failed = shim.until(|message| match message {
        ToNotebook::Failed {
            error, table_kept, ..
        } => Some((error, table_kept)),
        _ => None,
    });
    let (error, table_kept) = failed.await;
    assert!(error.value.contains("accepts at most 60 MiB"), "{error:?}");
    assert!(error.hint.unwrap().contains("a file in the current folder"));
    assert!(table_kept, "nothing was sent");
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
    let error = shim.failure().await.value;
    assert!(error.contains("many small objects"), "{error}");
    check_goes_on(broker, shim).await;
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
