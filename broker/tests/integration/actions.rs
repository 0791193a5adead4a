//! Actions through `/v1`: who may do what, its effect, who is informed, and what is recorded.

use crate::{
    api::{class, every, get, hold, problem, proxy, read},
    harness::{Broker, FakeProxy, FakeWorker, PATIENCE, Rules, finished, state},
};
use baton_protocol::{
    Finished, JobEvent, JobId, Outcome, RemoteError,
    api::{Act, Action, Course, CourseChange, Deadline, Explanation, Job, Worker, WorkerState},
    proxy::{FromProxy, ToProxy, WaitingReason},
    worker::ToWorker,
};
use serde_json::{Value, json};

pub(crate) async fn post(
    broker: &Broker,
    token: &str,
    path: &str,
    body: Value,
) -> reqwest::Response {
    let client = reqwest::Client::builder().no_proxy().timeout(PATIENCE);
    let url = format!("{}{path}", broker.dial.address);
    let request = client.build().unwrap().post(url).bearer_auth(token);
    request.body(body.to_string()).send().await.unwrap()
}

pub(crate) async fn done(broker: &Broker, token: &str, path: &str, body: Value) -> Value {
    let response = post(broker, token, path, body).await;
    let status = response.status();
    let answer: Value = read(response).await;
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

/// The next reason and message that the owner of a waiting job receives.
async fn told(proxy: &mut FakeProxy, of: JobId) -> (WaitingReason, Option<String>) {
    match proxy.next().await {
        ToProxy::QueuePosition {
            job,
            waiting,
            message,
            ..
        } if job == of => (waiting, message),
        other => panic!("expected a place of {of}, got {other:?}"),
    }
}

async fn waiting(proxy: &mut FakeProxy) -> JobId {
    let job = proxy.submit().await;
    proxy.position(job).await;
    job
}

#[tokio::test]
async fn nobody_does_what_is_not_theirs() {
    let broker = class().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut bob = proxy(&broker, "bob").await;
    let mut ada = proxy(&broker, "ada").await;
    let running = hold(&mut worker, &mut bob).await;
    let mut ada_waits = proxy(&broker, "ada").await;
    let job = waiting(&mut ada).await;
    let other = waiting(&mut ada_waits).await;
    let why = || json!({"reason": "because"});
    let of = |action: &str| format!("/v1/jobs/{job}/{action}");
    let actions = [
        (of("cancel"), why()),
        (of("hold"), why()),
        (of("release"), json!({})),
        (of("front"), why()),
        ("/v1/workers/cpu-0/drain".to_owned(), why()),
        ("/v1/workers/cpu-0/resume".to_owned(), json!({})),
        ("/v1/courses/ml".to_owned(), json!({"weight": 9})),
    ];
    // In the order of the actions. 0: permitted, and tested elsewhere.
    let attempts: [(&str, [u16; 7]); 6] = [
        ("", [401; 7]),
        ("ada-toker", [401; 7]),
        ("ada-token", [0, 403, 403, 403, 403, 403, 403]),
        ("bob-token", [404, 404, 404, 404, 403, 403, 403]),
        ("cid-token", [404, 404, 404, 404, 403, 403, 404]),
        ("tia-token", [0, 0, 0, 0, 403, 403, 0]),
    ];
    for (token, statuses) in attempts {
        for ((path, body), status) in actions.iter().zip(statuses) {
            if status == 0 {
                continue;
            }
            let refused = problem(post(&broker, token, path, body.clone()).await).await;
            assert_eq!(refused.status, status, "{token} {path}: {refused:?}");
            assert!(refused.hint.is_some(), "{token} {path}: {refused:?}");
        }
    }
    // Another site's page cannot act, even with a valid token.
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let foreign = client
        .post(format!("{}{}", broker.dial.address, actions[0].0))
        .bearer_auth("ada-token")
        .header("origin", "http://elsewhere.example")
        .send()
        .await
        .unwrap();
    assert_eq!(foreign.status(), 403);
    let recorded: Vec<Act> = every(&broker, "root-token", "/v1/audit?limit=3").await;
    assert_eq!(recorded, []);
    let jobs: Vec<Job> = every(&broker, "sesame", "/v1/jobs?state=unfinished").await;
    let jobs: Vec<JobId> = jobs.into_iter().map(|job| job.job).collect();
    assert_eq!(jobs, [other, job, running]);
}

#[tokio::test]
async fn what_cannot_be_done_is_said() {
    let broker = class().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut ada = proxy(&broker, "ada").await;
    let over = ada.submit().await;
    assert_eq!(worker.run_to_end().await, over);
    ada.events_after(over, 0).await;
    ada.send(FromProxy::Applied { job: over }).await;
    let running = hold(&mut worker, &mut ada).await;
    let long = "x".repeat(501);
    let front = |job: JobId| format!("/v1/jobs/{job}/front");
    for (path, body, status, detail) in [
        (
            front(over),
            json!({"reason": "why"}),
            409,
            "The cell has ended",
        ),
        (
            front(running),
            json!({"reason": "why"}),
            409,
            "no longer waiting",
        ),
        (
            format!("/v1/jobs/{over}/cancel"),
            json!({}),
            409,
            "The cell has ended",
        ),
        (
            front(JobId::random()),
            json!({"reason": "why"}),
            404,
            "no cell",
        ),
        (front(running), json!({}), 400, "reason is missing"),
        (
            front(running),
            json!({"reason": " "}),
            400,
            "reason is missing",
        ),
        (front(running), json!({"reason": "a\nb"}), 400, "one line"),
        (
            front(running),
            json!({"reason": long}),
            400,
            "longer than 500",
        ),
        (front(running), json!({"raeson": "why"}), 400, "raeson"),
        (
            "/v1/workers/gpu-9/drain".to_owned(),
            json!({"reason": "why"}),
            404,
            "gpu-9",
        ),
        (
            "/v1/courses/nil".to_owned(),
            json!({"weight": 2}),
            404,
            "nil",
        ),
        (
            "/v1/courses/ml".to_owned(),
            json!({"weight": 0}),
            400,
            "above 0",
        ),
        (
            "/v1/courses/ml".to_owned(),
            json!({"timeout_ms": 0}),
            400,
            "null for no limit",
        ),
        (
            "/v1/courses/ml".to_owned(),
            json!({"colour": "red"}),
            400,
            "colour",
        ),
        (
            "/v1/courses/ml".to_owned(),
            json!({"deadlines": [{"from_ms": 5, "until_ms": 4, "weight": 2}]}),
            400,
            "before they end",
        ),
        (
            "/v1/courses/ml".to_owned(),
            json!("weight"),
            400,
            "expected struct",
        ),
    ] {
        let refused = problem(post(&broker, "root-token", &path, body).await).await;
        assert_eq!(refused.status, status, "{path}: {refused:?}");
        assert!(refused.detail.contains(detail), "{path}: {refused:?}");
    }
}

#[tokio::test]
async fn a_job_is_held_back_and_let_go() {
    let broker = class().await;
    let mut ada = proxy(&broker, "ada").await;
    let job = waiting(&mut ada).await;
    let path = format!("/v1/jobs/{job}/hold");
    let held = done(
        &broker,
        "tia-token",
        &path,
        json!({"reason": "Come to room 5"}),
    )
    .await;
    assert_eq!(held["waiting"]["rule"], "held");
    let why = "Come to room 5".to_owned();
    assert_eq!(told(&mut ada, job).await.0, WaitingReason::Held { why });
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut bob = proxy(&broker, "bob").await;
    let first = bob.submit().await;
    assert_eq!(worker.run_to_end().await, first);
    done(
        &broker,
        "tia-token",
        &format!("/v1/jobs/{job}/release"),
        json!({}),
    )
    .await;
    assert_eq!(worker.run_to_end().await, job);
}

#[tokio::test]
async fn a_job_is_moved_to_the_front() {
    let broker = class().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let (mut ada, mut bob) = (proxy(&broker, "ada").await, proxy(&broker, "bob").await);
    let mut cid = proxy(&broker, "root").await;
    let running = hold(&mut worker, &mut cid).await;
    let first = waiting(&mut ada).await;
    let second = waiting(&mut bob).await;
    let path = format!("/v1/jobs/{second}/front");
    let moved = done(
        &broker,
        "tia-token",
        &path,
        json!({"reason": "lost its worker"}),
    )
    .await;
    assert_eq!(moved["waiting"]["position"], 1);
    assert_eq!(told(&mut ada, first).await.0, WaitingReason::BehindMoved {});
    let path = format!("/v1/jobs/{first}/explanation");
    let explanation: Explanation = get(&broker, "ada-token", &path).await;
    let ahead = serde_json::to_value(explanation.queue.unwrap().ahead).unwrap();
    assert_eq!(ahead, json!([{"because": "moved_to_front", "jobs": 1}]));
    worker
        .report(running, 1, 2, vec![finished(Outcome::Ok)])
        .await;
    assert_eq!(worker.run_to_end().await, second);
    assert_eq!(worker.run_to_end().await, first);
}

fn end(events: Vec<JobEvent>) -> (Outcome, Option<RemoteError>) {
    match events.into_iter().last() {
        Some(JobEvent::Finished(Finished { outcome, error, .. })) => (outcome, error),
        other => panic!("expected an end, got {other:?}"),
    }
}

#[tokio::test]
async fn a_waiting_job_is_stopped_and_its_owner_reads_by_whom() {
    let broker = class().await;
    let (mut ada, mut bob) = (proxy(&broker, "ada").await, proxy(&broker, "bob").await);
    let (by_staff, own) = (waiting(&mut ada).await, waiting(&mut bob).await);
    let path = format!("/v1/jobs/{by_staff}/cancel");
    done(&broker, "tia-token", &path, json!({"reason": "it loops"})).await;
    let (outcome, error) = end(ada.events_after(by_staff, 0).await);
    let error = error.unwrap();
    assert_eq!(
        (outcome, error.value.as_str()),
        (
            Outcome::Cancelled,
            "tia stopped this cell (it loops) before it ran. Your variables are as they were before the cell"
        )
    );
    let path = format!("/v1/jobs/{by_staff}/explanation");
    let explanation: Explanation = get(&broker, "ada-token", &path).await;
    assert_eq!(
        explanation.sentence,
        "It has ended: cancelled. tia stopped this cell (it loops)"
    );
    let page = broker
        .get_as("ada-token", &format!("/job?id={by_staff}"))
        .await;
    assert!(page.contains("tia stopped this cell (it loops)"));
    let stopped = done(
        &broker,
        "bob-token",
        &format!("/v1/jobs/{own}/cancel"),
        json!({}),
    )
    .await;
    assert_eq!(stopped["outcome"], "cancelled");
    // Positions may have changed before the end arrived.
    while !matches!(bob.next().await, ToProxy::Events { .. }) {}
}

/// A job of Ada that runs, and that staff have stopped.
async fn stopped_by_staff(broker: &Broker) -> (FakeWorker, FakeProxy, JobId) {
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut ada = proxy(broker, "ada").await;
    let job = hold(&mut worker, &mut ada).await;
    let path = format!("/v1/jobs/{job}/cancel");
    done(broker, "tia-token", &path, json!({"reason": "it loops"})).await;
    assert_eq!(worker.next().await, ToWorker::Cancel { job });
    (worker, ada, job)
}

#[tokio::test]
async fn a_running_job_is_interrupted() {
    let broker = class().await;
    let (mut worker, mut ada, job) = stopped_by_staff(&broker).await;
    let interrupt = RemoteError {
        name: "KeyboardInterrupt".to_owned(),
        value: String::new(),
        traceback: vec!["KeyboardInterrupt".to_owned()],
        hint: None,
    };
    let over = JobEvent::Finished(Finished {
        state: Some(state("changes")),
        ..Finished::without_state(Outcome::Cancelled, Some(interrupt))
    });
    worker.report(job, 1, 2, vec![over]).await;
    let (outcome, error) = end(ada.events_after(job, 0).await);
    assert_eq!(outcome, Outcome::Cancelled);
    let error = error.unwrap();
    assert_eq!(error.value, "tia stopped this cell (it loops)");
    assert_eq!(
        error.traceback[1],
        "tia stopped this cell (it loops). Its changes so far are in your notebook"
    );
}

#[tokio::test]
async fn the_owner_of_a_job_without_result_reads_who_stopped_it() {
    let broker = class().await;
    let (mut worker, mut ada, job) = stopped_by_staff(&broker).await;
    let over = JobEvent::Finished(Finished::without_state(Outcome::Cancelled, None));
    worker.report(job, 1, 2, vec![over]).await;
    let (outcome, error) = end(ada.events_after(job, 0).await);
    assert_eq!(outcome, Outcome::Cancelled);
    assert_eq!(
        error.unwrap().value,
        "tia stopped this cell (it loops) before its changes could be returned. Your variables are as they were before the cell"
    );
}

#[tokio::test]
async fn a_drained_worker_ends_what_it_has() {
    let broker = class().await;
    let mut worker = FakeWorker::with_slots(&broker.dial, 2).await;
    let (mut ada, mut bob) = (proxy(&broker, "ada").await, proxy(&broker, "bob").await);
    let running = hold(&mut worker, &mut ada).await;
    let drain = "/v1/workers/cpu-0/drain";
    let drained = done(&broker, "root-token", drain, json!({"reason": "a new fan"})).await;
    let drained: Worker = serde_json::from_value(drained).unwrap();
    assert_eq!(
        (drained.state, drained.reason.as_deref()),
        (WorkerState::Drained, Some("a new fan"))
    );
    let job = bob.submit().await;
    let why = Some("a new fan".to_owned());
    assert_eq!(
        bob.position(job).await.1,
        WaitingReason::WorkersPaused { why }
    );
    worker
        .report(running, 1, 2, vec![finished(Outcome::Ok)])
        .await;
    ada.events_after(running, 0).await;
    done(&broker, "root-token", "/v1/workers/cpu-0/resume", json!({})).await;
    assert_eq!(worker.run_to_end().await, job);
}

#[tokio::test]
async fn a_course_is_changed_and_those_who_wait_read_it() {
    let broker = class().await;
    let mut ada = proxy(&broker, "ada").await;
    let job = waiting(&mut ada).await;
    let change = json!({
        "weight": 3, "timeout_ms": 60_000, "longest_timeout_ms": null, "paused": "Back at two",
        "message": "Ask in room 5", "deadlines": [{"from_ms": 0, "until_ms": i64::MAX, "weight": 4}],
    });
    // Her course shares the GPUs with others, so only admins may give it any weight.
    for (large, says) in [
        (json!({"weight": 17}), "at most 16"),
        (
            json!({"weight": 5, "deadlines": [{"from_ms": 0, "until_ms": i64::MAX, "weight": 4}]}),
            "at most 16",
        ),
        (
            json!({"timetable": [{"when": "Mon 10:00-12:00", "people": 501}]}),
            "at most 500 people",
        ),
    ] {
        let refused = post(&broker, "tia-token", "/v1/courses/ml", large).await;
        let refused = problem(refused).await;
        assert_eq!(refused.status, 400);
        assert!(refused.detail.contains(says), "{refused:?}");
    }
    let changed = done(&broker, "tia-token", "/v1/courses/ml", change).await;
    let changed: Course = serde_json::from_value(changed).unwrap();
    assert_eq!((changed.weight, changed.boost), (3.0, 4.0));
    assert_eq!(
        (changed.timeout_ms, changed.longest_timeout_ms),
        (Some(60_000), None)
    );
    let paused = WaitingReason::CoursePaused {
        why: "Back at two".to_owned(),
    };
    assert_eq!(
        told(&mut ada, job).await,
        (paused, Some("Ask in room 5".to_owned()))
    );
    let changed = done(
        &broker,
        "tia-token",
        "/v1/courses/ml",
        json!({"paused": null}),
    )
    .await;
    assert_eq!(
        (&changed["paused"], &changed["weight"]),
        (&json!(null), &json!(3.0))
    );
    let message = Some("Ask in room 5".to_owned());
    let (reason, said) = told(&mut ada, job).await;
    assert_eq!((reason, said), (WaitingReason::NoWorker, message));
    // Staff can pause a course that the file does not pause, and resume one that it pauses.
    let started = done(
        &broker,
        "root-token",
        "/v1/courses/vision",
        json!({"paused": null}),
    )
    .await;
    assert_eq!(started["paused"], json!(null));
}

#[tokio::test]
async fn acts_are_recorded_for_those_whom_they_concern() {
    let broker = class().await;
    let _worker = FakeWorker::with_slots(&broker.dial, 1).await;
    let mut ada = proxy(&broker, "ada").await;
    let running = ada.submit().await;
    ada.assigned(running).await;
    let mut second = proxy(&broker, "ada").await;
    let job = waiting(&mut second).await;
    let why = json!({"reason": "room 5"});
    done(
        &broker,
        "tia-token",
        &format!("/v1/jobs/{job}/hold"),
        why.clone(),
    )
    .await;
    done(
        &broker,
        "tia-token",
        &format!("/v1/jobs/{job}/release"),
        json!({}),
    )
    .await;
    done(&broker, "sesame", "/v1/workers/cpu-0/drain", why.clone()).await;
    done(
        &broker,
        "root-token",
        "/v1/courses/art",
        json!({"weight": 2}),
    )
    .await;
    done(
        &broker,
        "ada-token",
        &format!("/v1/jobs/{job}/cancel"),
        json!({}),
    )
    .await;
    let seen = async |token: &str, query: &str| {
        let acts: Vec<Act> = every(&broker, token, &format!("/v1/audit?{query}")).await;
        acts.into_iter().map(|act| act.action).collect::<Vec<_>>()
    };
    let of_ml = [Action::Cancel, Action::Release, Action::Hold];
    assert_eq!(seen("tia-token", "limit=2").await, of_ml);
    assert_eq!(seen("root-token", "course=ml").await, of_ml);
    let all = [
        Action::Cancel,
        Action::ChangeCourse,
        Action::Drain,
        Action::Release,
        Action::Hold,
    ];
    assert_eq!(seen("sesame", "limit=1").await, all);
    for student in ["ada-token", "cid-token"] {
        assert_eq!(seen(student, "limit=5").await, []);
    }
    let acts: Vec<Act> = every(&broker, "sesame", "/v1/audit?limit=500").await;
    assert_eq!(
        (
            acts[2].person.as_deref(),
            acts[2].subject.as_str(),
            acts[2].detail.as_deref()
        ),
        (None, "cpu-0", Some("room 5"))
    );
    assert_eq!(acts[1].detail.as_deref(), Some("weight 2"));
    assert_eq!(acts[4].person.as_deref(), Some("tia"));
}

/// Without a people file, every caller is the operator.
#[tokio::test]
async fn what_was_done_outlives_the_broker() {
    let over_tcp = || Rules {
        tcp: true,
        token: Some("sesame"),
        proxy_grace: PATIENCE,
        ..Rules::default()
    };
    let broker = Broker::start_with(over_tcp()).await;
    let worker = FakeWorker::new(&broker.dial).await;
    let mut first = FakeProxy::new(&broker.dial).await;
    let running = first.submit().await;
    first.assigned(running).await;
    let mut proxy = FakeProxy::in_course(&broker.dial, "ml").await;
    let job = waiting(&mut proxy).await;
    let why = json!({"reason": "a new fan"});
    done(&broker, "sesame", "/v1/workers/cpu-0/drain", why.clone()).await;
    done(&broker, "sesame", &format!("/v1/jobs/{job}/hold"), why).await;
    let change = CourseChange {
        message: Some(Some("Ask in room 5".to_owned())),
        deadlines: Some(vec![Deadline {
            from_ms: 0,
            until_ms: i64::MAX,
            weight: 2.0,
        }]),
        ..CourseChange::default()
    };
    let change = serde_json::to_value(change).unwrap();
    done(&broker, "sesame", "/v1/courses/ml", change).await;
    let folder = broker.stop().await;
    drop((first, worker));
    let broker = Broker::start_in(folder, over_tcp()).await;
    let mut back = FakeProxy::of_course(&broker.dial, proxy.notebook, "ml").await;
    back.send(FromProxy::Resume { job, after: 0 }).await;
    let held = WaitingReason::Held {
        why: "a new fan".to_owned(),
    };
    let message = Some("Ask in room 5".to_owned());
    assert_eq!(told(&mut back, job).await, (held, message));
    let _worker = FakeWorker::new(&broker.dial).await;
    let workers: Vec<Worker> = every(&broker, "sesame", "/v1/workers?").await;
    let states: Vec<WorkerState> = workers.iter().map(|worker| worker.state).collect();
    assert!(states.contains(&WorkerState::Drained), "{workers:?}");
    let courses: Vec<Course> = every(&broker, "sesame", "/v1/courses?").await;
    assert_eq!(courses[0].boost, 2.0);
    let acts: Vec<Act> = every(&broker, "sesame", "/v1/audit?limit=500").await;
    assert_eq!(acts.len(), 3);
}
