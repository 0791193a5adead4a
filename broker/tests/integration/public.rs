//! Public files of a course: who can publish them, who can then read them, and who never can.

use crate::{
    actions::{done, post},
    api::{answer, every, get, problem},
    chunks::{chunk, fetched, naming, submit},
    harness::{Broker, FakeProxy, FakeWorker, Rules, finished, started},
};
use baton_broker::{ObjectOptions, Person, Role};
use baton_object_store_tests::Kind;
use baton_postgres_tests::{Disk, Server};
use baton_protocol::{
    CHUNK_BYTES, ChunkHash, Outcome,
    api::{Act, Action, Page, PublicFile},
};
use baton_transport::ChunkClient;
use bytes::Bytes;
use serde_json::json;

const FILES: &str = "/v1/courses/ml/files";

fn rules(database: Option<String>) -> Rules {
    let person = |name: &str, course: &str, role| {
        let courses = [(course.to_owned(), role)].into();
        Person::new(name.to_owned(), name, course == "all", courses).entry()
    };
    let students = ["ada", "bob", "cy", "dee"].map(|name| person(name, "ml", Role::Student));
    let people = [
        person("tia", "ml", Role::Staff),
        person("vic", "vision", Role::Student),
        person("tom", "vision", Role::Staff),
        person("root", "all", Role::Staff),
    ];
    Rules {
        token: Some("sesame"),
        tcp: true,
        people: Some(students.concat() + &people.concat()),
        person_limit_bytes: Some(3 << 20),
        database,
        ..Rules::default()
    }
}

#[tokio::test]
async fn what_staff_publish_their_course_has_and_nobody_else() {
    let server = Server::start(Disk::NoSync);
    for database in [None, Some(server.url())] {
        from_published_to_withdrawn(rules(database)).await;
    }
}

#[tokio::test]
async fn what_staff_publish_from_an_object_store_their_course_has_and_nobody_else() {
    let server = Server::start(Disk::NoSync);
    let kinds = [
        (Kind::S3, None),
        (Kind::S3, Some(server.url())),
        (Kind::Azure, None),
        (Kind::Google, None),
    ];
    for (kind, database) in kinds {
        let store = baton_object_store_tests::Server::of(kind);
        let objects = (store.address(), ObjectOptions::of(store.variables()));
        from_published_to_withdrawn(Rules {
            objects: Some(objects),
            ..rules(database)
        })
        .await;
    }
}

async fn from_published_to_withdrawn(rules: Rules) {
    let broker = Broker::start_with(rules.clone()).await;
    let chunk_client =
        |broker: &Broker, token: &str| ChunkClient::new(&broker.dial_as(token)).unwrap();
    let data: Vec<(ChunkHash, Bytes)> = (0..3).map(|seed| chunk(seed, CHUNK_BYTES)).collect();
    let hashes: Vec<ChunkHash> = data.iter().map(|(hash, _)| *hash).collect();
    let secret = chunk(9, 1000);
    chunk_client(&broker, "tia").put(&data).await.unwrap();
    let of_ada = chunk_client(&broker, "ada");
    of_ada.put(std::slice::from_ref(&secret)).await.unwrap();

    // Only staff of the course who have uploaded the chunks can make them public.
    let file = |name: &str, chunks: &[ChunkHash]| {
        let chunks: Vec<String> = chunks.iter().map(ChunkHash::to_string).collect();
        json!({"name": name, "chunks": chunks})
    };
    let stolen = file("stolen", &[hashes[0], secret.0]);
    let absent = file("stolen", &[hashes[0], chunk(8, 1000).0]);
    let two = file("data.npy", &hashes[..2]);
    let mut control = two.clone();
    control["name"] = json!("a\nb");
    let mut more = two.clone();
    more["course"] = json!("vision");
    for (token, path, body, kind) in [
        ("ada", FILES, &two, "forbidden"),
        ("tom", FILES, &two, "unknown-course"),
        ("tia", "/v1/courses/vision/files", &two, "unknown-course"),
        ("tia", "/v1/courses/none/files", &two, "unknown-course"),
        ("tia", FILES, &stolen, "chunks-missing"),
        ("tia", FILES, &absent, "chunks-missing"),
        ("root", FILES, &two, "chunks-missing"),
        ("sesame", FILES, &two, "chunks-missing"),
        ("tia", FILES, &file("data.npy", &[]), "body"),
        (
            "tia",
            FILES,
            &json!({"name": "x", "chunks": ["ff"]}),
            "body",
        ),
        ("tia", FILES, &control, "body"),
        ("tia", FILES, &more, "body"),
    ] {
        let refused = problem(post(&broker, token, path, body.clone()).await).await;
        assert_eq!(refused.kind, format!("urn:baton:{kind}"), "{token} {body}");
    }
    let told = async |body| problem(post(&broker, "tia", FILES, body).await).await;
    assert_eq!(told(stolen).await, told(absent).await);
    let of_bob = chunk_client(&broker, "bob");
    let named: Vec<ChunkHash> = hashes.iter().copied().chain([secret.0]).collect();
    assert_eq!(of_bob.missing(&named).await.unwrap(), named);

    // Now everyone in the course can read it, and so can their jobs.
    let published = done(&broker, "tia", FILES, two).await;
    assert_eq!(
        (
            &published["bytes"],
            &published["chunks"],
            &published["person"]
        ),
        (&json!(2 << 20), &json!(2), &json!("tia"))
    );
    assert_eq!(of_bob.missing(&hashes).await.unwrap(), &hashes[2..]);
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut cy = FakeProxy::new(&broker.dial_as("cy")).await;
    let job = submit(&mut cy, naming(&data[1])).await.job;
    let (fencing, submission) = worker.assignment().await;
    let of_job = chunk_client(&broker, "sesame").of_notebook(submission.notebook);
    assert_eq!(fetched(&of_job, &hashes[..2]).await.unwrap(), &data[..2]);
    let ends = vec![started(), finished(Outcome::Ok)];
    worker.report(job, fencing, 1, ends).await;
    cy.events_after(job, 0).await;
    // For another course, neither the file nor the list exists.
    for token in ["vic", "tom"] {
        let foreign = chunk_client(&broker, token);
        assert_eq!(foreign.missing(&hashes).await.unwrap(), hashes, "{token}");
        let nothing = fetched(&foreign, &[chunk(8, 1000).0]).await.unwrap_err();
        let read = fetched(&foreign, &hashes[..1]).await.unwrap_err();
        assert_eq!(read.to_string(), nothing.to_string(), "{token}");
        assert_eq!(answer(&broker, token, FILES).await.status(), 404, "{token}");
    }
    let in_course = chunk_client(&broker, "vic").of_owner("vic".to_owned(), Some("ml".to_owned()));
    assert!(in_course.missing(&hashes).await.is_err());

    // A course may have as many public bytes as a person may hold.
    let root = chunk_client(&broker, "root").of_owner("root".to_owned(), Some("ml".to_owned()));
    let others: Vec<(ChunkHash, Bytes)> = (4..6).map(|seed| chunk(seed, CHUNK_BYTES)).collect();
    root.put(&others).await.unwrap();
    let other = file("other", &[others[0].0, others[1].0]);
    let full = problem(post(&broker, "root", FILES, other).await).await;
    assert_eq!(full.kind, "urn:baton:public-limit");

    // Files survive a restart. A file replaces one of the same name, and chunks that another file names remain.
    let broker = Broker::start_in(broker.stop().await, rules).await;
    let fresh = chunk_client(&broker, "dee");
    assert_eq!(fetched(&fresh, &hashes[..2]).await.unwrap(), &data[..2]);
    done(&broker, "tia", FILES, file("data.npy", &hashes[1..])).await;
    assert!(fetched(&fresh, &hashes[..1]).await.is_err());
    assert_eq!(fetched(&fresh, &hashes[1..]).await.unwrap(), &data[1..]);
    done(&broker, "tia", FILES, file("more.npy", &hashes[2..])).await;
    let listed: Page<PublicFile> = get(&broker, "bob", FILES).await;
    let names: Vec<&str> = listed.items.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["data.npy", "more.npy"]);
    let withdraw = format!("{FILES}/withdraw");
    let gone = json!({"name": "data.npy"});
    for (token, kind) in [("bob", "forbidden"), ("tom", "unknown-course")] {
        let refused = problem(post(&broker, token, &withdraw, gone.clone()).await).await;
        assert_eq!(refused.kind, format!("urn:baton:{kind}"), "{token}");
    }
    let left = done(&broker, "tia", &withdraw, gone.clone()).await;
    assert_eq!(left["items"][0]["name"], "more.npy");
    assert!(fetched(&fresh, &hashes[1..2]).await.is_err());
    assert_eq!(fetched(&fresh, &hashes[2..]).await.unwrap(), &data[2..]);
    let unknown = problem(post(&broker, "root", &withdraw, gone).await).await;
    assert_eq!(unknown.kind, "urn:baton:unknown-file");
    // A person who had requested it still holds it.
    assert_eq!(
        fetched(&chunk_client(&broker, "bob"), &hashes[1..2])
            .await
            .unwrap(),
        &data[1..2]
    );

    let acts = async |token: &str| {
        let acts: Vec<Act> = every(&broker, token, "/v1/audit?limit=9").await;
        acts.into_iter()
            .map(|act| (act.action, act.subject))
            .collect::<Vec<_>>()
    };
    let done_by = |action, name: &str| (action, name.to_owned());
    let all = [
        done_by(Action::Withdraw, "data.npy"),
        done_by(Action::Publish, "more.npy"),
        done_by(Action::Publish, "data.npy"),
        done_by(Action::Publish, "data.npy"),
    ];
    assert_eq!(acts("tia").await, all);
    assert_eq!(acts("tom").await, []);
}
