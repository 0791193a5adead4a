//! What people and watchers see.

use crate::harness::{Broker, FakeProxy, FakeWorker, Rules, finished, started, submission, within};
use baton_protocol::{Outcome, proxy::FromProxy};

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
        "<caption>Cells now</caption>",
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
    second.place(waiting_job).await;

    let page = broker.get("/").await;
    for text in [
        "1 cell runs, 1 cell waits, 1 worker is connected",
        "lesson.ipynb",
        "place 1 in line",
        "Test CPU (8.0 GiB)",
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
    for file in ["/static/page.css", "/static/live.js"] {
        assert!(!broker.get(file).await.contains("//cdn"));
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
        all.contains("event: jobs\n") && all.contains("event: workers\n"),
        "{all}"
    );
    let _worker = FakeWorker::new(&broker.dial).await;
    let changed = hear_until("cpu-0").await;
    assert!(!changed.contains("event: jobs\n"), "{changed}");
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
