//! What pages and health checks show.

use crate::{
    api::class,
    harness::{
        Broker, FakeProxy, FakeWorker, Rules, finished, output, started, submission, within,
    },
};
use baton_postgres_tests::{Disk, Server};
use baton_protocol::{
    GpuUsage, JobEvent, JobId, Outcome, RemoteError, Usage,
    proxy::{FromProxy, ToProxy},
    worker::FromWorker,
};

fn over_tcp() -> Rules {
    Rules {
        tcp: true,
        ..Rules::default()
    }
}

#[tokio::test]
async fn the_page_teaches_when_it_is_empty() {
    let broker = Broker::start().await;
    let page = broker.get("/").await;
    for text in [
        "%%gpu",
        "No worker is connected",
        "Nothing has run yet",
        "<caption>Waiting</caption>",
    ] {
        assert!(page.contains(text), "{text} is not in {page}");
    }
}

#[tokio::test]
async fn the_page_shows_who_runs_who_waits_and_what_was() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut first = FakeProxy::new(&broker.dial).await;
    let mut second = FakeProxy::new(&broker.dial).await;
    let done = first.submit().await;
    assert_eq!(worker.run_to_end().await, done);
    let running = first.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker.report(running, fencing, 1, vec![started()]).await;
    let mut waiting = submission(second.notebook);
    waiting.notebook_name = "<b>evil</b>.ipynb".to_owned();
    let waiting_job = waiting.job;
    second.say(FromProxy::Submit(waiting)).await;
    second.position(waiting_job).await;

    let page = broker.get("/").await;
    for text in [
        "1 cell runs, 1 cell waits, the longest for less than a minute",
        "1 worker is connected, 0 of 1 slot free",
        "lesson.ipynb",
        "in line",
        "Test CPU (8 GiB)",
        "&lt;b&gt;evil",
        "done",
        "ada",
    ] {
        assert!(page.contains(text), "{text} is not in {page}");
    }
    assert!(!page.contains("<b>evil"));
    assert!(
        !page.contains("print(1)"),
        "a cell's code is nobody's business"
    );
    worker
        .report(running, fencing, 2, vec![finished(Outcome::Error)])
        .await;
    assert!(broker.get("/").await.contains("raised an error"));
}

#[tokio::test]
async fn the_page_asks_nobody_else_and_runs_no_inline_script() {
    let broker = Broker::start_with(over_tcp()).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let answer = client
        .get(broker.dial.address.to_string())
        .send()
        .await
        .unwrap();
    let policy = answer.headers()["content-security-policy"]
        .to_str()
        .unwrap()
        .to_owned();
    assert!(
        policy.starts_with("default-src 'none'") && !policy.contains("unsafe"),
        "{policy}"
    );
    let page = answer.text().await.unwrap();
    assert!(
        !page.contains("http://") && !page.contains("https://"),
        "{page}"
    );
    assert!(
        !page.contains("style=") && !page.contains("<style") && !page.contains("<script>"),
        "{page}"
    );
    // Each file that a page names exists, and the page loads only the broker's own scripts and styles.
    for named in page.split("=\"static/").skip(1) {
        let file = named.split('"').next().unwrap();
        assert!(!broker.get(&format!("/static/{file}")).await.is_empty());
    }
}

#[tokio::test]
async fn changes_come_without_reloading() {
    let broker = Broker::start_with(over_tcp()).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("{}/live", broker.dial.address);
    let mut live = client.get(url).send().await.unwrap();
    let mut heard = String::new();
    let mut hear_until = async |text: &str| {
        within(text, async {
            while !heard.contains(text) {
                let part = live.chunk().await.unwrap().expect("the stream ended");
                heard.push_str(&String::from_utf8_lossy(&part));
            }
        })
        .await;
        std::mem::take(&mut heard)
    };
    let all = hear_until("Nothing has run yet").await;
    assert!(
        all.contains("hx-target=\"#queue\"") && all.contains("hx-target=\"#machines\""),
        "{all}"
    );
    let _worker = FakeWorker::new(&broker.dial).await;
    let changed = hear_until("cpu-0").await;
    assert!(!changed.contains("#queue"), "{changed}");
}

struct Browser {
    client: reqwest::Client,
    address: String,
    cookie: String,
}

impl Browser {
    /// A browser that has signed in with this token.
    async fn of(broker: &Broker, token: &str) -> Self {
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

    async fn get(&self, path: &str) -> (u16, String) {
        let request = self.client.get(format!("{}{path}", self.address));
        let answer = request.header("cookie", &self.cookie).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    /// Sends the page's form with additional fields.
    async fn send(&self, page: &str, fields: &[(&str, &str)]) -> reqwest::Response {
        let (_, page) = self.get(page).await;
        let key = page.split("name=\"key\" value=\"").nth(1);
        let key = key.map_or("", |rest| rest.split('"').next().unwrap());
        self.post(key, "same-origin", fields).await
    }

    async fn post(&self, key: &str, site: &str, fields: &[(&str, &str)]) -> reqwest::Response {
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
        ("hours", "6"),
        ("boost", "4"),
    ];
    let changed = tia.send("/course?name=ml", &settings).await;
    assert_eq!(changed.status(), 303, "{}", changed.text().await.unwrap());
    let (_, page) = tia.get("/course?name=ml").await;
    for value in [
        "value=\"10m\"",
        "Ask in room 5",
        "2030-01-02T03:04",
        "value=\"6\"",
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
        ("hours", "6"),
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
        (7, "0", "The number of hours must be above 0."),
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
async fn a_page_that_stays_open_offers_nothing_for_a_cell_that_is_over() {
    let broker = class().await;
    let ada = Browser::of(&broker, "ada-token").await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = crate::api::proxy(&broker, "ada").await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker.report(job, fencing, 1, vec![started()]).await;
    let live = ada
        .client
        .get(format!("{}/live?of=job&id={job}", ada.address));
    let mut live = live.header("cookie", &ada.cookie).send().await.unwrap();
    let mut heard = String::new();
    let mut hear_until = async |text: &str| {
        within(text, async {
            while !heard.contains(text) {
                let part = live.chunk().await.unwrap().expect("the stream ended");
                heard.push_str(&String::from_utf8_lossy(&part));
            }
        })
        .await;
    };
    hear_until("Cancel this cell").await;
    worker
        .report(job, fencing, 2, vec![finished(Outcome::Ok)])
        .await;
    hear_until("The cell has ended.").await;
}

#[tokio::test]
async fn a_cells_page_draws_the_memory_of_its_session_while_it_runs_and_later() {
    let server = Server::start(Disk::NoSync);
    for database in [None, Some(server.url())] {
        memory_is_drawn(Rules {
            database,
            ..over_tcp()
        })
        .await;
    }
}

async fn memory_is_drawn(rules: Rules) {
    let broker = Broker::start_with(rules.clone()).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    proxy.assigned(job).await;
    worker.report(job, fencing, 1, vec![started()]).await;
    proxy.event(job).await;
    let page = format!("/job?id={job}");
    assert!(broker.get(&page).await.contains("Not measured yet."));

    const GIB: u64 = 1 << 30;
    measures(&mut worker, job, &[GIB, 3 * GIB, 2 * GIB]).await;
    worker.report(job, fencing, 2, vec![output("{}")]).await;
    proxy.event(job).await;
    let said = "Memory of the session, from 1 GiB to 2 GiB, 3 GiB at most";
    let running = broker.get(&page).await;
    assert!(
        running.contains(&format!("aria-label=\"{said}\"")),
        "{running}"
    );
    // The first point is at one third of the height, the last at two thirds.
    assert_eq!(heights_of_curve(&running), [69.3, 8.0, 38.7]);

    // A long run is drawn in coarser steps, which keep the peak.
    measures(&mut worker, job, &[2 * GIB; 300]).await;
    worker
        .report(job, fencing, 3, vec![finished(Outcome::Ok)])
        .await;
    proxy.events_after(job, 3).await;
    proxy.say(FromProxy::Applied { job }).await;
    let folder = broker.stop().await;
    let broker = Broker::start_in(folder, rules).await;
    let ended = broker.get(&page).await;
    assert!(ended.contains("to 2 GiB, 3 GiB at most"), "{ended}");
    let heights = heights_of_curve(&ended);
    assert!((100..=240).contains(&heights.len()), "{heights:?}");
    assert_eq!(heights.iter().filter(|height| **height == 8.0).count(), 1);
}

async fn measures(worker: &mut FakeWorker, job: JobId, samples: &[u64]) {
    for bytes in samples {
        let load = FromWorker::Load {
            memory_bytes: *bytes,
            memory_total_bytes: 8 << 30,
            jobs: vec![(job, *bytes)],
            gpus: Vec::new(),
        };
        worker.say(load).await;
    }
}

fn heights_of_curve(page: &str) -> Vec<f64> {
    let (_, memory) = page.split_once("<h2>Memory</h2>").unwrap();
    let (_, line) = memory.split_once("<path class=\"line\" d=\"M").unwrap();
    let (line, _) = line.split_once('"').unwrap();
    let height = |point: &str| point.split_once(' ').unwrap().1.parse().unwrap();
    line.split('L').map(height).collect()
}

#[tokio::test]
async fn what_a_cell_prints_is_for_its_owner_unless_the_course_says_otherwise() {
    let broker = class().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = crate::api::proxy(&broker, "ada").await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    let printed = vec![started(), output("{\"text\": \"the secret of ada\"}")];
    worker.report(job, fencing, 1, printed).await;
    let page = format!("/job?id={job}");
    let sees = async |token: &str| {
        let (status, page) = Browser::of(&broker, token).await.get(&page).await;
        (
            status,
            page.contains("the secret of ada"),
            page.contains("print(1)"),
        )
    };
    assert_eq!(sees("ada-token").await, (200, true, true));
    assert_eq!(sees("bob-token").await.0, 404);
    for staff in ["tia-token", "root-token", "sesame"] {
        assert_eq!(sees(staff).await, (200, false, false), "{staff}");
    }
    let settings = [
        ("course", "ml"),
        ("action", "change_course"),
        ("weight", "2"),
        ("staff_see_outputs", "yes"),
    ];
    let tia = Browser::of(&broker, "tia-token").await;
    assert_eq!(tia.send("/course?name=ml", &settings).await.status(), 303);
    for staff in ["tia-token", "root-token"] {
        assert_eq!(sees(staff).await, (200, true, false), "{staff}");
    }
    let private = RemoteError {
        name: "KeyError".to_owned(),
        value: "'the secret of ada'".to_owned(),
        traceback: vec!["KeyError: 'the secret of ada'".to_owned()],
        hint: None,
    };
    let end = JobEvent::Finished {
        outcome: Outcome::Error,
        error: Some(private),
        state: None,
        usage: Usage {
            gpu: Some(GpuUsage {
                held_ms: 300,
                waited_ms: 200,
                swaps: 2,
                peak_memory_bytes: 3 << 30,
            }),
            run_ms: 300,
            ..Usage::default()
        },
        files: None,
        deferred_bytes: 0,
        salvageable: false,
    };
    worker.report(job, fencing, 3, vec![end]).await;
    proxy.events_after(job, 0).await;
    let settings = &settings[..3];
    assert_eq!(tia.send("/course?name=ml", settings).await.status(), 303);
    assert_eq!(sees("tia-token").await, (200, false, false));
    assert_eq!(sees("ada-token").await, (200, true, false));
    let said = tia.get(&page).await.1;
    for part in ["KeyError", "0.3 s", "0.2 s", "2 times", "3 GiB"] {
        assert!(said.contains(part), "{part}");
    }

    // The last outputs remain after the notebook has the result.
    proxy.say(FromProxy::Applied { job }).await;
    proxy.say(FromProxy::Resume { job, after: 0 }).await;
    assert_eq!(proxy.next().await, ToProxy::UnknownJob { job });
    let (_, after) = Browser::of(&broker, "ada-token").await.get(&page).await;
    let output = after.split("The last of it").next().unwrap();
    assert!(output.contains("<pre tabindex=\"0\">the secret of ada</pre>"));
    assert_eq!(sees("tia-token").await, (200, false, false));
}

#[tokio::test]
async fn use_comes_as_csv() {
    let broker = Broker::start().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::in_course(&broker.dial, "=cmd\"x").await;
    let job = proxy.submit().await;
    assert_eq!(worker.run_to_end().await, job);
    proxy.events_after(job, 0).await;
    let csv = broker.get("/people.csv?days=1").await;
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "day,person,course,gpu_seconds,cells");
    assert!(
        lines[1].ends_with(",\"ada\",\"'=cmd\"\"x\",0.005,1"),
        "{csv}"
    );
    assert!(broker.get("/people?days=1").await.contains("100 %"));
}

#[tokio::test]
async fn everything_is_below_a_prefix_too() {
    let broker = Broker::start_with(Rules {
        token: Some("sesame"),
        tcp: true,
        url_prefix: Some("/services/baton"),
        ..Rules::default()
    })
    .await;
    let browser = Browser::of(&broker, "sesame").await;
    for path in ["", "/services/baton"] {
        for page in [
            "/",
            "/workers",
            "/static/page.css",
            "/v1/openapi.json",
            "/health/live",
        ] {
            let request = browser
                .client
                .get(format!("{}{path}{page}", browser.address));
            let request = request
                .bearer_auth("sesame")
                .header("cookie", &browser.cookie);
            assert_eq!(request.send().await.unwrap().status(), 200, "{path}{page}");
        }
    }
    let bare = browser
        .client
        .get(format!("{}/services/baton?token=x", browser.address));
    let bare = bare.send().await.unwrap();
    assert_eq!(bare.headers()["location"], "/services/baton/?token=x");
}
