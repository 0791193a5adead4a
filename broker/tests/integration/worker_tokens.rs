//! A worker's token permits only this worker: its name, its registration, and numbers that are possible.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, Rules, finished, output, outputs, started, within,
};
use baton_broker::{Person, Role};
use baton_protocol::{
    Finished, GpuUsage, JobEvent, Machine, Outcome, PROTOCOL_VERSION, Refusal, Usage, WorkerId,
    worker::{Device, DeviceKind, FromWorker, ToWorker},
};
use baton_transport::{Connection, Dial};

async fn class() -> Broker {
    let courses = [("ml".to_owned(), Role::Student)].into();
    let ada = Person::new("ada".to_owned(), "ada", false, courses).entry();
    let worker = |name: &str| Person::new_worker(name.to_owned(), name).entry();
    Broker::start_with(Rules {
        token: Some("sesame"),
        tcp: true,
        people: Some(ada + &worker("gpu-1") + &worker("gpu-2")),
        ..Rules::default()
    })
    .await
}

fn hello(life: WorkerId, name: &str, slots: u32, devices: Vec<Device>) -> FromWorker {
    FromWorker::Hello {
        protocol_version: PROTOCOL_VERSION,
        worker: life,
        name: name.to_owned(),
        devices,
        machine: Machine::default(),
        slots,
        sessions: Vec::new(),
        keeping: Vec::new(),
        assignments: Vec::new(),
        acknowledged: Vec::new(),
        failing: None,
    }
}

fn device() -> Device {
    Device {
        kind: DeviceKind::Cuda,
        model: "NVIDIA H200".to_owned(),
        memory_bytes: 141 << 30,
        compute_capability: None,
    }
}

async fn answer(dial: &Dial, hello: FromWorker) -> ToWorker {
    let mut worker: Connection<ToWorker, FromWorker> =
        within("a dial", baton_transport::connect(dial, "/v1/worker"))
            .await
            .unwrap();
    worker.send(&hello).await.unwrap();
    let answer = within("an answer", worker.receive()).await.unwrap();
    answer.expect("an answer")
}

#[tokio::test]
async fn a_token_has_the_name_that_it_was_made_for() {
    let broker = class().await;
    let ask = async |token: &str, name: &str| {
        let said = hello(WorkerId::random(), name, 1, vec![device()]);
        match answer(&broker.dial_as(token), said).await {
            ToWorker::Welcome { name, .. } => Ok(name),
            ToWorker::Refused(refusal) => Err(refusal),
            other => panic!("{other:?}"),
        }
    };
    let not_yours = Refusal::NotYourName {
        token: "gpu-1".to_owned(),
        said: "gpu-2".to_owned(),
    };
    assert_eq!(ask("gpu-1", "gpu-2").await, Err(not_yours));
    assert_eq!(ask("gpu-1", "gpu-1").await, Ok("gpu-1".to_owned()));
    assert_eq!(ask("gpu-2", "").await, Ok("gpu-2".to_owned()));
    // The operator may name workers freely.
    assert_eq!(ask("sesame", "any").await, Ok("any".to_owned()));
    assert_eq!(ask("sesame", "").await, Ok("gpu-0".to_owned()));
}

#[tokio::test]
async fn a_second_worker_with_the_same_token_changes_nothing_for_the_first() {
    let broker = class().await;
    let dial = broker.dial_as("gpu-1");
    let mut worker = FakeWorker::new(&dial).await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    let job = ada.submit().await;
    let (fencing, _) = worker.assignment().await;
    ada.assigned(job).await;
    worker.report(job, fencing, 1, vec![started()]).await;
    // A notebook sees the name of the token, whatever the worker sends.
    let JobEvent::Started { worker: name } = ada.event(job).await else {
        panic!("a start was due");
    };
    assert_eq!(name, "gpu-1");

    let second = answer(&dial, hello(WorkerId::random(), "", 1, vec![device()])).await;
    let name = "gpu-1".to_owned();
    let ToWorker::Refused(refusal) = second else {
        panic!("{second:?}");
    };
    assert_eq!(refusal, Refusal::WorkerConnected { name });
    assert!(refusal.to_string().contains("baton people add"));
    worker.report(job, fencing, 2, vec![output("on")]).await;
    assert_eq!(outputs(&[ada.event(job).await]), ["on"]);

    // The same process may replace its own connection. The older one receives the reason.
    let mut newer = FakeWorker::back(&dial, worker.id, &[(job, fencing)]).await;
    let name = "gpu-1".to_owned();
    let replaced = ToWorker::Refused(Refusal::Replaced { name });
    assert_eq!(worker.next().await, replaced);
    worker.expect_closed().await;
    newer.next().await;
    let end = vec![finished(Outcome::Ok)];
    newer.report(job, fencing, 3, end).await;
    ada.events_after(job, 3).await;
}

/// Its cell is lost, as when any worker dies, and the next cell runs.
#[tokio::test]
async fn a_killed_worker_has_its_place_again_when_its_grace_is_over() {
    let broker = class().await;
    let dial = broker.dial_as("gpu-1");
    let mut worker = FakeWorker::new(&dial).await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    let job = ada.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker.report(job, fencing, 1, vec![started()]).await;
    drop(worker);
    let events = ada.events_after(job, 0).await;
    assert!(
        matches!(
            events.last(),
            Some(JobEvent::Finished(Finished {
                outcome: Outcome::WorkerLost,
                ..
            }))
        ),
        "{events:?}"
    );
    ada.send(baton_protocol::proxy::FromProxy::Applied { job })
        .await;
    let mut restarted = FakeWorker::new(&dial).await;
    let job = ada.submit().await;
    assert_eq!(restarted.run_to_end().await, job);
    ada.events_after(job, 0).await;
}

#[tokio::test]
async fn numbers_that_no_machine_has_are_refused() {
    let broker = class().await;
    let dial = broker.dial_as("gpu-1");
    let huge = Device {
        memory_bytes: u64::MAX,
        ..device()
    };
    for (slots, devices, why) in [
        (65, vec![device()], "broker.worker_slots"),
        (u32::MAX, vec![device()], "broker.worker_slots"),
        (1, vec![device(); 65], "devices that no machine has"),
        (1, vec![huge], "devices that no machine has"),
    ] {
        let said = hello(WorkerId::random(), "", slots, devices);
        match answer(&dial, said).await {
            ToWorker::Refused(Refusal::OutOfBounds { reason }) => {
                assert!(reason.contains(why), "{reason}");
            }
            other => panic!("{other:?}"),
        }
    }

    let mut worker = FakeWorker::new(&dial).await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    let begun = std::time::Instant::now();
    let job = ada.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker.report(job, fencing, 1, vec![started()]).await;
    worker
        .send(FromWorker::Load {
            memory_bytes: u64::MAX,
            memory_total_bytes: 1,
            jobs: Vec::new(),
            gpus: Vec::new(),
        })
        .await;
    let mut end = finished(Outcome::Ok);
    if let JobEvent::Finished(Finished { usage, .. }) = &mut end {
        *usage = Usage {
            run_ms: u64::MAX,
            peak_memory_bytes: 6,
            gpu: Some(GpuUsage {
                held_ms: u64::MAX,
                ..GpuUsage::default()
            }),
        };
    }
    // A run of 0 ms is not charged.
    tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    worker.claim(job, fencing, 2, vec![end]).await;
    let events = ada.events_after(job, 0).await;
    let most_ms = u64::try_from(begun.elapsed().as_millis()).unwrap() + 1;
    let Some(JobEvent::Finished(Finished { usage, .. })) = events.last() else {
        panic!("{events:?}");
    };
    assert!(usage.run_ms <= most_ms, "{usage:?}");
    assert!(usage.gpu.unwrap().held_ms <= most_ms, "{usage:?}");
    let used: serde_json::Value =
        serde_json::from_str(&broker.get("/v1/usage?person=ada").await).unwrap();
    let charged = used["items"][0]["run_ms"].as_u64();
    assert!(charged.is_some_and(|ms| ms <= most_ms), "{used}");
    let workers = broker.get("/v1/workers").await;
    assert!(!workers.contains(&u64::MAX.to_string()), "{workers}");
}
