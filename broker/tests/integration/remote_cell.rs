//! A cell from its submission to its end.

use crate::cancel::wait_until_disconnected;
use crate::harness::{
    Broker, FakeProxy, FakeWorker, finished, output, outputs, started, state, submission, within,
};
use baton_broker::Activity;
use baton_protocol::{
    JobEvent, Outcome, Payload, Piece,
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
    proxy.say(FromProxy::Submit(sent.clone())).await;

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

    proxy.say(FromProxy::Applied { job }).await;
    proxy.say(FromProxy::Resume { job, after: 0 }).await;
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
    worker
        .report(job, fencing, 1, vec![JobEvent::StateWanted {}])
        .await;
    assert_eq!(proxy.event(job).await, JobEvent::StateWanted {});

    let whole = state("everything");
    let answer = FromProxy::State {
        job,
        state: whole.clone(),
    };
    proxy.say(answer).await;
    let forwarded = ToWorker::State { job, state: whole };
    assert_eq!(worker.next().await, forwarded);

    // It is sent again after a reconnect, because the first message may have been lost.
    let mut worker = FakeWorker::back(&broker.dial, worker.id, &[(job, fencing)]).await;
    let stored = ToWorker::Acknowledge {
        job,
        fencing,
        number: 1,
    };
    assert_eq!(worker.next().await, stored);
    assert_eq!(worker.next().await, forwarded);
}

#[tokio::test]
async fn an_answer_to_input_reaches_the_worker() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    proxy.assigned(job).await;
    let question = JobEvent::InputWanted {
        question: 1,
        prompt: "Name: ".to_owned(),
        password: false,
    };
    let events = vec![started(), question.clone()];
    worker.report(job, fencing, 1, events).await;
    assert_eq!(proxy.batch(job).await[1].event, question);
    let value = Some("Ada".to_owned());
    proxy
        .say(FromProxy::Input {
            job,
            question: 1,
            value: value.clone(),
        })
        .await;
    assert_eq!(
        worker.next().await,
        ToWorker::Input {
            job,
            question: 1,
            value
        }
    );
}

#[tokio::test]
async fn questions_about_files_come_before_the_start_and_after() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    proxy.assigned(job).await;
    let payload = |text: &'static str| Payload(vec![Piece::Inline(text.into())]);
    let question = |question| JobEvent::FilesWanted {
        question,
        wanted: payload("wanted"),
    };
    let answer = |question| FromProxy::Files {
        job,
        question,
        answer: payload("answer"),
    };
    let forwarded = |question| ToWorker::Files {
        job,
        question,
        answer: payload("answer"),
    };
    worker.report(job, fencing, 1, vec![question(1)]).await;
    assert_eq!(proxy.event(job).await, question(1));
    proxy.say(answer(1)).await;
    assert_eq!(worker.next().await, forwarded(1));
    let events = vec![started(), question(2)];
    worker.report(job, fencing, 2, events).await;
    assert_eq!(proxy.batch(job).await[1].event, question(2));

    // An answer is kept for a disconnected worker.
    let id = worker.id;
    drop(worker);
    wait_until_disconnected(&broker).await;
    proxy.say(answer(2)).await;
    let mut worker = FakeWorker::back(&broker.dial, id, &[(job, fencing)]).await;
    let stored = ToWorker::Acknowledge {
        job,
        fencing,
        number: 3,
    };
    assert_eq!(worker.next().await, stored);
    assert_eq!(worker.next().await, forwarded(2));
}

#[tokio::test]
async fn names_reach_the_worker_also_after_a_cut() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    proxy.assigned(job).await;
    let question = JobEvent::NamesWanted {
        number: 1,
        names: vec!["scale".to_owned()],
    };
    let events = vec![started(), question.clone()];
    worker.report(job, fencing, 1, events).await;
    assert_eq!(proxy.batch(job).await[1].event, question);
    let (number, state) = (1, state("scale"));
    let answer = FromProxy::Names {
        job,
        number,
        state: state.clone(),
    };
    proxy.say(answer).await;
    let forwarded = ToWorker::Names { job, number, state };
    assert_eq!(worker.next().await, forwarded);

    // The message before the break may have been lost.
    let mut worker = FakeWorker::back(&broker.dial, worker.id, &[(job, fencing)]).await;
    assert!(matches!(
        worker.next().await,
        ToWorker::Acknowledge { number: 2, .. }
    ));
    assert_eq!(worker.next().await, forwarded);
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
    proxy.say(FromProxy::Cancel { job }).await;
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
        .say(FromWorker::Sessions {
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
    workers[1].say(strange).await;
    assert!(matches!(workers[1].next().await, ToWorker::Revoke { .. }));
    let job = proxy.submit().await;
    assert_eq!(workers[1].assignment().await.1.job, job);
}
