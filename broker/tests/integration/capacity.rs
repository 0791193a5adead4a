//! The data of estimates, and the page that shows them.

use crate::harness::{Broker, FakeProxy, FakeWorker, Rules, finished, started};
use baton_broker::{Person, Role};
use baton_protocol::{Outcome, api::History};
use std::collections::BTreeMap;

async fn class(people: &[(&str, Role)]) -> Broker {
    let person = |(name, role): &(&str, Role)| {
        let courses = BTreeMap::from([("ml".to_owned(), *role)]);
        Person::new((*name).to_owned(), &format!("{name}-token"), false, courses).entry()
    };
    Broker::start_with(Rules {
        token: Some("sesame"),
        tcp: true,
        people: Some(people.iter().map(person).collect()),
        courses: Some("[course.ml]".to_owned()),
        ..Rules::default()
    })
    .await
}

async fn get(broker: &Broker, token: &str, path: &str) -> (u16, String) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let request = client.get(format!("{}{path}", broker.dial.address));
    let response = request.bearer_auth(token).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test]
async fn the_past_is_told_without_names_and_only_to_staff() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    proxy.submit().await;
    worker.run_to_end().await;
    let cancelled = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker
        .report(
            cancelled,
            fencing,
            1,
            vec![started(), finished(Outcome::TimedOut)],
        )
        .await;
    let waiting = proxy.submit().await;
    worker.assignment().await;
    let told = loop {
        let told: History = serde_json::from_str(&broker.get("/v1/history").await).unwrap();
        if told.cells.len() == 3 && told.cells[1].finished_ms.is_some() {
            break told;
        }
    };
    assert_eq!((told.gpus, told.slots), (1, 1), "{waiting}");
    let ends: Vec<_> = told.cells.iter().map(|cell| cell.ended_itself).collect();
    assert_eq!(ends, [false, false, true], "the newest first");
    assert!(told.cells.iter().all(|cell| cell.person == 0));
    assert!(!broker.get("/v1/history").await.contains("ada"));
}

#[tokio::test]
async fn students_are_refused_and_staff_ask_for_their_courses() {
    let broker = class(&[("ada", Role::Student), ("tia", Role::Staff)]).await;
    let (status, text) = get(&broker, "ada-token", "/v1/history").await;
    assert_eq!(status, 403);
    assert!(text.contains("urn:baton:not-staff"), "{text}");
    assert_eq!(get(&broker, "tia-token", "/v1/history").await.0, 200);
    assert_eq!(
        get(&broker, "tia-token", "/v1/history?course=art").await.0,
        403
    );
    assert_eq!(
        get(&broker, "sesame", "/v1/history?course=art").await.0,
        200
    );
    assert_eq!(get(&broker, "sesame", "/v1/history?days=0").await.0, 400);
    let (status, page) = get(&broker, "ada-token", "/capacity").await;
    assert_eq!(status, 403);
    assert!(
        page.contains("Only course staff and admins can read"),
        "{page}"
    );
}

#[tokio::test]
async fn a_page_without_a_past_says_so() {
    let broker = Broker::start().await;
    assert!(
        broker
            .get("/capacity")
            .await
            .contains("No connected worker accepts cells")
    );
    let _worker = FakeWorker::new(&broker.dial).await;
    let page = loop {
        let page = broker.get("/capacity").await;
        if !page.contains("No connected worker accepts cells") {
            break page;
        }
    };
    assert!(page.contains("The history has no cells yet"), "{page}");
    assert!(broker.get("/").await.contains("href=\"capacity\""));
}
