//! Requests of programs to `/v1`: lists, explanations, errors.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, PATIENCE, Rules, finished, started, submission, wait_for,
};
use baton_broker::{Person, Role};
use baton_protocol::{
    GroupId, JobId, Outcome, Priority,
    api::{
        Ahead, AheadBecause, Course, Explanation, Job, JobState, Page, Pool, Problem, Usage,
        WaitingRule, Worker, WorkerState,
    },
    proxy::FromProxy,
};
use serde::de::DeserializeOwned;
use std::{collections::BTreeMap, fs, path::Path};

const COURSES: &str = r#"
[course.ml]
time_limit = "5m"
weight = 2
budget = { gpu_time = "1h", reset = "04:00" }

[course.vision]
paused = "Back on Monday"

[course.art]
"#;

fn person(name: &str, admin: bool, courses: &[(&str, Role)]) -> String {
    let courses = courses
        .iter()
        .map(|(course, role)| ((*course).to_owned(), *role));
    let token = format!("{name}-token");
    Person::new(name.to_owned(), &token, admin, courses.collect()).entry()
}

pub(crate) async fn class() -> Broker {
    let people = [
        person("ada", false, &[("ml", Role::Student)]),
        person("bob", false, &[("ml", Role::Student)]),
        person("cid", false, &[("vision", Role::Student)]),
        person("tia", false, &[("ml", Role::Staff)]),
        person("root", true, &[]),
    ];
    Broker::start_with(Rules {
        token: Some("sesame"),
        tcp: true,
        people: Some(people.concat()),
        courses: Some(COURSES.to_owned()),
        ..Rules::default()
    })
    .await
}

pub(crate) async fn answer(broker: &Broker, token: &str, path: &str) -> reqwest::Response {
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE);
    let request = client
        .build()
        .unwrap()
        .get(format!("{}{path}", broker.dial.address));
    request.bearer_auth(token).send().await.unwrap()
}

pub(crate) async fn read<Answer: DeserializeOwned>(response: reqwest::Response) -> Answer {
    let text = response.text().await.unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

pub(crate) async fn get<Answer: DeserializeOwned>(
    broker: &Broker,
    token: &str,
    path: &str,
) -> Answer {
    let response = answer(broker, token, path).await;
    assert_eq!(response.status(), 200, "{path}");
    read(response).await
}

/// Waits until a pool is in some state.
pub(crate) async fn pool_when(
    broker: &Broker,
    name: &str,
    is_reached: impl Fn(&Pool) -> bool,
) -> Pool {
    wait_for("a state of the pool", async || {
        let page: Page<Pool> = get(broker, "sesame", "/v1/pools").await;
        let mut pools = page.items.into_iter();
        pools.find(|pool| pool.pool == name && is_reached(pool))
    })
    .await
}

pub(crate) async fn problem(response: reqwest::Response) -> Problem {
    let status = response.status().as_u16();
    let kind = response.headers()["content-type"].to_str().unwrap();
    assert_eq!(kind, "application/problem+json");
    let problem: Problem = read(response).await;
    assert_eq!(problem.status, status);
    assert!(!problem.detail.is_empty() && !problem.title.is_empty());
    problem
}

/// All pages of a list.
pub(crate) async fn every<Item: DeserializeOwned>(
    broker: &Broker,
    token: &str,
    path: &str,
) -> Vec<Item> {
    let mut items = Vec::new();
    let mut after = String::new();
    loop {
        let mut page: Page<Item> = get(broker, token, &format!("{path}{after}")).await;
        items.append(&mut page.items);
        let Some(next) = page.next else { return items };
        let mut query = reqwest::Url::parse("http://x").unwrap();
        query.query_pairs_mut().append_pair("after", &next);
        after = format!("&{}", query.query().unwrap());
    }
}

pub(crate) async fn proxy(broker: &Broker, person: &str) -> FakeProxy {
    FakeProxy::new(&broker.dial_as(&format!("{person}-token"))).await
}

pub(crate) async fn run(worker: &mut FakeWorker, proxy: &mut FakeProxy) -> JobId {
    let job = proxy.submit().await;
    assert_eq!(worker.run_to_end().await, job);
    proxy.events_after(job, 0).await;
    job
}

/// Starts a job. It is running when this returns.
pub(crate) async fn hold(worker: &mut FakeWorker, proxy: &mut FakeProxy) -> JobId {
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker.report(job, fencing, 1, vec![started()]).await;
    job
}

#[tokio::test]
async fn the_document_is_the_one_that_is_published() {
    let broker = class().await;
    let found = answer(&broker, "ada-token", "/v1/openapi.json").await;
    let found: serde_json::Value = read(found).await;
    let found = serde_json::to_string_pretty(&found).unwrap() + "\n";
    for reference in found.split("\"#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(found.contains(&format!("\"{name}\": {{")), "{name}");
    }
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/openapi.json");
    if std::env::var_os("BATON_WRITE_GOLDEN").is_some() {
        fs::write(&file, &found).unwrap();
    }
    assert!(
        fs::read_to_string(&file).unwrap() == found,
        "docs/reference/openapi.json is another one: BATON_WRITE_GOLDEN=1 writes it, and the difference is to be read"
    );
}

#[tokio::test]
async fn nothing_opens_without_a_token() {
    let broker = class().await;
    let document: serde_json::Value = get(&broker, "sesame", "/v1/openapi.json").await;
    let paths = document["paths"].as_object().unwrap().keys();
    let paths: Vec<&str> = paths.map(String::as_str).collect();
    assert!(paths.contains(&"/v1/jobs/{job}/explanation"));
    for path in paths.into_iter().chain(["/v1/openapi.json", "/v1/nothing"]) {
        for token in ["", "ada-toker", "ada-token ada", "sesam", "nobody-token"] {
            let refused = answer(&broker, token, path).await;
            assert_eq!(refused.headers()["www-authenticate"], "Bearer");
            let problem = problem(refused).await;
            assert_eq!(problem.status, 401, "{token} {path}");
            let hint = problem.hint.unwrap();
            assert!(hint.contains("course staff") && hint.contains("BATON_TOKEN"));
        }
    }
}

#[tokio::test]
async fn refusals_say_what_to_do() {
    let broker = class().await;
    let mut cid = proxy(&broker, "cid").await;
    let job = cid.submit().await;
    cid.position(job).await;
    for (path, status, detail) in [
        ("/v1/nothing", 404, "nothing at this address"),
        ("/v1/jobs/7f3a", 404, "no cell 7f3a"),
        (&format!("/v1/jobs/{job}"), 404, "that you can see"),
        (
            &format!("/v1/jobs/{job}/explanation"),
            404,
            "that you can see",
        ),
        ("/v1/jobs?colour=red", 400, "colour"),
        ("/v1/jobs?state=asleep", 400, "asleep"),
        ("/v1/jobs?limit=0", 400, "from 1 to 500"),
        ("/v1/jobs?limit=501", 400, "from 1 to 500"),
        ("/v1/jobs?after=yesterday", 400, "`after` must be"),
        ("/v1/jobs?ends_with=xyz", 400, "hexadecimal"),
        ("/v1/jobs?group=xyz", 400, "hexadecimal"),
        ("/v1/usage?from=monday", 400, "not a day"),
        ("/v1/usage?after=monday", 400, "`after` must be"),
    ] {
        let problem = problem(answer(&broker, "ada-token", path).await).await;
        assert_eq!(problem.status, status, "{path}");
        assert!(problem.detail.contains(detail), "{path}: {problem:?}");
        assert!(problem.hint.is_some(), "{path}: {problem:?}");
        assert!(problem.kind.starts_with("urn:baton:"), "{problem:?}");
    }
    let url = format!("{}/v1/jobs", broker.dial.address);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let posted = client.post(url).bearer_auth("ada-token").send().await;
    assert_eq!(problem(posted.unwrap()).await.status, 405);
}

#[tokio::test]
async fn jobs_of_a_group_are_found_by_its_last_digits() {
    let broker = class().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut bob = proxy(&broker, "bob").await;
    run(&mut worker, &mut bob).await;
    let group = GroupId::random();
    let mut jobs = Vec::new();
    for _ in 0..2 {
        let job = JobId::random();
        bob.submit_in(job, group).await;
        assert_eq!(worker.run_to_end().await, job);
        bob.events_after(job, 0).await;
        jobs.insert(0, job);
    }
    for digits in [group.to_string(), group.to_string()[24..].to_owned()] {
        let path = format!("/v1/jobs?group={digits}&limit=1");
        let found: Vec<Job> = every(&broker, "bob-token", &path).await;
        assert!(found.iter().all(|job| job.group == Some(group)));
        let found: Vec<JobId> = found.iter().map(|job| job.job).collect();
        assert_eq!(found, jobs);
        let others: Vec<Job> = every(&broker, "ada-token", &path).await;
        assert_eq!(others, []);
    }
    let page = answer(&broker, "bob-token", &format!("/job?id={}", jobs[0])).await;
    let page = page.text().await.unwrap();
    let shown = format!("<dt>Group</dt><dd><code>{group}</code></dd>");
    assert!(page.contains(&shown), "{page}");
}

#[tokio::test]
async fn jobs_come_in_parts_and_as_the_role_allows() {
    let broker = class().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let (mut ada, mut bob) = (proxy(&broker, "ada").await, proxy(&broker, "bob").await);
    let mut jobs = Vec::new();
    for _ in 0..2 {
        jobs.push(run(&mut worker, &mut ada).await);
        jobs.push(run(&mut worker, &mut bob).await);
    }
    jobs.push(hold(&mut worker, &mut ada).await);
    jobs.reverse();
    let listed = async |token: &str, query: &str| {
        let jobs: Vec<Job> = every(&broker, token, &format!("/v1/jobs?{query}")).await;
        jobs.into_iter().map(|job| job.job).collect::<Vec<_>>()
    };
    for token in ["sesame", "root-token", "tia-token"] {
        for size in 1..6 {
            assert_eq!(listed(token, &format!("limit={size}")).await, jobs);
        }
    }
    assert_eq!(
        listed("ada-token", "limit=2").await,
        [jobs[0], jobs[2], jobs[4]]
    );
    assert_eq!(listed("ada-token", "person=bob").await, Vec::<JobId>::new());
    assert_eq!(listed("cid-token", "").await, Vec::<JobId>::new());
    assert_eq!(
        listed("tia-token", "person=bob&course=ml&state=finished").await,
        [jobs[1], jobs[3]]
    );
    assert_eq!(listed("tia-token", "state=unfinished").await, [jobs[0]]);
    let end = &jobs[3].to_string()[24..];
    assert_eq!(
        listed("tia-token", &format!("ends_with={end}")).await,
        [jobs[3]]
    );

    let running: Job = get(&broker, "ada-token", &format!("/v1/jobs/{}", jobs[0])).await;
    assert_eq!(running.state, JobState::Started);
    assert_eq!(running.worker.as_deref(), Some("cpu-0"));
    assert_eq!(running.timeout_ms, Some(300_000));
    let done: Job = get(&broker, "tia-token", &format!("/v1/jobs/{}", jobs[1])).await;
    assert_eq!(
        (done.person.as_str(), done.course.as_deref(), done.outcome),
        ("bob", Some("ml"), Some(Outcome::Ok))
    );
    assert_eq!((done.run_ms, done.peak_memory_bytes), (Some(5), Some(6)));
    let days: Vec<Usage> = every(&broker, "tia-token", "/v1/usage?limit=1").await;
    let mut used: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for row in &days {
        let (run_ms, runs) = used.entry(&row.person).or_default();
        *run_ms += row.run_ms;
        *runs += row.runs;
    }
    assert_eq!(used, BTreeMap::from([("ada", (10, 2)), ("bob", (10, 2))]));
    let own: Vec<Usage> = every(&broker, "ada-token", "/v1/usage?limit=500").await;
    assert!(own.iter().all(|row| row.person == "ada") && !own.is_empty());
    let past: Vec<Usage> = every(&broker, "tia-token", "/v1/usage?to=2001-01-01").await;
    assert_eq!(past, []);
}

#[tokio::test]
async fn an_explanation_says_who_is_ahead_and_why() {
    let broker = class().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let (mut ada, mut bob) = (proxy(&broker, "ada").await, proxy(&broker, "bob").await);
    let mut other = proxy(&broker, "ada").await;
    let running = hold(&mut worker, &mut ada).await;
    let mut last = submission(other.notebook);
    last.priority = Priority::Low;
    let last_job = last.job;
    other.send(FromProxy::Submit(last)).await;
    other.position(last_job).await;
    let of_bob = bob.submit().await;
    bob.position(of_bob).await;

    let explain = async |job: JobId| -> Explanation {
        get(&broker, "tia-token", &format!("/v1/jobs/{job}/explanation")).await
    };
    let running = explain(running).await;
    assert!(
        running
            .sentence
            .starts_with("It has been running on cpu-0 for ")
            && running.sentence.ends_with(" of at most 5 min"),
        "{}",
        running.sentence
    );
    assert_eq!(running.queue, None);
    let first = explain(of_bob).await;
    let queue = first.queue.unwrap();
    assert_eq!((queue.ahead, queue.running, queue.slots), (vec![], 1, 1));
    assert_eq!(queue.precedence.weight, 2.0);
    assert_eq!(queue.budget.unwrap().of_ms, 3_600_000);
    assert_eq!(first.job.waiting.unwrap().rule, WaitingRule::JobsAhead);
    let last = explain(last_job).await;
    let waiting = last.job.waiting.unwrap();
    assert_eq!(
        (waiting.position, waiting.rule),
        (2, WaitingRule::OwnJobRuns)
    );
    assert!(last.sentence.contains(&waiting.sentence));
    let because = AheadBecause::LowPriority;
    assert_eq!(last.queue.unwrap().ahead, [Ahead { because, jobs: 1 }]);
}

#[tokio::test]
async fn workers_and_courses_are_listed() {
    let broker = class().await;
    let mut worker = FakeWorker::with_slots(&broker.dial, 2).await;
    let mut ada = proxy(&broker, "ada").await;
    let job = ada.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker.report(job, fencing, 1, vec![started()]).await;
    let workers: Page<Worker> = get(&broker, "ada-token", "/v1/workers").await;
    let [found] = workers.items.as_slice() else {
        panic!("expected one worker, got {workers:?}");
    };
    assert_eq!(
        (found.name.as_str(), found.state, found.jobs, found.slots),
        ("cpu-0", WorkerState::Connected, 1, 2)
    );
    let names = async |token: &str| {
        let courses: Page<Course> = get(&broker, token, "/v1/courses").await;
        let names = courses.items.iter().map(|course| course.course.clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names("ada-token").await, ["ml"]);
    assert_eq!(names("root-token").await, ["art", "ml", "vision"]);
    worker
        .report(job, fencing, 2, vec![finished(Outcome::Ok)])
        .await;
    let courses: Page<Course> = get(&broker, "ada-token", "/v1/courses").await;
    let budget = courses.items[0].budget.unwrap();
    assert_eq!(budget.left_ms, 3_600_000 - 5);
}
