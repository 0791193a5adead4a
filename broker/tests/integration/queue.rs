//! Waiting people see their position.

use crate::harness::{Broker, FakeProxy, FakeWorker, finished, started};
use baton_protocol::{
    Finished, JobEvent, Outcome, RemoteError,
    proxy::{FromProxy, ToProxy, WaitingReason},
    worker::{FromWorker, ToWorker},
};

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
    assert_eq!(
        second.position(waiting).await,
        (1, WaitingReason::JobsAhead)
    );
    let last = third.submit().await;
    assert_eq!(third.position(last).await, (2, WaitingReason::JobsAhead));

    assert_eq!(worker.run_to_end().await, running);
    second.assigned(waiting).await;
    assert_eq!(third.position(last).await, (1, WaitingReason::JobsAhead));
    assert_eq!(worker.run_to_end().await, waiting);
    third.assigned(last).await;
    // Only changes were sent.
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
    assert_eq!(first.position(ahead).await, (1, WaitingReason::NoWorker));
    let behind = second.submit().await;
    assert_eq!(second.position(behind).await, (2, WaitingReason::NoWorker));
    first.send(FromProxy::Cancel { job: ahead }).await;
    assert_eq!(second.position(behind).await, (1, WaitingReason::NoWorker));
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
        proxy.position(second).await,
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
    assert_eq!(proxy.position(job).await, (1, WaitingReason::NoWorker));
    let mut proxy = FakeProxy::of(&broker.dial, proxy.notebook).await;
    proxy.send(FromProxy::Resume { job, after: 0 }).await;
    assert_eq!(proxy.position(job).await, (1, WaitingReason::NoWorker));
}

#[tokio::test]
async fn a_worker_that_is_about_to_leave_gets_nothing_new() {
    let broker = Broker::start().await;
    let mut leaving = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let running = proxy.submit().await;
    let (fencing, _) = leaving.assignment().await;
    leaving.report(running, fencing, 1, vec![started()]).await;
    proxy.assigned(running).await;
    leaving.send(FromWorker::Drain {}).await;
    let end = vec![finished(Outcome::Ok)];
    leaving.report(running, fencing, 2, end).await;
    proxy.events_after(running, 1).await;
    let next = proxy.submit().await;
    assert_eq!(proxy.position(next).await, (1, WaitingReason::NoWorker));
    let mut staying = FakeWorker::new(&broker.dial).await;
    assert_eq!(staying.run_to_end().await, next);
}

#[tokio::test]
async fn what_a_leaving_worker_has_not_started_runs_on_another_one() {
    let broker = Broker::start().await;
    let mut leaving = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, _) = leaving.assignment().await;
    proxy.assigned(job).await;
    let mut staying = FakeWorker::new(&broker.dial).await;
    leaving.send(FromWorker::Drain {}).await;
    assert_eq!(staying.run_to_end().await, job);
    // The worker did not know yet.
    let late = FromWorker::Events {
        job,
        fencing,
        first: 1,
        events: vec![started()],
    };
    leaving.send(late).await;
    assert_eq!(leaving.next().await, ToWorker::Revoke { job, fencing });
    proxy.events_after(job, 1).await;
}

#[tokio::test]
async fn a_cancelled_cell_that_a_leaving_worker_has_not_started_ends() {
    let broker = Broker::start().await;
    let mut leaving = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    leaving.assignment().await;
    proxy.assigned(job).await;
    proxy.send(FromProxy::Cancel { job }).await;
    assert_eq!(leaving.next().await, ToWorker::Cancel { job });
    leaving.send(FromWorker::Drain {}).await;
    let events = proxy.events_after(job, 1).await;
    let end = events.last();
    assert!(
        matches!(
            end,
            Some(JobEvent::Finished(Finished {
                outcome: Outcome::Cancelled,
                ..
            }))
        ),
        "{end:?}"
    );
}

fn not_started(why: &str) -> JobEvent {
    JobEvent::NotStarted {
        error: RemoteError {
            name: "SessionFailed".to_owned(),
            value: why.to_owned(),
            traceback: Vec::new(),
            hint: None,
        },
    }
}

#[tokio::test]
async fn a_job_that_its_worker_cannot_start_goes_to_another_one() {
    let broker = Broker::start().await;
    let mut faulty = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, _) = faulty.assignment().await;
    let mut sound = FakeWorker::new(&broker.dial).await;
    faulty
        .report(job, fencing, 1, vec![not_started("no disk")])
        .await;
    assert_eq!(sound.run_to_end().await, job);
    // The notebook receives a second assignment, and no failure.
    let events = proxy.events_after(job, 0).await;
    assert!(matches!(
        events[..],
        [
            JobEvent::Assigned { .. },
            JobEvent::Assigned { .. },
            JobEvent::Started { .. },
            JobEvent::Finished(_)
        ]
    ));
    assert!(broker.get("/").await.contains("failing"));

    // It gets no further job while the other worker accepts cells, even if that is busy.
    let mut other = FakeProxy::new(&broker.dial).await;
    let busy = other.submit().await;
    other.assigned(busy).await;
    let mut last = FakeProxy::new(&broker.dial).await;
    let next = last.submit().await;
    assert_eq!(last.position(next).await, (1, WaitingReason::JobsAhead));
    faulty.send(FromWorker::Recovered {}).await;
    assert_eq!(faulty.run_to_end().await, next);
    assert_eq!(sound.run_to_end().await, busy);
    assert!(!broker.get("/").await.contains("failing"));
}

#[tokio::test]
async fn a_job_that_no_worker_can_start_waits_with_the_reason() {
    let broker = Broker::start().await;
    let mut workers = [
        FakeWorker::new(&broker.dial).await,
        FakeWorker::new(&broker.dial).await,
    ];
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let [one, other] = &mut workers;
    let (first, second, fencing) = tokio::select! {
        (fencing, _) = one.assignment() => (one, other, fencing),
        (fencing, _) = other.assignment() => (other, one, fencing),
    };
    first
        .report(job, fencing, 1, vec![not_started("no disk")])
        .await;
    let (fencing, _) = second.assignment().await;
    second
        .report(job, fencing, 1, vec![not_started("no memory")])
        .await;
    let why = loop {
        if let ToProxy::QueuePosition {
            waiting: WaitingReason::WorkersFail { why, .. },
            ..
        } = proxy.next().await
        {
            break why;
        }
    };
    assert!(["no disk", "no memory"].contains(&why.as_str()), "{why}");
    first.send(FromWorker::Recovered {}).await;
    assert_eq!(first.run_to_end().await, job);
}

#[tokio::test]
async fn a_worker_whose_trial_failed_takes_nothing_until_it_passes() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::failing(&broker.dial, "no\n  disk").await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let why = |reason: WaitingReason| match reason {
        WaitingReason::WorkersFail { why, .. } => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(proxy.position(job).await.1), "no disk");
    let long = "A traceback\n".to_owned() + &"x".repeat(2000) + "\nImportError: torch";
    worker.send(FromWorker::Failing { why: long }).await;
    let told = why(proxy.position(job).await.1);
    assert!(
        told.starts_with("A traceback xx") && told.ends_with("xx ImportError: torch"),
        "{told}"
    );
    assert_eq!(told.chars().count(), 503);
    let page = broker.get("/workers").await;
    assert!(page.contains("failing") && page.contains(&told), "{page}");
    worker.send(FromWorker::Recovered {}).await;
    assert_eq!(worker.run_to_end().await, job);
}
