//! A background cell whose notebook runs another cell, so that its shim answers nothing for a while.

use super::scripted::{Broker, Shim, returning, started, submit_background_cell, whole_state};
use crate::shim::*;
use baton_protocol::{
    CallId, Finished, JobEvent, JobId, Outcome, Piece, RemoteError, proxy::FromProxy,
    shim::ToNotebook,
};

/// Submits a background cell, whose worker asks for a complete state.
async fn submit_cell_without_session() -> (Broker, Shim, JobId, CallId) {
    let mut broker = Broker::start([]).await;
    let (mut shim, submission) = submit_background_cell(&mut broker).await;
    let job = submission.job;
    let [assigned, _] = started();
    let asks = [assigned, JobEvent::StateWanted { question: 1 }];
    broker.send_events(job, 1, asks).await;
    let call = until_state_is_wanted(&mut shim).await;
    (broker, shim, job, call)
}

async fn until_state_is_wanted(shim: &mut Shim) -> CallId {
    shim.until(|message| match message {
        ToNotebook::StateWanted { call } => Some(call),
        _ => None,
    })
    .await
}

/// The worker of the job has waited long enough.
async fn give_up(broker: &mut Broker, job: JobId) {
    let name = RemoteError::NOTEBOOK_SILENT;
    let error = RemoteError::of_baton(name, "It did not start", "run it again");
    let refused = Finished::without_state(Outcome::Refused, Some(error));
    broker
        .send_events(job, 3, [JobEvent::Finished(refused)])
        .await;
    let given_up = FromProxy::GivenUp { job, outcome: None };
    assert_eq!(broker.receive().await, given_up);
}

/// The shim answers at last, and the cell runs.
async fn check_runs(mut broker: Broker, mut shim: Shim, call: CallId) {
    let state = whole_state(Vec::new());
    shim.send(FromNotebook::State { call, state }).await;
    let submission = broker.submission().await;
    assert_eq!(submission.cell.code, "train()");
    let job = submission.job;
    let end = JobEvent::Finished(returning(&submission, Piece::Inline("trained".into())));
    let events = started().into_iter().chain([end]);
    broker.send_events(job, 1, events).await;
    shim.apply_result().await;
    assert_eq!(broker.receive().await, FromProxy::Applied { job });
}

#[tokio::test]
async fn its_cell_is_submitted_again_when_the_notebook_has_answered() {
    let (mut broker, shim, job, call) = submit_cell_without_session().await;
    give_up(&mut broker, job).await;
    check_runs(broker, shim, call).await;
}

#[tokio::test]
async fn an_answer_that_is_too_late_is_asked_for_again() {
    let (mut broker, mut shim, job, call) = submit_cell_without_session().await;
    let state = whole_state(Vec::new());
    shim.send(FromNotebook::State { call, state }).await;
    for _ in ["it prepares the answer", "the answer"] {
        let answer = broker.receive().await;
        assert!(matches!(answer, FromProxy::Answer { .. }), "{answer:?}");
    }
    give_up(&mut broker, job).await;
    until_state_is_wanted(&mut shim).await;
    check_runs(broker, shim, call).await;
}

#[tokio::test]
async fn its_cell_can_be_cancelled_meanwhile() {
    let (mut broker, mut shim, job, call) = submit_cell_without_session().await;
    give_up(&mut broker, job).await;
    shim.send(FromNotebook::Cancel { call }).await;
    let end = shim.receive().await;
    let is_cancelled = matches!(
        end,
        ToNotebook::Finished {
            outcome: Outcome::Cancelled,
            ..
        }
    );
    assert!(is_cancelled, "{end:?}");
}
