//! Cells that need a certain machine: where they run, and what they see until then.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, KilledBroker, Rules, finished, started, submission, wait_for,
    wait_until,
};
use baton_humanize::whole_seconds;
use baton_protocol::{
    Cell, Finished, JobEvent, JobId, Machine, Outcome, Requirement,
    api::{Explanation, LessonOutlook, LessonWait, Page, WaitingRule, Worker},
    proxy::{FromProxy, WaitingReason},
    worker::{Device, DeviceKind},
};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

fn gpu(model: &str, gibibytes: u64) -> Vec<Device> {
    vec![Device {
        kind: DeviceKind::Cuda,
        model: model.to_owned(),
        memory_bytes: gibibytes << 30,
        compute_capability: "8.0".parse().ok(),
    }]
}

fn model(text: &str) -> Requirement {
    Requirement::Gpu {
        model: text.to_owned(),
    }
}

async fn worker(broker: &Broker, name: &str, devices: Vec<Device>) -> FakeWorker {
    FakeWorker::offering(&broker.dial, name, devices, Machine::default()).await
}

async fn submit(proxy: &mut FakeProxy, ask: impl FnOnce(&mut Cell)) -> JobId {
    let mut sent = submission(proxy.notebook);
    ask(&mut sent.cell);
    let job = sent.job;
    proxy.send(FromProxy::Submit(sent)).await;
    job
}

async fn runs_on(proxy: &mut FakeProxy, worker: &mut FakeWorker, job: JobId) {
    proxy.assigned(job).await;
    let (fencing, assigned) = worker.assignment().await;
    assert_eq!(assigned.job, job);
    worker
        .report(job, fencing, 1, vec![started(), finished(Outcome::Ok)])
        .await;
    proxy.events_after(job, 1).await;
}

#[tokio::test]
async fn a_cell_runs_where_its_gpu_is() {
    let broker = Broker::start().await;
    let mut small = worker(&broker, "small", gpu("NVIDIA T4", 16)).await;
    let mut large = worker(&broker, "large", gpu("NVIDIA A100-SXM4-80GB", 80)).await;
    let mut ada = FakeProxy::new(&broker.dial).await;
    let job = submit(&mut ada, |cell| cell.gpu = Some("a100".to_owned())).await;
    runs_on(&mut ada, &mut large, job).await;
    let job = submit(&mut ada, |cell| cell.gpu = Some("t4".to_owned())).await;
    runs_on(&mut ada, &mut small, job).await;
    let job = submit(&mut ada, |cell| cell.gpu_memory_bytes = Some(20 << 30)).await;
    runs_on(&mut ada, &mut large, job).await;
}

#[tokio::test]
async fn a_cell_that_no_worker_can_run_says_so_and_what_there_is() {
    let broker = Broker::start().await;
    let _small = worker(&broker, "small", gpu("NVIDIA T4", 16)).await;
    let mut ada = FakeProxy::new(&broker.dial).await;
    let job = submit(&mut ada, |cell| cell.gpu = Some("a100".to_owned())).await;
    let connected = vec!["NVIDIA T4 (16 GiB, 8.0)".to_owned()];
    let told = WaitingReason::NoWorkerFits {
        requirement: model("a100"),
        connected,
    };
    assert_eq!(ada.position(job).await, (1, told));
    let explained = broker.get(&format!("/v1/jobs/{job}/explanation")).await;
    let explained: Explanation = serde_json::from_str(&explained).unwrap();
    let waiting = explained.job.waiting.unwrap();
    assert_eq!(waiting.rule, WaitingRule::NoWorkerFits);
    let sentence = "it needs a worker with the GPU a100; available: NVIDIA T4 (16 GiB, 8.0)";
    assert_eq!(waiting.sentence, sentence);
    let mut large = worker(&broker, "large", gpu("NVIDIA A100", 40)).await;
    runs_on(&mut ada, &mut large, job).await;
}

#[tokio::test]
async fn a_cell_waits_for_the_busy_worker_that_it_needs() {
    let broker = Broker::start_with(Rules {
        courses: Some("jobs_per_person = 9".to_owned()),
        ..Rules::default()
    })
    .await;
    let mut large = worker(&broker, "large", gpu("NVIDIA A100", 40)).await;
    let _small = worker(&broker, "small", gpu("NVIDIA T4", 16)).await;
    let mut bob = FakeProxy::new(&broker.dial).await;
    let ahead = submit(&mut bob, |cell| cell.gpu = Some("a100".to_owned())).await;
    bob.assigned(ahead).await;
    let (fencing, _) = large.assignment().await;
    let mut eve = FakeProxy::new(&broker.dial).await;
    let behind = submit(&mut eve, |cell| cell.gpu = Some("a100".to_owned())).await;
    let told = WaitingReason::FittingWorkersBusy {
        requirement: model("a100"),
    };
    assert_eq!(eve.position(behind).await, (1, told));
    let end = vec![started(), finished(Outcome::Ok)];
    large.report(ahead, fencing, 1, end).await;
    runs_on(&mut eve, &mut large, behind).await;
}

#[tokio::test]
async fn what_a_cell_needs_outlives_a_killed_broker() {
    let folder = tempfile::tempdir().unwrap();
    let broker = KilledBroker::start(folder.path()).await;
    let mut ada = FakeProxy::new(&broker.dial).await;
    let job = submit(&mut ada, |cell| cell.gpu = Some("a100".to_owned())).await;
    assert_eq!(ada.position(job).await, (1, WaitingReason::NoWorker));
    let broker = broker.kill_and_restart().await;
    let mut ada = FakeProxy::of(&broker.dial, ada.notebook).await;
    ada.send(FromProxy::Resume { job, after: 0 }).await;
    assert_eq!(ada.position(job).await, (1, WaitingReason::NoWorker));
    let offering =
        |name, model| FakeWorker::offering(&broker.dial, name, gpu(model, 40), Machine::default());
    let _small = offering("small", "NVIDIA T4").await;
    let (_, reason) = ada.position(job).await;
    assert!(
        matches!(reason, WaitingReason::NoWorkerFits { .. }),
        "{reason:?}"
    );
    let mut large = offering("large", "NVIDIA A100").await;
    runs_on(&mut ada, &mut large, job).await;
}

#[tokio::test]
async fn a_gpu_is_refused_where_there_are_processors_only() {
    let broker = Broker::start().await;
    let mut processor = FakeWorker::new(&broker.dial).await;
    let mut ada = FakeProxy::new(&broker.dial).await;
    let job = submit(&mut ada, |cell| cell.gpu = Some("a100".to_owned())).await;
    let end = ada.events_after(job, 0).await.pop();
    let Some(JobEvent::Finished(Finished { outcome, error, .. })) = end else {
        panic!("{end:?}");
    };
    assert_eq!(outcome, Outcome::Refused);
    let error = error.unwrap();
    assert_eq!(
        error.value,
        "This cell asks for the GPU a100, but the connected workers have no GPU. Your variables are as they were before the cell"
    );
    // Without a GPU, a requirement of GPU memory is ignored.
    let job = submit(&mut ada, |cell| cell.gpu_memory_bytes = Some(20 << 30)).await;
    runs_on(&mut ada, &mut processor, job).await;
}

#[tokio::test]
async fn a_cell_with_a_longer_limit_runs_on_a_worker_that_stays() {
    let broker = Broker::start().await;
    let begun = Instant::now();
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let stays_for = Duration::from_secs(600);
    let machine = Machine {
        leaves_at_ms: Some((since + stays_for).as_millis() as i64),
        ..Machine::default()
    };
    let mut leaves =
        FakeWorker::offering(&broker.dial, "leaves", gpu("NVIDIA T4", 16), machine).await;
    let mut ada = FakeProxy::new(&broker.dial).await;
    let long = submit(&mut ada, |cell| cell.timeout_ms = Some(3_600_000)).await;
    let (_, reason) = ada.position(long).await;
    let WaitingReason::NoWorkerFits {
        requirement,
        connected,
    } = reason
    else {
        panic!("{reason:?}");
    };
    assert_eq!(requirement, Requirement::Time { ms: 3_600_000 });
    let most_passed = begun.elapsed().as_secs() + 1;
    let mut remaining =
        (0..=most_passed).map(|passed| stays_for.saturating_sub(Duration::from_secs(passed)));
    let says = |time| connected == [format!("leaves for another {}", whole_seconds(time))];
    assert!(remaining.any(says), "{connected:?}");
    let mut stays = worker(&broker, "stays", gpu("NVIDIA T4", 16)).await;
    runs_on(&mut ada, &mut stays, long).await;
    drop(stays);
    wait_until("the loss of a worker", async || {
        !broker.get("/v1/workers").await.contains("stays")
    })
    .await;
    let short = submit(&mut ada, |cell| cell.timeout_ms = Some(60_000)).await;
    runs_on(&mut ada, &mut leaves, short).await;
}

#[tokio::test]
async fn a_course_needs_what_its_settings_say() {
    let broker = Broker::start_with(Rules {
        courses: Some(
            "[course.vision]\nneeds = { gpu_memory = \"30G\", labels = [\"room-3\"] }\n".to_owned(),
        ),
        ..Rules::default()
    })
    .await;
    let labelled = |labels: &[&str]| Machine {
        driver: Some("570.86.15".to_owned()),
        memory_bytes: 64 << 30,
        labels: labels.iter().map(|label| (*label).to_owned()).collect(),
        ..Machine::default()
    };
    let _elsewhere = FakeWorker::offering(
        &broker.dial,
        "elsewhere",
        gpu("NVIDIA A100", 40),
        labelled(&["room-4"]),
    )
    .await;
    let mut ada = FakeProxy::in_course(&broker.dial, "vision").await;
    let job = submit(&mut ada, |_| {}).await;
    let told = WaitingReason::NoWorkerFits {
        requirement: Requirement::Label {
            label: "room-3".to_owned(),
        },
        connected: vec!["elsewhere with room-4".to_owned()],
    };
    assert_eq!(ada.position(job).await, (1, told));
    let machine = labelled(&["a100", "room-3"]);
    let devices = gpu("NVIDIA A100", 40);
    let mut here = FakeWorker::offering(&broker.dial, "here", devices, machine.clone()).await;
    runs_on(&mut ada, &mut here, job).await;
    let workers: Page<Worker> = serde_json::from_str(&broker.get("/v1/workers").await).unwrap();
    let here = workers.items.iter().find(|worker| worker.name == "here");
    assert_eq!(here.unwrap().machine, machine);
}

#[tokio::test]
async fn the_outlook_of_a_lesson_counts_the_workers_that_can_run_its_cells() {
    let courses = "time_zone = \"UTC\"\n[course.ml]\nneeds = { gpu = \"a100\" }\n\
                   [[course.ml.lesson]]\nwhen = \"Mon 17:00-18:30\"\npeople = 4\n";
    let broker = Broker::start_with(Rules {
        courses: Some(courses.to_owned()),
        ..Rules::default()
    })
    .await;
    let _small = worker(&broker, "small", gpu("NVIDIA T4", 16)).await;
    let slots = async || {
        let page = broker.get("/v1/timetable").await;
        let page: Page<LessonOutlook> = serde_json::from_str(&page).unwrap();
        (page.items[0].slots_now, page.items[0].most_slots)
    };
    assert_eq!(slots().await, (0, 0));
    let _large = worker(&broker, "large", gpu("NVIDIA A100", 40)).await;
    assert_eq!(slots().await, (1, 1));
}

#[tokio::test]
async fn lessons_of_a_course_at_the_same_time_share_its_workers() {
    let lessons = |people: [u32; 2]| {
        let lesson = |people| {
            format!("[[course.ml.lesson]]\nwhen = \"Mon 17:00-18:30\"\npeople = {people}\n")
        };
        "time_zone = \"UTC\"\n".to_owned() + &people.map(lesson).concat()
    };
    for people in [[3, 3], [4, 2]] {
        let broker = Broker::start_with(Rules {
            courses: Some(lessons(people)),
            ..Rules::default()
        })
        .await;
        let _worker = worker(&broker, "gpu", gpu("NVIDIA T4", 16)).await;
        let page = broker.get("/v1/timetable").await;
        let page: Page<LessonOutlook> = serde_json::from_str(&page).unwrap();
        let [one, other] = &page.items[..] else {
            panic!("expected two lessons: {page:?}");
        };
        assert_eq!([one.people, other.people], people);
        assert_eq!(
            [one.other_people, other.other_people],
            [people[1], people[0]]
        );
        assert_eq!(one.enough_slots, other.enough_slots);
    }
}

/// The prediction of a lesson is for the workers that its pool will have started.
#[tokio::test]
async fn the_outlook_of_a_lesson_counts_what_its_pool_starts_for_it() {
    let courses = "time_zone = \"UTC\"\n[course.ml]\nneeds = { gpu = \"a100\" }\n\
                   [[course.ml.lesson]]\nwhen = \"Mon 17:00-18:30\"\npeople = 40\n";
    let outlook = async |pool| {
        let broker = Broker::start_with(Rules {
            courses: Some(courses.to_owned()),
            pool: Some(pool),
            ..Rules::default()
        })
        .await;
        wait_for("a look at the pools", async || {
            let page = broker.get("/v1/timetable").await;
            let page: Page<LessonOutlook> = serde_json::from_str(&page).unwrap();
            let mut outlooks = page.items.into_iter();
            outlooks.find(|outlook| outlook.most_slots > 0)
        })
        .await
    };
    let usual = outlook("max = 40, offers = { gpu = \"a100\" }").await;
    assert_eq!(usual.ready_slots, usual.enough_slots);
    assert!(usual.ready_slots > 1 && usual.ready_slots < 40, "{usual:?}");
    // A pool that may take longer to start cells starts fewer workers.
    let slow = "max = 40, target_wait = \"10m\", offers = { gpu = \"a100\" }";
    let slow = outlook(slow).await;
    assert!(slow.ready_slots < usual.ready_slots, "{slow:?}");
    let ready = |wait: &&LessonWait| wait.slots == slow.ready_slots;
    let wait = slow.waits.iter().find(ready).unwrap();
    assert!(wait.wait_99_ms > 60_000, "{slow:?}");
    let full = outlook("max = 2, offers = { gpu = \"a100\" }").await;
    assert_eq!((full.ready_slots, full.most_slots), (2, 2));
}
