//! Browsers that sign in: what they get, how long it is valid, and what other sites and logs see of it.

use crate::harness::{Broker, FakeProxy, Rules, within, write_private};
use baton_broker::{Person, Role};
use baton_postgres_tests::{Disk, Server};
use baton_transport::{Api, LinkError};
use reqwest::{RequestBuilder, Response, redirect::Policy};
use std::{
    collections::BTreeMap,
    io::Write,
    sync::{Arc, Mutex},
};

const HTML: &str = "text/html,application/xhtml+xml";

fn people() -> String {
    let courses = [("ml".to_owned(), Role::Student)].into();
    [
        Person::new("ada".to_owned(), "ada-token", false, courses).entry(),
        Person::new("root".to_owned(), "root-token", true, BTreeMap::new()).entry(),
        Person::new_worker("gpu-1".to_owned(), "gpu-1-token").entry(),
    ]
    .concat()
}

fn rules() -> Rules {
    Rules {
        token: Some("sesame"),
        tcp: true,
        people: Some(people()),
        ..Rules::default()
    }
}

/// A browser that sends its cookies to pages of the same site.
struct Browser {
    client: reqwest::Client,
    address: String,
}

impl Browser {
    fn new(broker: &Broker) -> Self {
        let client = reqwest::Client::builder().no_proxy();
        Self {
            client: client.redirect(Policy::none()).build().unwrap(),
            address: broker.dial.address.to_string(),
        }
    }

    fn get(&self, path: &str) -> RequestBuilder {
        let request = self.client.get(format!("{}{path}", self.address));
        request.header("accept", HTML)
    }

    async fn shows(&self, cookie: &str, path: &str) -> Response {
        let request = self.get(path).header("cookie", cookie);
        request.send().await.unwrap()
    }

    async fn sign_in(&self, token: &str) -> Response {
        self.form(
            &[("token", token), ("page", "people?days=2")],
            "same-origin",
        )
        .await
    }

    async fn form(&self, fields: &[(&str, &str)], site: &str) -> Response {
        let request = self.client.post(format!("{}/sign-in", self.address));
        let request = request.header("sec-fetch-site", site).form(fields);
        request.send().await.unwrap()
    }
}

fn set_cookie(answer: &Response) -> &str {
    answer.headers()["set-cookie"].to_str().unwrap()
}

/// The cookie that the browser sends from then on.
fn cookie(answer: &Response) -> String {
    let pair = set_cookie(answer).split(';').next().unwrap();
    assert!(pair.starts_with("baton_signed_in="), "{pair}");
    pair.to_owned()
}

#[tokio::test]
async fn a_token_in_the_address_becomes_a_cookie_that_is_not_the_token() {
    let broker = Broker::start_with(rules()).await;
    let browser = Browser::new(&broker);
    for (path, page) in [
        ("/?token=ada-token", "./"),
        ("/people?days=2&token=ada-token&x=1", "./people?days=2&x=1"),
        ("/people?%74oken=ada-token", "./people"),
    ] {
        let entered = browser.get(path).send().await.unwrap();
        assert_eq!(entered.status(), 303);
        assert_eq!(entered.headers()["location"], page);
        assert_eq!(entered.headers()["referrer-policy"], "same-origin");
        let given = set_cookie(&entered).to_owned();
        assert!(given.contains("HttpOnly") && given.contains("SameSite=Strict"));
        assert!(given.contains("Max-Age=604800") && !given.contains("Secure"));
        assert!(!given.contains("ada-token"), "{given}");
        let cookie = cookie(&entered);
        assert_eq!(browser.shows(&cookie, "/").await.status(), 200);
        // The token is also removed from the URL if the browser is already signed in.
        let again = browser.shows(&cookie, path).await;
        assert_eq!(again.status(), 303);
    }
    let encrypted = browser.get("/?token=ada-token");
    let encrypted = encrypted.header("x-forwarded-proto", "https");
    assert!(set_cookie(&encrypted.send().await.unwrap()).contains("; Secure"));
    let wrong = browser.get("/?token=wrong").send().await.unwrap();
    assert_eq!(wrong.status(), 401);
    assert!(wrong.headers().get("set-cookie").is_none());
}

#[tokio::test]
async fn a_link_of_another_site_replaces_no_sign_in_by_itself() {
    let broker = Broker::start_with(rules()).await;
    let browser = Browser::new(&broker);
    let follow = async |site| {
        let link = browser.get("/people?days=2&token=root-token");
        link.header("sec-fetch-site", site).send().await.unwrap()
    };
    for site in ["cross-site", "same-site"] {
        let asked = follow(site).await;
        assert_eq!(asked.status(), 200);
        assert!(asked.headers().get("set-cookie").is_none(), "{site}");
        assert_eq!(asked.headers()["cache-control"], "no-store");
        let page = asked.text().await.unwrap();
        assert!(page.contains("Sign in with this token"), "{page}");
        assert!(
            page.contains(r#"name="page" value="people?days=2""#),
            "{page}"
        );
    }
    // The other site cannot send the form itself.
    let fields = [("token", "root-token"), ("page", "")];
    let forged = browser.form(&fields, "cross-site").await;
    assert!(forged.headers().get("set-cookie").is_none());
    let confirmed = browser.form(&fields, "same-origin").await;
    assert_eq!(confirmed.status(), 303);
    assert!(set_cookie(&confirmed).starts_with("baton_signed_in="));
    // Links in mails, terminals and pages of the broker.
    for site in ["none", "same-origin"] {
        assert_eq!(follow(site).await.status(), 303, "{site}");
    }
}

#[tokio::test]
async fn a_cookie_is_no_token_and_a_token_no_cookie() {
    let broker = Broker::start_with(rules()).await;
    let browser = Browser::new(&broker);
    let given = cookie(&browser.sign_in("ada-token").await);
    let (_, id) = given.split_once('=').unwrap();
    let refused = Api::new(&broker.dial_as(id)).unwrap().get("/status").await;
    assert!(matches!(refused, Err(LinkError::Unauthorized { .. })));
    for token in ["ada-token", "sesame"] {
        let shown = format!("baton_signed_in={token}; baton_token={token}");
        assert_eq!(browser.shows(&shown, "/").await.status(), 401);
    }
}

#[tokio::test]
async fn people_sign_in_on_a_page_and_go_on_where_they_were() {
    let broker = Broker::start_with(rules()).await;
    let browser = Browser::new(&broker);
    let page = browser.get("/people?days=2").send().await.unwrap();
    assert_eq!(page.status(), 401);
    let page = page.text().await.unwrap();
    assert!(page.contains("name=\"token\" type=\"password\""), "{page}");
    assert!(page.contains("value=\"people?days=2\""), "{page}");
    let entered = browser.sign_in(" ada-token\n").await;
    assert_eq!(entered.status(), 303);
    assert_eq!(entered.headers()["location"], "./people?days=2");
    let shown = browser.shows(&cookie(&entered), "/").await;
    assert!(shown.text().await.unwrap().contains("ada"));

    let worker = browser.sign_in("gpu-1-token").await;
    assert_eq!(worker.status(), 403);
    assert!(
        worker
            .text()
            .await
            .unwrap()
            .contains("This is a worker's token")
    );
    let wrong = browser.sign_in("ada-tokem").await;
    assert_eq!(wrong.status(), 401);
    let wrong = wrong.text().await.unwrap();
    assert!(wrong.contains("does not know that token") && !wrong.contains("ada-tokem"));
    // Another site can neither sign people in nor choose the page that follows.
    let fields = [("token", "ada-token")];
    assert_eq!(browser.form(&fields, "cross-site").await.status(), 403);
    let fields = [("token", "ada-token"), ("page", "//elsewhere.example/")];
    let entered = browser.form(&fields, "same-origin").await;
    assert_eq!(entered.headers()["location"], "./");
}

/// The browser does not send the cookie there, so it is asked to load the page again from this site.
#[tokio::test]
async fn a_link_on_another_site_leads_to_the_page() {
    let broker = Broker::start_with(rules()).await;
    let browser = Browser::new(&broker);
    let from = async |site: &str| {
        let request = browser.get("/job?id=7").header("sec-fetch-site", site);
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let (status, page) = from("cross-site").await;
    assert_eq!(status, 200);
    assert!(page.contains("content=\"0; url=./job?id=7\""), "{page}");
    let (status, page) = from("same-origin").await;
    assert_eq!(status, 401);
    assert!(page.contains("value=\"job?id=7\""), "{page}");
}

#[tokio::test]
async fn a_sign_in_outlives_the_broker_and_ends_with_the_token() {
    let broker = Broker::start_with(rules()).await;
    let browser = Browser::new(&broker);
    let of_ada = cookie(&browser.sign_in("ada-token").await);
    let of_operator = cookie(&browser.sign_in("sesame").await);
    let folder = broker.stop().await;
    let broker = Broker::start_in(folder, rules()).await;
    let browser = Browser::new(&broker);
    for cookie in [&of_ada, &of_operator] {
        assert_eq!(browser.shows(cookie, "/").await.status(), 200);
    }
    let mut live = browser.shows(&of_ada, "/live?of=now").await;
    assert_eq!(live.status(), 200);
    // Ada gets another token.
    let file = broker.folder.path().join("people.toml");
    let new = Person::new("ada".to_owned(), "new-token", false, BTreeMap::new());
    write_private(&file, &new.entry());
    assert_eq!(browser.shows(&of_ada, "/").await.status(), 401);
    within("the end of the live page", async {
        while live.chunk().await.unwrap().is_some() {}
    })
    .await;
    assert_eq!(browser.shows(&of_operator, "/").await.status(), 200);

    let folder = broker.stop().await;
    let rules = Rules {
        token: Some("another"),
        ..rules()
    };
    let broker = Broker::start_in(folder, rules).await;
    let browser = Browser::new(&broker);
    assert_eq!(browser.shows(&of_operator, "/").await.status(), 401);
}

/// A second broker on the same PostgreSQL, before and after it becomes the leader.
#[tokio::test]
async fn a_sign_in_counts_at_every_broker_of_a_database() {
    let server = Server::start(Disk::NoSync);
    let rules = Rules {
        database: Some(server.url()),
        ..rules()
    };
    let leader = Broker::start_with(rules.clone()).await;
    let other = Broker::start_with(rules).await;
    let at_other = Browser::new(&other);
    let cookie = cookie(&at_other.sign_in("ada-token").await);
    assert_eq!(
        Browser::new(&leader).shows(&cookie, "/").await.status(),
        200
    );
    leader.stop().await;
    within("the other one to lead", async {
        let ready = at_other.get("/health/ready");
        while !ready
            .try_clone()
            .unwrap()
            .send()
            .await
            .is_ok_and(|answer| answer.status() == 200)
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(at_other.shows(&cookie, "/").await.status(), 200);
}

#[tokio::test]
async fn who_signs_out_is_signed_out_here_and_nowhere_else() {
    let broker = Broker::start_with(rules()).await;
    let browser = Browser::new(&broker);
    let one = cookie(&browser.sign_in("ada-token").await);
    let other = cookie(&browser.sign_in("ada-token").await);
    let page = browser.shows(&one, "/").await.text().await.unwrap();
    let key = page.split("name=\"key\" value=\"").nth(1).unwrap();
    let key = key.split('"').next().unwrap();
    let sign_out = async |cookie: &str, site: &str| {
        let request = browser.client.post(format!("{}/sign-out", browser.address));
        let request = request.header("cookie", cookie).form(&[("key", key)]);
        let request = request.header("sec-fetch-site", site);
        request.send().await.unwrap()
    };
    // The key of one browser's page is not valid for another browser, and another site cannot send it.
    assert_eq!(sign_out(&other, "same-origin").await.status(), 403);
    assert_eq!(sign_out(&one, "cross-site").await.status(), 403);
    let out = sign_out(&one, "same-origin").await;
    assert_eq!(out.status(), 303);
    assert!(set_cookie(&out).contains("Max-Age=0"));
    assert_eq!(browser.shows(&one, "/").await.status(), 401);
    assert_eq!(browser.shows(&other, "/").await.status(), 200);
}

#[tokio::test]
async fn every_answer_says_how_it_may_be_used() {
    let broker = Broker::start_with(Rules {
        url_prefix: Some("/services/baton"),
        ..rules()
    })
    .await;
    let browser = Browser::new(&broker);
    let cookie = cookie(&browser.sign_in("ada-token").await);
    for path in [
        "/",
        "/job?id=7",
        "/live?of=now",
        "/status",
        "/nothing/here",
        "/oauth_callback",
        "/services/baton",
        "/services/baton/people",
        "/services/baton/nothing",
        "/sign-in",
        "/signed-out",
        "/static/page.css",
        "/health/ready",
        "/v1/jobs",
        "/v1/nothing",
        "/metrics",
    ] {
        for cookie in [cookie.as_str(), "none=1"] {
            let request = browser.get(path).header("cookie", cookie);
            let plain = request.try_clone().unwrap().send().await.unwrap();
            let headers = plain.headers();
            assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
            assert_eq!(headers["referrer-policy"], "same-origin", "{path}");
            let policy = headers["content-security-policy"].to_str().unwrap();
            assert!(policy.contains("frame-ancestors 'none'"), "{path}");
            assert!(!headers.contains_key("strict-transport-security"), "{path}");
            let encrypted = request.header("x-forwarded-proto", "https");
            let encrypted = encrypted.send().await.unwrap();
            let always = &encrypted.headers()["strict-transport-security"];
            assert_eq!(always, "max-age=31536000", "{path}");
        }
    }
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Collects all log lines, at every level, while all ways of signing in are tried.
#[tokio::test]
async fn wrong_tokens_are_counted_and_logged_and_no_token_is() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let broker = Broker::start_with(rules()).await;
    let browser = Browser::new(&broker);
    let given = cookie(&browser.sign_in("ada-token").await);
    browser.get("/?token=root-token").send().await.unwrap();
    FakeProxy::new(&broker.dial_as("ada-token")).await;

    let wrong = "a-wrong-token";
    let refused = Api::new(&broker.dial_as(wrong))
        .unwrap()
        .get("/status")
        .await;
    assert!(matches!(refused, Err(LinkError::Unauthorized { .. })));
    let address = format!("/?token={wrong}");
    let mut tried = 1;
    for by_address in [false, true] {
        let try_it = async || match by_address {
            true => browser.get(&address).send().await.unwrap(),
            false => browser.sign_in(wrong).await,
        };
        loop {
            tried += 1;
            match try_it().await.status().as_u16() {
                401 => {}
                429 => break,
                other => panic!("{other}"),
            }
        }
    }
    // A person with a correct token is not refused, and a program learns what is wrong.
    assert_eq!(browser.sign_in("ada-token").await.status(), 303);
    tried += 1;
    let refused = Api::new(&broker.dial_as(wrong))
        .unwrap()
        .get("/status")
        .await;
    assert!(matches!(refused, Err(LinkError::Unauthorized { .. })));

    let (_, id) = given.split_once('=').unwrap();
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let logged = text.matches("A sign-in with a wrong token from 127.0.0.1");
    let logged = logged.count();
    // The two tries that got a 429 are not logged. The last try may be logged: by then the limit may allow another.
    assert!(20 <= logged && logged <= tried - 2, "{logged} of {tried}");
    let ours: String = text
        .lines()
        .filter(|line| line.contains("baton_broker"))
        .collect();
    for secret in ["ada-token", "root-token", wrong, "sesame", id] {
        assert!(!ours.contains(secret), "{secret} is in the log");
    }
}
