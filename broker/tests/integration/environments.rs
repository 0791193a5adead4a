//! Courses with an environment: where their cells run, what they see until then, and who gets the lock.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, KilledBroker, Rules, finished, started, submission,
};
use baton_broker_queue::samples::lock;
use baton_protocol::{
    Environment, EnvironmentState, Finished, JobEvent, JobId, JobKind, Lock, Machine, Outcome,
    Requirement,
    api::{EnvironmentLock, EnvironmentOverview, Page, Worker},
    encode,
    proxy::{FromProxy, WaitingReason},
    worker::{FromWorker, ToWorker},
};
use baton_transport::Api;
use serde::de::DeserializeOwned;

const COURSES: &str = "[course.ml101]\nenvironment = \"ml101\"\n";

fn digest(lock: &Lock) -> String {
    baton_chunks::hash(&encode(lock)).to_string()
}

fn environment(name: &str, lock: Option<&Lock>, state: EnvironmentState) -> Environment {
    Environment {
        name: name.to_owned(),
        lock: lock.map(digest),
        python_version: Some("3.13".to_owned()),
        state,
    }
}

async fn worker(broker: &Broker, name: &str, environments: Vec<Environment>) -> FakeWorker {
    let machine = Machine {
        environments,
        ..Machine::default()
    };
    FakeWorker::offering(&broker.dial, name, Vec::new(), machine).await
}

async fn submit(proxy: &mut FakeProxy) -> JobId {
    let sent = submission(proxy.notebook);
    let job = sent.job;
    proxy.send(FromProxy::Submit(sent)).await;
    job
}

async fn ask<Answer: DeserializeOwned>(broker: &KilledBroker, path: &str) -> Answer {
    let api = Api::new(&broker.dial).unwrap();
    api.ask(path, &[]).await.unwrap()
}

fn none_fits(connected: &[&str]) -> WaitingReason {
    WaitingReason::NoWorkerFits {
        requirement: Requirement::Environment {
            name: "ml101".to_owned(),
        },
        connected: connected.iter().map(|&kind| kind.to_owned()).collect(),
    }
}

#[tokio::test]
async fn cells_of_a_course_run_where_its_environment_is_ready() {
    let broker = Broker::start_with(Rules {
        courses: Some(COURSES.to_owned()),
        ..Rules::default()
    })
    .await;
    let mut plain = worker(&broker, "plain", Vec::new()).await;
    let mut able = worker(
        &broker,
        "able",
        vec![environment("ml101", None, EnvironmentState::Preparing {})],
    )
    .await;
    let mut ada = FakeProxy::in_course(&broker.dial, "ml101").await;
    let job = submit(&mut ada).await;
    let waits = none_fits(&["able is preparing ml101", "plain without environments"]);
    assert_eq!(ada.position(job).await, (1, waits));

    let reason = "the disk is full\nhint: make room".to_owned();
    let failed = environment("ml101", None, EnvironmentState::Failed { reason });
    able.send(FromWorker::Environments {
        environments: vec![failed],
    })
    .await;
    let why = "able could not prepare ml101: the disk is full hint: make room";
    let waits = none_fits(&[why, "plain without environments"]);
    assert_eq!(ada.position(job).await, (1, waits));

    let ready = environment("ml101", None, EnvironmentState::Ready {});
    able.send(FromWorker::Environments {
        environments: vec![ready.clone()],
    })
    .await;
    ada.assigned(job).await;
    let ToWorker::Assign {
        fencing,
        environment,
        submission,
        ..
    } = able.next().await
    else {
        panic!("an assignment was due");
    };
    assert_eq!(
        (submission.job, environment.as_deref()),
        (job, Some("ml101"))
    );
    let workers: Page<Worker> = serde_json::from_str(&broker.get("/v1/workers").await).unwrap();
    assert_eq!(workers.items[0].machine.environments, [ready]);
    able.report(job, fencing, 1, vec![started(), finished(Outcome::Ok)])
        .await;
    ada.events_after(job, 1).await;

    drop(able);
    let mut bob = FakeProxy::in_course(&broker.dial, "other").await;
    let job = submit(&mut bob).await;
    bob.assigned(job).await;
    let ToWorker::Assign { environment, .. } = plain.next().await else {
        panic!("an assignment was due");
    };
    assert_eq!(environment, None);
}

#[tokio::test]
async fn a_cell_chooses_among_the_environments_of_its_course() {
    let courses = "[course.ml101]\nenvironment = \"ml101\"\nenvironments = [\"vision\"]\n";
    let broker = Broker::start_with(Rules {
        courses: Some(courses.to_owned()),
        ..Rules::default()
    })
    .await;
    let ready = |name| environment(name, None, EnvironmentState::Ready {});
    let mut able = worker(&broker, "able", vec![ready("ml101")]).await;
    let mut ada = FakeProxy::in_course(&broker.dial, "ml101").await;
    let asking = |notebook, name: &str| {
        let mut sent = submission(notebook);
        sent.cell.environment = Some(name.to_owned());
        sent
    };
    for (kind, hint) in [
        (JobKind::Cell, "use %%gpu --env ml101"),
        (JobKind::Call, "use gpu(env=\"ml101\")"),
        (JobKind::Script, "use --env ml101"),
    ] {
        let mut sent = asking(ada.notebook, "audio");
        sent.cell.kind = kind;
        let job = sent.job;
        ada.send(FromProxy::Submit(sent)).await;
        let refused = ada.events_after(job, 0).await;
        let [
            JobEvent::Finished(Finished {
                outcome: Outcome::Refused,
                error: Some(error),
                ..
            }),
        ] = &refused[..]
        else {
            panic!("expected a refusal, got {refused:?}");
        };
        let says = "asks for the environment audio, but ml101 has ml101, vision";
        assert!(error.value.contains(says), "{error:?}");
        assert_eq!(error.hint.as_deref(), Some(hint));
    }

    let sent = asking(ada.notebook, "vision");
    let job = sent.job;
    ada.send(FromProxy::Submit(sent)).await;
    let waits = WaitingReason::NoWorkerFits {
        requirement: Requirement::Environment {
            name: "vision".to_owned(),
        },
        connected: vec!["able with ml101".to_owned()],
    };
    assert_eq!(ada.position(job).await, (1, waits));
    able.send(FromWorker::Environments {
        environments: vec![ready("ml101"), ready("vision")],
    })
    .await;
    let ToWorker::Assign { environment, .. } = able.next().await else {
        panic!("an assignment was due");
    };
    assert_eq!(environment.as_deref(), Some("vision"));
}

#[tokio::test]
async fn the_lock_is_asked_for_once_and_kept_while_no_worker_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let broker = KilledBroker::start(folder.path()).await;
    let (first, second) = (lock("2.4.6"), lock("2.4.7"));
    let offering = |lock: &Lock| Machine {
        environments: vec![environment("ml101", Some(lock), EnvironmentState::Ready {})],
        ..Machine::default()
    };
    let asked = ToWorker::LockWanted {
        environment: "ml101".to_owned(),
    };
    let lock_of = |lock: &Lock| FromWorker::Lock {
        environment: "ml101".to_owned(),
        lock: lock.clone(),
    };
    let being_built = Machine {
        environments: vec![environment(
            "ml101",
            Some(&first),
            EnvironmentState::Preparing {},
        )],
        ..Machine::default()
    };
    let mut one = FakeWorker::offering(&broker.dial, "one", Vec::new(), being_built).await;
    // The broker ignores this lock, because it does not know yet whether it can be built.
    one.send(lock_of(&first)).await;
    one.send(FromWorker::Environments {
        environments: offering(&first).environments,
    })
    .await;
    assert_eq!(one.next().await, asked);
    // The first lock does not have the hash that the worker named.
    one.send(lock_of(&second)).await;
    one.send(lock_of(&first)).await;
    one.send(FromWorker::Environments {
        environments: offering(&second).environments,
    })
    .await;
    assert_eq!(one.next().await, asked);
    let of_broker = async |broker: &KilledBroker| -> EnvironmentLock {
        ask(broker, "/v1/environments/ml101/lock").await
    };
    let kept = of_broker(&broker).await;
    assert_eq!((kept.digest, kept.lock), (digest(&first), first.clone()));
    assert_eq!(kept.python_version.as_deref(), Some("3.13"));
    let broker = broker.kill_and_restart().await;
    let kept = of_broker(&broker).await;
    assert_eq!((kept.lock, kept.python_version), (first.clone(), None));
    let listed: Page<EnvironmentOverview> = ask(&broker, "/v1/environments").await;
    let expected = EnvironmentOverview {
        environment: "ml101".to_owned(),
        lock: Some(digest(&first)),
        workers: Vec::new(),
    };
    assert_eq!(listed.items, [expected]);
}
