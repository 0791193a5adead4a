//! A broker that refuses a notebook whose job it has.

use super::scripted::{Broker, Shim, returning, started, submit_background_cell, submit_cell};
use crate::shim::*;
use baton_protocol::{
    JobEvent, JobId, JobKind, Piece, Refusal,
    proxy::{FromProxy, ToProxy, WaitingReason},
    shim::Attach,
};

const REFUSED: &str = "needs a token, and none was given. The cell";

/// A cell of this kind waits for its result, although its broker refuses the notebook for a while.
async fn check_waits(kind: JobKind, meanwhile: &str) {
    let mut broker = Broker::start([]).await;
    let (mut shim, submission) = submit_cell(&mut broker, kind).await;
    let job = submission.job;
    broker.send_events(job, 1, started()).await;
    shim.until_started().await;

    broker.drop_and_refuse(2);
    shim.until_shown(&format!("{REFUSED} {meanwhile}")).await;
    broker.welcome().await;
    assert_eq!(broker.receive().await, FromProxy::Resume { job, after: 2 });
    let end = returning(&submission, Piece::Inline("trained".into()));
    broker.send_events(job, 3, [JobEvent::Finished(end)]).await;
    shim.apply_result().await;
    assert_eq!(broker.receive().await, FromProxy::Applied { job });
}

#[tokio::test]
async fn a_background_cell_continues_although_its_broker_refuses_the_notebook() {
    check_waits(JobKind::Background, "continues on the GPU machine").await;
}

#[tokio::test]
async fn a_running_cell_is_not_said_to_continue() {
    check_waits(
        JobKind::Cell,
        "is stopped unless that changes within seconds",
    )
    .await;
}

#[tokio::test]
async fn a_queued_cell_fails_with_the_reason_and_what_to_do() {
    let mut broker = Broker::start([]).await;
    let (mut shim, submission) = submit_background_cell(&mut broker).await;
    let queued = ToProxy::QueuePosition {
        job: submission.job,
        position: 1,
        last_position: 1,
        moved_back: None,
        waiting: WaitingReason::JobsAhead,
        gpu: true,
        estimate: None,
        message: None,
    };
    broker.send(&queued).await;
    broker.drop_and_refuse(1);
    let error = shim.failure().await;
    assert!(error.value.contains("needs a token"), "{error:?}");
    assert!(error.hint.unwrap().contains("baton login"));
}

#[tokio::test]
async fn a_background_cell_is_left_to_another_kernel_if_this_one_is_refused_for_good() {
    let mut broker = Broker::start([]).await;
    let (mut shim, submission) = submit_background_cell(&mut broker).await;
    broker.send_events(submission.job, 1, started()).await;
    shim.until_started().await;
    broker.drop_and_refuse(0);
    broker.refuse(Refusal::NotYours {}).await;
    let error = shim.failure().await;
    assert!(
        error.value.contains("belongs to another person"),
        "{error:?}"
    );
    let hint = error.hint.unwrap();
    let expected = "restart the kernel; then %gpu_attach restores what the cell left";
    assert!(hint.contains(expected), "{hint}");
    broker.welcome().await;
    let job = submission.job;
    assert_eq!(broker.receive().await, FromProxy::Detach { job });
}

#[tokio::test]
async fn a_result_that_cannot_be_fetched_is_explained() {
    const VARIABLES: &[u8] = b"the variables that a cell changed";
    let mut broker = Broker::start([VARIABLES]).await;
    let closed_gate = broker.close_gate().await;
    let (mut shim, submission) = submit_background_cell(&mut broker).await;
    let stored = Piece::Stored {
        hash: baton_chunks::hash(VARIABLES),
        bytes: u32::try_from(VARIABLES.len()).unwrap(),
    };
    let end = JobEvent::Finished(returning(&submission, stored));
    let events = started().into_iter().chain([end]);
    broker.send_events(submission.job, 1, events).await;
    broker.until_asked().await;
    broker.drop_and_refuse(1);
    // The proxy has been refused when it connects again.
    broker.accept().await;
    drop(closed_gate);
    shim.until_shown(&format!("{REFUSED} has ended")).await;
    broker.greet().await;
    shim.apply_result().await;
}

#[tokio::test]
async fn an_attached_job_is_waited_for_and_the_reason_is_shown() {
    let mut broker = Broker::start([]).await;
    let mut shim = Shim::start(&broker, JobKind::Cell);
    let job = JobId::random();
    shim.send(FromNotebook::Attach(Attach {
        call: 1,
        job,
        parent_header: b"{}".to_vec().into(),
        message_id: "attaching".to_owned(),
        kernel_session: "s".to_owned(),
        captured: false,
    }))
    .await;
    broker.welcome().await;
    assert_eq!(broker.receive().await, FromProxy::Attach { job, after: 0 });
    broker.send_events(job, 1, started()).await;
    shim.until_started().await;
    broker.drop_and_refuse(1);
    shim.until_shown(&format!("{REFUSED} continues")).await;
    broker.welcome().await;
    assert_eq!(broker.receive().await, FromProxy::Attach { job, after: 2 });
}
