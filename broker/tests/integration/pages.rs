//! What pages and health checks show.

use crate::{
    api::class,
    forms::Browser,
    harness::{
        Broker, FakeProxy, FakeWorker, Rules, finished, output, started, submission, within,
    },
};
use baton_postgres_tests::{Disk, Server};
use baton_protocol::{
    Finished, GpuUsage, JobEvent, JobId, Outcome, RemoteError, Usage,
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
    second.send(FromProxy::Submit(waiting)).await;
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
    let mut worker = FakeWorker::new(&broker.dial).await;
    let changed = hear_until("cpu-0").await;
    assert!(!changed.contains("#queue"), "{changed}");
    let mut proxy = FakeProxy::new(&broker.dial).await;
    for _ in 0..2 {
        let job = proxy.submit().await;
        worker.run_to_end().await;
        hear_until(&format!("ended-{job}")).await;
    }
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
    proxy.send(FromProxy::Applied { job }).await;
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
        worker.send(load).await;
    }
}

fn heights_of_curve(page: &str) -> Vec<f64> {
    let (_, memory) = page.split_once("<h2>Memory</h2>").unwrap();
    let (_, line) = memory.split_once("<path class=\"line\" d=\"M").unwrap();
    let (line, _) = line.split_once('"').unwrap();
    let height = |point: &str| point.split_once(' ').unwrap().1.parse().unwrap();
    line.split('L').map(height).collect()
}

/// Pages are read again each second, so they read a part of what a cell may print.
#[tokio::test]
async fn the_page_of_a_job_reads_only_the_end_of_its_output() {
    let broker = class().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = crate::api::proxy(&broker, "ada").await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    let text = |text: &str| output(&format!("{{\"text\": \"{text}\"}}"));
    let printed = vec![
        started(),
        text("the first line\\n"),
        text(&"\\u001b[31mx\\u001b[0m".repeat(10_000)),
        text(&"y".repeat(2 << 20)),
        text("the last line\\n"),
    ];
    worker.report(job, fencing, 1, printed).await;
    let page = format!("/job?id={job}");
    let (status, page) = Browser::of(&broker, "ada-token").await.get(&page).await;
    assert_eq!(status, 200);
    assert!(page.contains("[baton] An output of 2 MiB is not shown here\nthe last line\n"));
    assert!(page.contains("<pre tabindex=\"0\">[baton] Earlier output is not shown here\n"));
    assert!(page.contains("xxxx"));
    assert!(!page.contains("the first line"));
    assert!(!page.contains("yyyy"));
}

#[tokio::test]
async fn the_page_of_a_job_shows_the_lines_before_a_figure() {
    let broker = class().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = crate::api::proxy(&broker, "ada").await;
    let job = proxy.submit().await;
    let (fencing, _) = worker.assignment().await;
    let figure = |kib: usize| {
        let image = "i".repeat(kib << 10);
        let data = format!("{{\"text/plain\": \"a figure\", \"image/png\": \"{image}\"}}");
        output(&format!("{{\"data\": {data}}}"))
    };
    let line = |line: &str| output(&format!("{{\"text\": \"{line}\\n\"}}"));
    let printed = vec![started(), line("the first line"), figure(500)];
    worker.report(job, fencing, 1, printed).await;
    let page = format!("/job?id={job}");
    let shows = async |text: &str| {
        let (status, page) = Browser::of(&broker, "ada-token").await.get(&page).await;
        assert_eq!(status, 200);
        let expected = format!("<pre tabindex=\"0\">{text}</pre>");
        assert!(page.contains(&expected), "{page}");
    };
    shows("the first line\na figure\n").await;

    // Larger figures have the bytes that a page reads.
    let printed = vec![figure(900), figure(900), line("the last line"), figure(900)];
    worker.report(job, fencing, 4, printed).await;
    let end = "a figure\na figure\nthe last line\na figure\n";
    shows(&format!("[baton] Earlier output is not shown here\n{end}")).await;
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
    let end = JobEvent::Finished(Finished {
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
        ..Finished::without_state(Outcome::Error, Some(private))
    });
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
    proxy.send(FromProxy::Applied { job }).await;
    proxy.send(FromProxy::Resume { job, after: 0 }).await;
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
    let csv = broker.get("/people.csv?days=2").await;
    let lines: Vec<&str> = csv.lines().collect();
    assert_eq!(lines[0], "day,person,course,gpu_seconds,cells");
    assert!(
        lines[1].ends_with(",\"ada\",\"'=cmd\"\"x\",0.005,1"),
        "{csv}"
    );
    assert!(broker.get("/people?days=2").await.contains("100 %"));
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
