//! A cell from its submission to its end.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, finished, output, outputs, started, state, submission, within,
};
use baton_broker::Activity;
use baton_protocol::{
    Answer, JobEvent, Outcome, Payload, Piece,
    proxy::{FromProxy, ToProxy},
    worker::{FromWorker, ToWorker},
};

#[tokio::test]
async fn a_cell_goes_to_a_worker_and_its_events_come_home_in_order() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let sent = submission(proxy.notebook);
    let job = sent.job;
    proxy.send(FromProxy::Submit(sent.clone())).await;

    let (fencing, arrived) = worker.assignment().await;
    assert_eq!(arrived, sent);
    proxy.assigned(job).await;

    worker.report(job, fencing, 1, vec![started()]).await;
    let two = vec![output("one"), output("two")];
    worker.report(job, fencing, 2, two).await;
    worker
        .report(job, fencing, 4, vec![finished(Outcome::Ok)])
        .await;

    let events = proxy.events_after(job, 1).await;
    assert_eq!(events[0], started());
    assert_eq!(outputs(&events), ["one", "two"]);
    assert_eq!(events[3], finished(Outcome::Ok));

    proxy.send(FromProxy::Applied { job }).await;
    proxy.send(FromProxy::Resume { job, after: 0 }).await;
    assert_eq!(proxy.next().await, ToProxy::UnknownJob { job });
}

#[tokio::test]
async fn a_worker_without_the_state_gets_a_whole_one() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    proxy.assigned(job).await;
    let wanted = JobEvent::StateWanted { question: 4 };
    worker.report(job, fencing, 1, vec![wanted.clone()]).await;
    assert_eq!(proxy.event(job).await, wanted);

    let answer = |question, name| FromProxy::Answer {
        job,
        question,
        answer: Answer::State(state(name)),
    };
    let forwarded = ToWorker::Answer {
        job,
        question: 4,
        answer: Answer::State(state("everything")),
    };
    // This answers a question of an earlier assignment.
    proxy.send(answer(3, "something else")).await;
    proxy.send(answer(4, "everything")).await;
    assert_eq!(worker.next().await, forwarded);

    // A worker asks again after a reconnect, because the answer may have been lost.
    let mut worker = FakeWorker::back(&broker.dial, worker.id, &[(job, fencing)]).await;
    let stored = ToWorker::Acknowledge {
        job,
        fencing,
        number: 1,
    };
    assert_eq!(worker.next().await, stored);
    worker.report(job, fencing, 2, vec![wanted.clone()]).await;
    assert_eq!(proxy.event(job).await, wanted);
    proxy.send(answer(4, "everything")).await;
    assert_eq!(worker.next().await, forwarded);
}

#[tokio::test]
async fn no_other_worker_begins_with_a_state_that_its_notebook_replaces() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, first) = worker.assignment().await;
    proxy.assigned(job).await;
    let wanted = JobEvent::StateWanted { question: 1 };
    worker.report(job, fencing, 1, vec![wanted.clone()]).await;
    assert_eq!(proxy.event(job).await, wanted);
    let mut other = FakeWorker::new(&broker.dial).await;
    drop(worker);

    let (fencing, second) = other.assignment().await;
    assert_ne!(second.state.base(), first.state.base());
    assert_ne!(second.state.base().messages, 0);
    let wanted = JobEvent::StateWanted { question: 2 };
    other.report(job, fencing, 1, vec![wanted]).await;
    proxy
        .answered(&mut other, job, 2, Answer::State(state("everything")))
        .await;
}

#[tokio::test]
async fn answers_reach_the_worker() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    proxy.assigned(job).await;
    let payload = |text: &'static str| Payload(vec![Piece::Inline(text.into())]);
    let files = |question| JobEvent::FilesWanted {
        question,
        wanted: payload("wanted"),
    };
    worker.report(job, fencing, 1, vec![files(1)]).await;
    assert_eq!(proxy.event(job).await, files(1));
    proxy
        .answered(&mut worker, job, 1, Answer::Files(payload("answer")))
        .await;

    let input = JobEvent::InputWanted {
        question: 2,
        prompt: "Name: ".to_owned(),
        password: false,
    };
    let names = JobEvent::NamesWanted {
        question: 4,
        names: vec!["scale".to_owned()],
    };
    let events = vec![started(), input, files(3), names];
    worker.report(job, fencing, 2, events.clone()).await;
    let received = proxy
        .batch(job)
        .await
        .into_iter()
        .map(|numbered| numbered.event);
    assert_eq!(received.collect::<Vec<_>>(), events);
    let name = Answer::Input(Some("Ada".to_owned()));
    proxy.answered(&mut worker, job, 2, name).await;
    proxy
        .answered(&mut worker, job, 3, Answer::Files(payload("answer")))
        .await;
    proxy
        .answered(&mut worker, job, 4, Answer::Names(state("scale")))
        .await;
}

#[tokio::test]
async fn activity_tells_whether_the_broker_is_needed() {
    let mut broker = Broker::start().await;
    assert!(broker.activity.borrow_and_update().is_idle());
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    proxy.position(job).await;
    let wanted = Activity {
        proxies: 1,
        unfinished_jobs: 1,
    };
    within("activity", broker.activity.wait_for(|now| *now == wanted))
        .await
        .unwrap();
    proxy.send(FromProxy::Cancel { job }).await;
    proxy.events_after(job, 0).await;
    drop(proxy);
    within("idleness", broker.activity.wait_for(|now| now.is_idle()))
        .await
        .unwrap();
}

#[tokio::test]
async fn a_warm_session_is_preferred() {
    let broker = Broker::start().await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let mut workers = Vec::new();
    for _ in 0..3 {
        workers.push(FakeWorker::new(&broker.dial).await);
    }
    let warm = vec![proxy.notebook];
    workers[1]
        .send(FromWorker::Sessions {
            warm,
            keeping: Vec::new(),
        })
        .await;
    // The response to a later message proves that the broker has handled this one.
    let strange = FromWorker::Events {
        job: baton_protocol::JobId::random(),
        fencing: 1,
        first: 1,
        events: vec![started()],
    };
    workers[1].send(strange).await;
    assert!(matches!(workers[1].next().await, ToWorker::Revoke { .. }));
    let job = proxy.submit().await;
    assert_eq!(workers[1].assignment().await.1.job, job);
}
