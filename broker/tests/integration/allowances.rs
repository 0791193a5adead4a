//! GPU time that staff grant beyond the budget: who may grant it, who sees it, and what then runs.

use crate::{
    actions::{done, post},
    api::{answer, class, every, problem, read},
    forms::Browser,
    harness::{Broker, FakeProxy, FakeWorker, Rules, finished, started},
};
use baton_protocol::{
    Finished, JobEvent, JobId, Outcome,
    api::{Act, Action, Allowance, Course, Page},
};
use serde_json::{Value, json};

const PATH: &str = "/v1/courses/ml/allowances";
const HOUR_MS: u64 = 3_600_000;

async fn list(broker: &Broker, token: &str) -> Vec<Allowance> {
    let page: Page<Allowance> = read(answer(broker, token, PATH).await).await;
    page.items
}

fn people(allowances: &[Allowance]) -> Vec<Option<&str>> {
    let people = allowances.iter();
    people
        .map(|allowance| allowance.person.as_deref())
        .collect()
}

#[tokio::test]
async fn staff_grant_and_revoke_within_their_limit() {
    let broker = class().await;
    let new = |person: Option<&str>, hours: u64| json!({"person": person, "gpu_time_ms": hours * HOUR_MS});
    let revoke = format!("{PATH}/revoke");
    for (token, path, body, status) in [
        ("", PATH, new(Some("ada"), 1), 401),
        ("ada-token", PATH, new(Some("ada"), 1), 403),
        ("cid-token", PATH, new(Some("cid"), 1), 404),
        (
            "tia-token",
            "/v1/courses/vision/allowances",
            new(Some("cid"), 1),
            404,
        ),
        (
            "root-token",
            "/v1/courses/vision/allowances",
            new(Some("cid"), 1),
            400,
        ),
        ("tia-token", PATH, new(Some("ada"), 0), 400),
        ("tia-token", PATH, new(Some(""), 1), 400),
        ("tia-token", PATH, new(Some("ada"), 2), 400),
        ("tia-token", PATH, json!({"person": "ada"}), 400),
        (
            "tia-token",
            PATH,
            json!({"gpu_time_ms": 1, "until_ms": 1}),
            400,
        ),
        (
            "tia-token",
            PATH,
            json!({"gpu_time_ms": 1, "until_ms": i64::MAX}),
            400,
        ),
        ("tia-token", &revoke, json!({"person": "ada"}), 404),
        ("ada-token", &revoke, json!({}), 403),
    ] {
        let refused = problem(post(&broker, token, path, body.clone()).await).await;
        assert_eq!(refused.status, status, "{token} {path} {body}: {refused:?}");
    }
    for token in ["tia-token", "root-token", "sesame"] {
        let refused = problem(post(&broker, token, PATH, new(Some("adda"), 1)).await).await;
        assert!(
            refused.detail.contains("adda is not in the people file"),
            "{refused:?}"
        );
        let refused = problem(post(&broker, token, PATH, new(Some("cid"), 1)).await).await;
        assert!(
            refused.detail.contains("cid is not in the course ml"),
            "{refused:?}"
        );
    }
    assert_eq!(answer(&broker, "cid-token", PATH).await.status(), 404);
    assert_eq!(list(&broker, "root-token").await, []);

    let until_ms = jiff::Timestamp::now().as_millisecond() + 1_000_000;
    let mut for_ada = new(Some("ada"), 1);
    for_ada["until_ms"] = until_ms.into();
    done(&broker, "tia-token", PATH, for_ada).await;
    // An admin is not bound by the limit of staff.
    done(&broker, "root-token", PATH, new(Some("bob"), 20)).await;
    let granted = list(&broker, "tia-token").await;
    assert_eq!(people(&granted), [Some("ada"), Some("bob")]);
    assert_eq!(
        (granted[0].until_ms, granted[0].by.as_deref()),
        (until_ms, Some("tia"))
    );
    let left = granted[1].budget.unwrap();
    assert_eq!((left.of_ms, left.granted_ms), (21 * HOUR_MS, 20 * HOUR_MS));
    // Together with Ada's own it would be too much.
    let more = post(&broker, "tia-token", PATH, new(None, 1)).await;
    let more = problem(more).await;
    assert!(more.detail.contains("at most 1 h together"), "{more:?}");
    done(&broker, "sesame", PATH, new(None, 1)).await;
    assert_eq!(
        people(&list(&broker, "ada-token").await),
        [None, Some("ada")]
    );
    let courses: Vec<Course> = every(&broker, "ada-token", "/v1/courses?").await;
    assert_eq!(courses[0].budget.unwrap().of_ms, 3 * HOUR_MS);

    let rest = done(&broker, "tia-token", &revoke, json!({})).await;
    let rest: Page<Allowance> = serde_json::from_value(rest).unwrap();
    assert_eq!(people(&rest.items), [Some("ada"), Some("bob")]);
    let acts: Vec<Act> = every(&broker, "tia-token", "/v1/audit?limit=9").await;
    let acts: Vec<_> = acts
        .iter()
        .map(|act| (act.action, act.subject.as_str()))
        .collect();
    let expected = [
        (Action::Revoke, "everyone"),
        (Action::Grant, "everyone"),
        (Action::Grant, "bob"),
        (Action::Grant, "ada"),
    ];
    assert_eq!(acts, expected);
}

async fn refused(proxy: &mut FakeProxy, job: JobId) -> String {
    match proxy.events_after(job, 0).await.pop() {
        Some(JobEvent::Finished(Finished {
            outcome: Outcome::Refused,
            error: Some(error),
            ..
        })) => error.value,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[tokio::test]
async fn a_person_without_budget_runs_again_and_the_grant_outlives_the_broker() {
    let rules = || Rules {
        token: Some("sesame"),
        tcp: true,
        courses: Some(
            "[course.ml]\nbudget = { gpu_time = \"1ms\", reset = \"Mon 04:00\" }".to_owned(),
        ),
        ..Rules::default()
    };
    let broker = Broker::start_with(rules()).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::in_course(&broker.dial, "ml").await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker
        .report(job, fencing, 1, vec![started(), finished(Outcome::Ok)])
        .await;
    proxy.events_after(job, 0).await;
    let job = proxy.submit().await;
    let error = refused(&mut proxy, job).await;
    assert!(
        error.contains("used up: 1 ms of 1 ms this week. It is"),
        "{error}"
    );

    let of: Value = json!({"gpu_time_ms": HOUR_MS});
    done(&broker, "sesame", PATH, of).await;
    let job = proxy.submit().await;
    assert_eq!(worker.run_to_end().await, job);
    let charged = proxy.events_after(job, 0).await;
    let charged = charged.iter().find_map(|event| match event {
        JobEvent::Charged(left) => Some(left.granted_ms),
        _ => None,
    });
    assert_eq!(charged, Some(HOUR_MS));
    drop((proxy, worker));
    let broker = Broker::start_in(broker.stop().await, rules()).await;
    assert_eq!(people(&list(&broker, "sesame").await), [None]);
    done(&broker, "sesame", &format!("{PATH}/revoke"), json!({})).await;
    let broker = Broker::start_in(broker.stop().await, rules()).await;
    assert_eq!(list(&broker, "sesame").await, []);
}

#[tokio::test]
async fn the_page_of_a_course_grants_and_revokes() {
    let broker = class().await;
    let tia = Browser::of(&broker, "tia-token").await;
    let page = "/course?name=ml";
    let form = |action, person, gpu_time| {
        [
            ("course", "ml"),
            ("action", action),
            ("person", person),
            ("gpu_time", gpu_time),
        ]
    };
    for (person, gpu_time, says) in [
        (
            "ada",
            "much",
            "The GPU time must be a time such as 30m or 2h.",
        ),
        (
            "ada",
            "2h",
            "The GPU time and other allowances of a person must be at most 1 h together",
        ),
        ("adda", "30m", "The person adda is not in the people file"),
    ] {
        let answer = tia.send(page, &form("grant", person, gpu_time)).await;
        assert_eq!(answer.status(), 400);
        let text = answer.text().await.unwrap();
        assert!(text.contains(says), "{text}");
        // The other form of the page is unchanged.
        assert!(text.contains("name=\"weight\" type=\"number\" min=\"0.1\" max=\"1000\" step=\"any\" required value=\"2\""), "{text}");
        assert!(text.contains(&format!("value=\"{gpu_time}\"")), "{text}");
    }
    let granted = tia.send(page, &form("grant", "ada", "30m")).await;
    assert_eq!(granted.headers()["location"], "course?name=ml#allowances");
    let ada = Browser::of(&broker, "ada-token").await;
    let (_, seen) = ada.get(page).await;
    assert!(
        seen.contains("1 h 30 min of 1 h 30 min left today"),
        "{seen}"
    );
    assert!(
        seen.contains(">tia<") && !seen.contains("value=\"revoke\""),
        "{seen}"
    );
    let bob = Browser::of(&broker, "bob-token").await;
    assert!(!bob.get(page).await.1.contains(">tia<"));
    let revoked = tia.send(page, &form("revoke", "ada", "")).await;
    assert_eq!(revoked.status(), 303);
    let again = tia.send(page, &form("revoke", "ada", "")).await;
    assert_eq!(again.status(), 404);
    let text = again.text().await.unwrap();
    assert!(
        text.contains("No additional GPU time is granted to ada."),
        "{text}"
    );
}
