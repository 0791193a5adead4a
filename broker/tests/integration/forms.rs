//! Forms of the pages: who may send them, and what comes back if something is wrong.

use crate::{
    api::class,
    harness::{Broker, FakeWorker},
};
use baton_protocol::api::{Course, CourseChange, Deadline, Lesson, Page};
use baton_transport::Api;
use std::collections::BTreeMap;

pub(crate) struct Browser {
    pub(crate) client: reqwest::Client,
    pub(crate) address: String,
    pub(crate) cookie: String,
}

impl Browser {
    /// A browser that has signed in with this token.
    pub(crate) async fn of(broker: &Broker, token: &str) -> Self {
        let builder = reqwest::Client::builder().no_proxy();
        let builder = builder.redirect(reqwest::redirect::Policy::none());
        let client = builder.build().unwrap();
        let address = broker.dial.address.to_string();
        let form = client.post(format!("{address}/sign-in"));
        let form = form.form(&[("token", token)]);
        let answer = form.send().await.unwrap();
        let cookie = answer.headers()["set-cookie"].to_str().unwrap();
        let cookie = cookie.split(';').next().unwrap().to_owned();
        Self {
            client,
            address,
            cookie,
        }
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, String) {
        let request = self.client.get(format!("{}{path}", self.address));
        let answer = request.header("cookie", &self.cookie).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// Sends the page's form with additional fields.
    pub(crate) async fn send(&self, page: &str, fields: &[(&str, &str)]) -> reqwest::Response {
        let (_, page) = self.get(page).await;
        let key = page.split("name=\"key\" value=\"").nth(1);
        let key = key.map_or("", |rest| rest.split('"').next().unwrap());
        self.post(key, "same-origin", fields).await
    }

    pub(crate) async fn post(
        &self,
        key: &str,
        site: &str,
        fields: &[(&str, &str)],
    ) -> reqwest::Response {
        let mut form = reqwest::Url::parse("http://x").unwrap();
        form.query_pairs_mut()
            .append_pair("key", key)
            .extend_pairs(fields);
        let request = self.client.post(format!("{}/act", self.address));
        let request = request
            .header("cookie", &self.cookie)
            .header("sec-fetch-site", site)
            .header("content-type", "application/x-www-form-urlencoded");
        request
            .body(form.query().unwrap().to_owned())
            .send()
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn forms_act_for_those_who_may_and_only_from_their_own_pages() {
    let broker = class().await;
    let (tia, ada) = (
        Browser::of(&broker, "tia-token").await,
        Browser::of(&broker, "ada-token").await,
    );
    let root = Browser::of(&broker, "root-token").await;
    let _worker = FakeWorker::new(&broker.dial).await;
    let mut runs = crate::api::proxy(&broker, "bob").await;
    let running = runs.submit().await;
    runs.assigned(running).await;
    let mut proxy = crate::api::proxy(&broker, "ada").await;
    let job = proxy.submit().await;
    proxy.position(job).await;
    let (page, id) = (format!("/job?id={job}"), job.to_string());
    let hold = [
        ("job", id.as_str()),
        ("action", "hold"),
        ("reason", "room 5"),
    ];
    for (who, key, site) in [
        (&tia, "", "same-origin"),
        (&tia, "0123", "same-origin"),
        (&ada, "0123", "same-origin"),
    ] {
        assert_eq!(who.post(key, site, &hold).await.status(), 403);
    }
    let (_, mine) = ada.get(&page).await;
    let key = mine.split("name=\"key\" value=\"").nth(1).unwrap();
    let key = key.split('"').next().unwrap();
    // Ada's own key is of no use to another person, from another site, or for actions of staff.
    assert_eq!(tia.post(key, "same-origin", &hold).await.status(), 403);
    for site in ["cross-site", "same-site", "none"] {
        assert_eq!(ada.post(key, site, &hold).await.status(), 403);
    }
    let refused = ada.post(key, "same-origin", &hold).await;
    assert_eq!(refused.status(), 403);
    let refused = refused.text().await.unwrap();
    assert!(refused.contains("Only staff of its course") && refused.contains("<h1>Not done"));

    let done = tia.send(&page, &hold).await;
    assert_eq!(done.status(), 303);
    assert_eq!(done.headers()["location"], format!("job?id={job}#act"));
    assert!(tia.get("/").await.1.contains("staff hold it back: room 5"));
    assert!(tia.get(&page).await.1.contains("value=\"release\""));
    assert!(tia.get("/audit").await.1.contains("held back"));
    assert!(!ada.get("/audit").await.1.contains("held back"));
    let settings = [
        ("course", "ml"),
        ("action", "change_course"),
        ("weight", "2"),
        ("timeout", "10m"),
        ("longest", ""),
        ("message", "Ask in room 5"),
        ("paused", ""),
        ("until", "2030-01-02T03:04"),
        ("before", "6h"),
        ("boost", "4"),
        (
            "timetable",
            "Mon 17:00-18:30 350\r\n\r\nTue,Thu 09:00-10:00 4",
        ),
    ];
    let changed = tia.send("/course?name=ml", &settings).await;
    assert_eq!(changed.status(), 303, "{}", changed.text().await.unwrap());
    let (_, page) = tia.get("/course?name=ml").await;
    for value in [
        "value=\"10m\"",
        "Ask in room 5",
        "2030-01-02T03:04",
        "value=\"6h\"",
        "Mon 17:00-18:30 350\nTue,Thu 09:00-10:00 4</textarea>",
    ] {
        assert!(page.contains(value), "{value} is not in {page}");
    }
    assert!(
        !ada.get("/course?name=ml")
            .await
            .1
            .contains("action=\"act\"")
    );
    let drain = [
        ("worker", "cpu-0"),
        ("action", "drain"),
        ("reason", "a new fan"),
    ];
    assert_eq!(root.send("/workers", &drain).await.status(), 303);
    assert!(tia.get("/workers").await.1.contains("a new fan"));
    assert!(!tia.get("/workers").await.1.contains("action=\"act\""));
}

#[tokio::test]
async fn a_form_that_lacks_something_comes_back_and_says_what() {
    let broker = class().await;
    let (tia, root) = (
        Browser::of(&broker, "tia-token").await,
        Browser::of(&broker, "root-token").await,
    );
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = crate::api::proxy(&broker, "bob").await;
    let over = crate::api::run(&mut worker, &mut proxy).await;
    crate::api::hold(&mut worker, &mut proxy).await;
    let mut proxy = crate::api::proxy(&broker, "ada").await;
    let waits = proxy.submit().await;
    proxy.position(waits).await;
    let again = async |who: &Browser, page: &str, fields: &[(&str, &str)]| {
        let answer = who.send(page, fields).await;
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let complaint = |says: &str| format!("<span class=\"wrong\" role=\"alert\">{says}</span>");

    let (page, id) = (format!("/job?id={waits}"), waits.to_string());
    for action in ["hold", "move_to_front"] {
        let fields = [("job", id.as_str()), ("action", action), ("reason", " ")];
        let (status, text) = again(&tia, &page, &fields).await;
        assert_eq!(status, 400);
        assert!(
            text.contains(&complaint("The reason is missing.")),
            "{text}"
        );
        assert!(text.contains("value=\"hold\"") && text.contains("autofocus"));
    }
    let drain = [("worker", "cpu-0"), ("action", "drain"), ("reason", "")];
    let (status, text) = again(&root, "/workers", &drain).await;
    assert_eq!(status, 400);
    assert!(
        text.contains(&complaint("The reason is missing.")),
        "{text}"
    );

    let mut settings = [
        ("course", "ml"),
        ("action", "change_course"),
        ("weight", "2"),
        ("timeout", "5m"),
        ("longest", ""),
        ("message", "Ask in room 5"),
        ("until", "2030-01-02T03:04"),
        ("before", "6h"),
        ("boost", "4"),
        ("timetable", ""),
    ];
    for (field, typed, says) in [
        (2, "much", "The weight must be a number."),
        (2, "0", "The weight must be above 0 and at most 1000."),
        (
            3,
            "soon",
            "The time limit must be a time such as 90s, 5m or 2h.",
        ),
        (6, "later", "The deadline must be a date and a time."),
        (
            7,
            "soon",
            "The time before the deadline must be a time such as 30m or 6h.",
        ),
        (8, "0.5", "The weight of the deadline must be at least 1."),
        (
            9,
            "Mon 17:00-18:30 many",
            "The timetable must be times with a number of people, such as Mon 17:00-18:30 350.",
        ),
    ] {
        let right = std::mem::replace(&mut settings[field].1, typed);
        let (status, text) = again(&tia, "/course?name=ml", &settings).await;
        assert_eq!(status, 400, "{says}");
        assert!(text.contains(&complaint(says)), "{says}: {text}");
        for kept in [typed, "Ask in room 5"] {
            let (in_line, in_lines) = (format!("value=\"{kept}\""), format!(">{kept}</textarea>"));
            assert!(
                text.contains(&in_line) || text.contains(&in_lines),
                "{kept}"
            );
        }
        settings[field].1 = right;
    }

    let (page, id) = (format!("/job?id={waits}"), over.to_string());
    let cancel = [("job", id.as_str()), ("action", "cancel")];
    let (status, text) = again(&tia, &page, &cancel).await;
    assert_eq!(status, 409);
    assert!(text.contains(&complaint("The cell has ended.")), "{text}");
    assert!(!text.contains("value=\"cancel\""), "{text}");
}

#[tokio::test]
async fn an_old_page_undoes_nothing_that_it_does_not_change() {
    let broker = class().await;
    let tia = Browser::of(&broker, "tia-token").await;
    let (_, page) = tia.get("/course?name=ml").await;
    let hidden = |name: &str| {
        let (_, rest) = page
            .split_once(&format!("name=\"{name}\" value=\""))
            .unwrap();
        rest.split('"').next().unwrap().replace("&quot;", "\"")
    };
    let (key, shown) = (hidden("key"), hidden("shown"));

    let change = CourseChange {
        weight: Some(3.0),
        timeout_ms: Some(None),
        longest_timeout_ms: Some(Some(7_200_000)),
        paused: Some(Some("A fire alarm".to_owned())),
        message: None,
        deadlines: Some(vec![Deadline {
            from_ms: 4_102_443_000_000,
            until_ms: 4_102_444_800_000,
            weight: 2.0,
        }]),
        staff_see_outputs: Some(true),
        timetable: Some(vec![Lesson {
            when: "Mon 17:00-18:30".to_owned(),
            people: 20,
        }]),
    };
    let root = Api::new(&broker.dial_as("root-token")).unwrap();
    let changed: Result<Course, _> = root.act("/v1/courses/ml", &change).await;
    let changed = changed.unwrap();

    // A browser sends all fields that the page showed, except a checkbox without a mark.
    let mut fields: BTreeMap<&str, &str> = serde_json::from_str(&shown).unwrap();
    fields.retain(|name, _| *name != "staff_see_outputs");
    fields.extend([
        ("course", "ml"),
        ("action", "change_course"),
        ("shown", &shown),
        ("message", "Ask in room 5"),
    ]);
    let fields: Vec<(&str, &str)> = fields.into_iter().collect();
    let saved = tia.post(&key, "same-origin", &fields).await;
    assert_eq!(saved.status(), 303, "{}", saved.text().await.unwrap());
    let courses: Page<Course> = crate::api::get(&broker, "tia-token", "/v1/courses").await;
    let expected = Course {
        message: Some("Ask in room 5".to_owned()),
        ..changed
    };
    assert_eq!(courses.items, [expected]);
}

/// The time before a deadline is not in whole hours, and the form shows and keeps it.
#[tokio::test]
async fn a_form_keeps_a_deadline_that_counts_for_minutes() {
    let broker = class().await;
    let tia = Browser::of(&broker, "tia-token").await;
    let api = Api::new(&broker.dial_as("tia-token")).unwrap();
    let deadline = Deadline {
        from_ms: 4_102_443_000_000,
        until_ms: 4_102_444_800_000,
        weight: 3.0,
    };
    let change = CourseChange {
        deadlines: Some(vec![deadline]),
        ..CourseChange::default()
    };
    let changed: Result<Course, _> = api.act("/v1/courses/ml", &change).await;
    changed.unwrap();
    let (_, page) = tia.get("/course?name=ml").await;
    let until = page.split("name=\"until\"").nth(1).unwrap();
    let until = until.split("value=\"").nth(1).unwrap();
    let until = until.split('"').next().unwrap();
    assert!(page.contains("name=\"before\" value=\"30m\""), "{page}");

    for (before, minutes) in [("30m", 30), ("90m", 90)] {
        let fields = [
            ("course", "ml"),
            ("action", "change_course"),
            ("weight", "1"),
            ("until", until),
            ("before", before),
            ("boost", "3"),
        ];
        let saved = tia.send("/course?name=ml", &fields).await;
        assert_eq!(saved.status(), 303, "{}", saved.text().await.unwrap());
        let courses: Page<Course> = crate::api::get(&broker, "tia-token", "/v1/courses").await;
        let expected = Deadline {
            from_ms: deadline.until_ms - minutes * 60_000,
            ..deadline
        };
        assert_eq!(courses.items[0].deadlines, [expected]);
    }
}
