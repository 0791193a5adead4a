//! Tokens of people: what each permits, and who sees what.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, Rules, finished, started, submission, wait_for, within,
    write_private,
};
use baton_broker::{Person, Role};
use baton_broker_queue::{Account, Spent, Write};
use baton_broker_store::Store;
use baton_protocol::{
    Answer, NotebookId, Outcome, PROTOCOL_VERSION, Refusal,
    proxy::{FromProxy, ToProxy},
    worker::{FromWorker, ToWorker},
};
use baton_transport::{Api, Connection, LinkError};
use std::{collections::HashSet, time::Duration};

fn person(name: &str, admin: bool, courses: &[(&str, Role)]) -> String {
    let courses = courses
        .iter()
        .map(|(course, role)| ((*course).to_owned(), *role));
    Person::new(
        name.to_owned(),
        &format!("{name}-token"),
        admin,
        courses.collect(),
    )
    .entry()
}

fn people() -> String {
    [
        person("ada", false, &[("ml", Role::Student)]),
        person(
            "bob",
            false,
            &[("ml", Role::Student), ("vision", Role::Student)],
        ),
        person("tia", false, &[("ml", Role::Staff)]),
        person("root", true, &[]),
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

async fn course() -> Broker {
    Broker::start_with(rules()).await
}

/// The broker's response to the hello of a notebook.
async fn enter(
    broker: &Broker,
    token: &str,
    notebook: NotebookId,
    course: Option<&str>,
) -> Option<ToProxy> {
    let mut proxy: Connection<ToProxy, FromProxy> =
        baton_transport::connect(&broker.dial_as(token), "/v1/proxy")
            .await
            .unwrap();
    let hello = FromProxy::Hello {
        protocol_version: PROTOCOL_VERSION,
        notebook,
        owner: "somebody else".to_owned(),
        course: course.map(str::to_owned),
    };
    proxy.send(&hello).await.unwrap();
    within("an answer", proxy.receive()).await.unwrap()
}

#[tokio::test]
async fn a_worker_hears_which_notebooks_are_one_person_s_and_not_whose() {
    let broker = course().await;
    let mut worker = FakeWorker::new(&broker.dial_as("gpu-1-token")).await;
    let mut accounts = Vec::new();
    for token in ["ada-token", "bob-token", "ada-token"] {
        let mut proxy = FakeProxy::in_course(&broker.dial_as(token), "ml").await;
        proxy.submit().await;
        let ToWorker::Assign {
            account,
            fencing,
            submission,
            ..
        } = worker.next().await
        else {
            panic!("an assignment was due");
        };
        accounts.push(account);
        let events = vec![started(), finished(Outcome::Ok)];
        worker.report(submission.job, fencing, 1, events).await;
    }
    assert_eq!(accounts[0], accounts[2]);
    assert_ne!(accounts[0], accounts[1]);
}

#[tokio::test]
async fn who_gets_in_where() {
    let broker = course().await;
    for (token, notebook, worker, page) in [
        ("sesame", true, true, true),
        ("ada-token", true, false, true),
        ("tia-token", true, false, true),
        ("root-token", true, false, true),
        ("gpu-1-token", false, true, false),
        ("ada-toker", false, false, false),
        ("ada-token ada", false, false, false),
        ("ada", false, false, false),
        ("", false, false, false),
        ("nobody-token", false, false, false),
    ] {
        let dial = broker.dial_as(token);
        let refused = |error: &LinkError| matches!(error, LinkError::Unauthorized { .. });
        let as_proxy = baton_transport::connect::<ToProxy, FromProxy>(&dial, "/v1/proxy").await;
        assert_eq!(as_proxy.is_ok(), notebook, "{token}");
        assert!(
            as_proxy.err().is_none_or(|error| refused(&error)),
            "{token}"
        );
        let as_worker = baton_transport::connect::<ToWorker, FromWorker>(&dial, "/v1/worker").await;
        assert_eq!(as_worker.is_ok(), worker, "{token}");
        assert!(
            as_worker.err().is_none_or(|error| refused(&error)),
            "{token}"
        );
        let chunk_client = baton_transport::ChunkClient::new(&dial).unwrap();
        let chunk_client = chunk_client.of_owner("said".to_owned(), None);
        let asked = chunk_client.missing(&[baton_chunks::hash(b"x")]).await;
        assert_eq!(asked.is_ok(), notebook, "{token}");
        for path in ["/", "/status", "/v1/workers"] {
            let got = Api::new(&dial).unwrap().get(path).await;
            assert_eq!(got.is_ok(), page, "{token} {path}");
        }
    }
    let nobody = baton_transport::Dial {
        token: None,
        ..broker.dial.clone()
    };
    for path in ["/", "/status", "/live"] {
        let got = Api::new(&nobody).unwrap().get(path).await;
        assert!(matches!(got, Err(LinkError::Unauthorized { .. })), "{path}");
    }
}

#[tokio::test]
async fn without_a_token_of_its_own_a_broker_on_tcp_still_knows_its_people_only() {
    let broker = Broker::start_with(Rules {
        tcp: true,
        people: Some(people()),
        ..Rules::default()
    })
    .await;
    for path in ["/v1/proxy", "/v1/worker"] {
        let refused = baton_transport::connect::<ToProxy, FromProxy>(&broker.dial, path).await;
        assert!(matches!(refused, Err(LinkError::Unauthorized { .. })));
    }
    assert!(Api::new(&broker.dial).unwrap().get("/").await.is_err());
    FakeProxy::new(&broker.dial_as("ada-token")).await;
}

#[tokio::test]
async fn a_notebook_is_for_a_course_of_its_person() {
    let broker = course().await;
    let new = NotebookId::random;
    let refused = |refusal| Some(ToProxy::Refused(refusal));
    let courses = || vec!["ml".to_owned(), "vision".to_owned()];
    assert!(matches!(
        enter(&broker, "ada-token", new(), None).await,
        Some(ToProxy::Welcome { .. })
    ));
    assert!(matches!(
        enter(&broker, "bob-token", new(), Some("vision")).await,
        Some(ToProxy::Welcome { .. })
    ));
    assert_eq!(
        enter(&broker, "bob-token", new(), None).await,
        refused(Refusal::WhichCourse { courses: courses() })
    );
    let course = "physics".to_owned();
    assert_eq!(
        enter(&broker, "bob-token", new(), Some("physics")).await,
        refused(Refusal::NotInCourse {
            course,
            courses: courses()
        })
    );
}

#[tokio::test]
async fn a_notebook_stays_in_its_course_when_its_person_joins_another() {
    let broker = course().await;
    let notebook = NotebookId::random();
    let welcome = enter(&broker, "ada-token", notebook, None).await;
    let Some(ToProxy::Welcome { course, .. }) = welcome else {
        panic!("{welcome:?}");
    };
    assert_eq!(course.as_deref(), Some("ml"));
    let courses = [("ml", Role::Student), ("vision", Role::Student)];
    let file = broker.folder.path().join("people.toml");
    write_private(&file, &person("ada", false, &courses));
    wait_for("the second course", async || {
        let new = enter(&broker, "ada-token", NotebookId::random(), None).await;
        matches!(new, Some(ToProxy::Refused(Refusal::WhichCourse { .. }))).then_some(())
    })
    .await;
    let welcome = enter(&broker, "ada-token", notebook, course.as_deref()).await;
    assert!(
        matches!(welcome, Some(ToProxy::Welcome { .. })),
        "{welcome:?}"
    );
}

#[tokio::test]
async fn nobody_takes_over_the_notebook_of_another() {
    let broker = course().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada-token")).await;
    let job = ada.submit().await;
    let (fencing, _) = worker.assignment().await;
    let answer = enter(&broker, "tia-token", ada.notebook, None).await;
    assert_eq!(answer, Some(ToProxy::Refused(Refusal::NotYours {})));
    // With a notebook of his own, he cannot access another person's job.
    let mut bob = FakeProxy::in_course(&broker.dial_as("bob-token"), "ml").await;
    for message in [
        FromProxy::Resume { job, after: 0 },
        FromProxy::Cancel { job },
        FromProxy::Applied { job },
        FromProxy::Answer {
            job,
            question: 1,
            answer: Answer::Input(None),
        },
    ] {
        bob.send(message).await;
        assert_eq!(bob.next().await, ToProxy::UnknownJob { job });
    }
    ada.assigned(job).await;
    worker
        .report(job, fencing, 1, vec![started(), finished(Outcome::Ok)])
        .await;
    assert_eq!(ada.events_after(job, 1).await.len(), 2);
}

#[tokio::test]
async fn students_see_their_own_jobs_staff_their_courses_admins_all() {
    let broker = course().await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let notebooks = [
        ("ada-token", "ml"),
        ("bob-token", "ml"),
        ("bob-token", "vision"),
    ];
    let mut proxies = Vec::new();
    for round in ["done", "now"] {
        for (number, (token, course)) in notebooks.iter().enumerate() {
            let mut proxy = FakeProxy::in_course(&broker.dial_as(token), course).await;
            let mut cell = submission(proxy.notebook);
            cell.notebook_name = format!("{round}-{number}.ipynb");
            proxy.send(FromProxy::Submit(cell)).await;
            if round == "done" {
                worker.run_to_end().await;
            }
            proxy.expect_news().await;
            proxies.push(proxy);
        }
    }
    for (token, seen) in [
        ("ada-token", [true, false, false]),
        ("bob-token", [false, true, true]),
        ("tia-token", [true, true, false]),
        ("root-token", [true, true, true]),
        ("sesame", [true, true, true]),
    ] {
        let page = broker.get_as(token, "/").await;
        let status = broker.get_as(token, "/status").await;
        for (number, seen) in seen.into_iter().enumerate() {
            for round in ["done", "now"] {
                let name = format!("{round}-{number}.ipynb");
                assert_eq!(page.contains(&name), seen, "{token} {name}");
            }
            let name = format!("now-{number}.ipynb");
            assert_eq!(status.contains(&name), seen, "{token} {name}");
        }
        assert!(
            page.contains("No cell runs, 1 cell starts, 2 cells wait"),
            "{token}"
        );
    }
}

#[tokio::test]
async fn a_changed_file_counts_at_once() {
    let broker = course().await;
    let file = broker.folder.path().join("people.toml");
    let mut ada = FakeProxy::new(&broker.dial_as("ada-token")).await;
    let mut bob = FakeProxy::in_course(&broker.dial_as("bob-token"), "ml").await;
    let mut runs = FakeProxy::in_course(&broker.dial_as("bob-token"), "ml").await;
    let job = runs.submit().await;
    let mut worker = FakeWorker::new(&broker.dial_as("gpu-1-token")).await;
    assert_eq!(worker.run_to_end().await, job);
    // An invalid file changes nothing.
    write_private(&file, "[[person]]\nname = 1\n");
    FakeProxy::new(&broker.dial_as("ada-token")).await;
    let late = person("eve", false, &[]) + &people().replace("name = \"ada\"", "name = \"adele\"");
    write_private(&file, &late);
    FakeProxy::new(&broker.dial_as("eve-token")).await;
    ada.expect_closed().await;
    bob.expect_silence().await;
    write_private(&file, &person("eve", false, &[]));
    bob.expect_closed().await;
    worker.expect_closed().await;
    let gone =
        baton_transport::connect::<ToProxy, FromProxy>(&broker.dial_as("bob-token"), "/v1/proxy")
            .await;
    assert!(matches!(gone, Err(LinkError::Unauthorized { .. })));
}

/// A notebook with a new token of the same person may return for longer.
#[tokio::test]
async fn the_cell_of_a_removed_person_soon_leaves_its_slot() {
    let broker = Broker::start_with(Rules {
        proxy_grace: Duration::ZERO,
        silent_proxy_grace: Duration::from_secs(3600),
        ..rules()
    })
    .await;
    let file = broker.folder.path().join("people.toml");
    let mut worker = FakeWorker::with_slots(&broker.dial, 2).await;
    let mut running = Vec::new();
    for token in ["ada-token", "tia-token"] {
        let mut proxy = FakeProxy::new(&broker.dial_as(token)).await;
        let job = proxy.submit().await;
        let (fencing, _) = worker.assignment().await;
        worker.report(job, fencing, 1, vec![started()]).await;
        running.push((proxy, job, fencing));
    }
    let courses = [("ml".to_owned(), Role::Student)].into();
    let rotated = Person::new("ada".to_owned(), "new-token", false, courses);
    write_private(&file, &rotated.entry());
    for (proxy, _, _) in &mut running {
        proxy.expect_closed_after_news().await;
    }
    let [(ada, adas, fencing), (_, tias, _)] = &running[..] else {
        unreachable!()
    };
    assert_eq!(worker.next().await, ToWorker::Cancel { job: *tias });
    let mut back = FakeProxy::of(&broker.dial_as("new-token"), ada.notebook).await;
    let job = *adas;
    back.send(FromProxy::Resume { job, after: 2 }).await;
    worker
        .report(job, *fencing, 2, vec![finished(Outcome::Ok)])
        .await;
    assert_eq!(back.event(job).await, finished(Outcome::Ok));
}

#[tokio::test]
async fn a_file_that_others_may_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("people.toml");
    std::fs::write(&file, people()).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let path = |name: &str| folder.path().join(name);
    let listen = baton_broker::Listen::Unix(path("broker.sock"));
    let mut config = baton_broker::Config::new(listen, path("broker.db"), path("chunks"));
    config.people = Some(file);
    let error = baton_broker::run(config, drop, std::future::pending())
        .await
        .unwrap_err();
    assert!(
        format!("{error:#}").contains("Other users can read it"),
        "{error:#}"
    );
}

#[tokio::test]
async fn the_csv_has_all_rows() {
    let folder = course().await.stop().await;
    let store = Store::open(&folder.path().join("broker.db").into())
        .await
        .unwrap();
    let now = std::time::SystemTime::now();
    let at_ms = now
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_millis();
    let charge = |number: u32| Write::Charge {
        account: Account {
            owner: format!("p{number}"),
            course: "ml".to_owned(),
        },
        spent: Spent::default(),
        run_ms: 1000,
        at_ms: i64::try_from(at_ms).unwrap(),
    };
    // More than are read at a time.
    let people = 10_001;
    let charges: Vec<Write> = (0..people).map(charge).collect();
    store.apply(&charges).await.unwrap();
    store.close().await.unwrap();
    let broker = Broker::start_in(folder, rules()).await;
    let csv = broker.get_as("root-token", "/people.csv").await;
    let lines: HashSet<&str> = csv.lines().collect();
    assert_eq!(lines.len(), 1 + people as usize);
    let page = broker.get_as("root-token", "/people").await;
    assert!(
        page.contains("<dd class=\"big\">10001</dd>"),
        "the cells of all"
    );
}
