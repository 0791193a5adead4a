//! The metrics for Prometheus, and the limits of requests.

use crate::{
    api::{class, hold, problem, proxy, run},
    harness::{Broker, FakeWorker, PATIENCE, Rules},
};
use baton_broker::{Person, Role};
use baton_protocol::{
    api::{self, Page},
    worker::{FromWorker, GpuLoad},
};
use std::{collections::BTreeSet, path::Path};

async fn metrics(broker: &Broker) -> String {
    broker.get("/metrics").await
}

fn value(text: &str, of: &str) -> String {
    let line = text.lines().find_map(|line| line.strip_prefix(of));
    let line = line.unwrap_or_else(|| panic!("{of} is not in {text}"));
    line.trim().to_owned()
}

#[tokio::test]
async fn the_queue_and_the_workers_are_counted() {
    let broker = class().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let (mut ada, mut bob) = (proxy(&broker, "ada").await, proxy(&broker, "bob").await);
    assert!(!metrics(&broker).await.contains("baton_gpu_memory"));
    let gpu = |index, utilisation_percent| GpuLoad {
        index,
        name: "Test GPU".to_owned(),
        utilisation_percent,
        memory_used_bytes: 10,
        memory_total_bytes: 80,
        sessions: Vec::new(),
    };
    worker
        .send(FromWorker::Load {
            memory_bytes: 1,
            memory_total_bytes: 2,
            jobs: Vec::new(),
            gpus: vec![gpu(0, Some(87)), gpu(1, None)],
        })
        .await;
    run(&mut worker, &mut ada).await;
    hold(&mut worker, &mut ada).await;
    let waiting = bob.submit().await;
    bob.position(waiting).await;
    let text = metrics(&broker).await;
    for (name, expected) in [
        ("baton_jobs{state=\"queued\"}", "1"),
        ("baton_workers{state=\"open\"}", "1"),
        ("baton_workers{state=\"disconnected\"}", "0"),
        ("baton_worker_slots", "1"),
        ("baton_desired_workers", "2"),
        ("baton_course_jobs{course=\"ml\",state=\"running\"}", "1"),
        ("baton_course_jobs{course=\"ml\",state=\"waiting\"}", "1"),
        ("baton_jobs_finished_total{outcome=\"ok\"}", "1"),
        ("baton_job_run_seconds_bucket{le=\"0.0025\"}", "0"),
        ("baton_job_run_seconds_bucket{le=\"0.01\"}", "1"),
        ("baton_job_run_seconds_bucket{le=\"14400\"}", "1"),
        ("baton_job_run_seconds_sum", "0.005"),
        ("baton_gpu_seconds_total", "0.005"),
        (
            "baton_gpu_utilisation_percent{worker=\"cpu-0\",gpu=\"0\"}",
            "87",
        ),
        (
            "baton_gpu_memory_used_bytes{worker=\"cpu-0\",gpu=\"1\"}",
            "10",
        ),
    ] {
        assert_eq!(value(&text, name), expected, "{name}");
    }
    assert!(!text.contains("baton_gpu_utilisation_percent{worker=\"cpu-0\",gpu=\"1\"}"));
    let workers: Page<api::Worker> =
        serde_json::from_str(&broker.get("/v1/workers").await).unwrap();
    let gpus = workers.items[0].gpus.iter();
    let busy: Vec<Option<u32>> = gpus.map(|gpu| gpu.utilisation_percent).collect();
    assert_eq!(busy, [Some(87), None]);
    for person in ["ada", "bob", "lesson"] {
        assert!(!text.contains(person), "{text}");
    }
    // Each name has exactly one help text, and each value has a help text.
    let help: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# HELP "))
        .collect();
    let names: BTreeSet<&str> = help
        .iter()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(names.len(), help.len());
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let of = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end));
        assert!(
            names.contains(name) || of.is_some_and(|name| names.contains(name)),
            "{line}"
        );
    }
}

#[tokio::test]
async fn only_admins_read_them() {
    let broker = class().await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for (token, status) in [
        ("", 401),
        ("ada-token", 403),
        ("tia-token", 403),
        ("root-token", 200),
        ("sesame", 200),
    ] {
        let request = client.get(format!("{}/metrics", broker.dial.address));
        let answer = request.bearer_auth(token).send().await.unwrap();
        assert_eq!(answer.status(), status, "{token}");
    }
}

#[tokio::test]
async fn the_board_asks_for_what_there_is() {
    let broker = class().await;
    let text = metrics(&broker).await;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/grafana/baton.json");
    let board: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let board = board.to_string();
    let named = board.split("baton_").skip(1).map(|rest| {
        let end = rest.find(|letter: char| !letter.is_ascii_lowercase() && letter != '_');
        format!("baton_{}", &rest[..end.unwrap()])
    });
    let named: BTreeSet<String> = named.collect();
    assert!(named.len() > 6, "{named:?}");
    for name in named {
        assert!(
            text.contains(&format!("\n{name}")),
            "{name} is not in {text}"
        );
    }
}

#[tokio::test]
async fn who_asks_too_often_or_too_much_is_told() {
    let courses = [("ml".to_owned(), Role::Student)];
    let person = |name: &str| {
        let token = format!("{name}-token");
        Person::new(name.to_owned(), &token, false, courses.clone().into()).entry()
    };
    let broker = Broker::start_with(Rules {
        token: Some("sesame"),
        tcp: true,
        people: Some(person("ada") + &person("bob")),
        requests_a_second: 1,
        ..Rules::default()
    })
    .await;
    let client = reqwest::Client::builder()
        .no_proxy()
        .timeout(PATIENCE)
        .build()
        .unwrap();
    let ask = async |token: &str, path: &str| {
        let request = client.get(format!("{}{path}", broker.dial.address));
        request.bearer_auth(token).send().await.unwrap()
    };
    let mut limited = None;
    for _ in 0..100 {
        let answer = ask("ada-token", "/v1/jobs").await;
        if answer.status() != 200 {
            limited = Some(answer);
            break;
        }
    }
    let limited = limited.expect("nothing was refused");
    assert_eq!(limited.headers()["retry-after"], "1");
    assert_eq!(problem(limited).await.status, 429);
    assert_eq!(ask("bob-token", "/v1/jobs").await.status(), 200);
    for _ in 0..20 {
        assert_eq!(ask("sesame", "/v1/jobs").await.status(), 200);
    }
    assert_ne!(
        value(&metrics(&broker).await, "baton_requests_limited_total"),
        "0"
    );

    let large = format!("{{\"reason\": \"{}\"}}", "x".repeat(70_000));
    let url = format!("{}/v1/workers/gpu-1/drain", broker.dial.address);
    let request = client.post(url).bearer_auth("sesame").body(large);
    assert_eq!(problem(request.send().await.unwrap()).await.status, 413);
}

#[tokio::test]
async fn watchers_get_short_answers() {
    let broker = Broker::start().await;
    assert_eq!(broker.get("/health/live").await, "live\n");
    assert_eq!(broker.get("/health/ready").await, "ready\n");
    assert_eq!(
        broker.get("/version").await,
        concat!(env!("CARGO_PKG_VERSION"), "\n")
    );
}

#[tokio::test]
async fn workers_without_a_name_of_their_own_are_told_apart() {
    let broker = class().await;
    let gpu = |memory_used_bytes| FromWorker::Load {
        memory_bytes: 1,
        memory_total_bytes: 2,
        jobs: Vec::new(),
        gpus: vec![GpuLoad {
            index: 0,
            name: "Test GPU".to_owned(),
            utilisation_percent: None,
            memory_used_bytes,
            memory_total_bytes: 80,
            sessions: Vec::new(),
        }],
    };
    let mut first = FakeWorker::new(&broker.dial).await;
    first.send(gpu(10)).await;
    let mut ada = proxy(&broker, "ada").await;
    let job = hold(&mut first, &mut ada).await;
    let mut second = FakeWorker::new(&broker.dial).await;
    second.send(gpu(20)).await;
    run(&mut second, &mut proxy(&broker, "bob").await).await;
    let text = metrics(&broker).await;
    for (worker, used) in [("cpu-0", "10"), ("cpu-1", "20")] {
        let gpu = format!("baton_gpu_memory_used_bytes{{worker=\"{worker}\",gpu=\"0\"}}");
        assert_eq!(value(&text, &gpu), used);
    }
    let shown = async || {
        let page = broker.get("/").await;
        page.matches(&format!("id=\"runs-{job}\"")).count()
    };
    assert_eq!(shown().await, 1);

    // The name of the first one, chosen by another. Their cells are not mixed up.
    let _named = FakeWorker::named(&broker.dial, "cpu-0", 1).await;
    assert_eq!(shown().await, 1);
    // One that comes back keeps its name.
    let _back = FakeWorker::back(&broker.dial, second.id, &[]).await;
    let workers: Page<api::Worker> =
        serde_json::from_str(&broker.get("/v1/workers").await).unwrap();
    let names: Vec<&str> = workers
        .items
        .iter()
        .map(|worker| worker.name.as_str())
        .collect();
    assert_eq!(names, ["cpu-0", "cpu-0", "cpu-1"]);
}
