//! The *http* transport.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, Rules, finished, started, state, submission, within,
};
use baton_broker::{Person, Role};
use baton_chunks::hash;
use baton_postgres_tests::{Disk, Server};
use baton_protocol::{
    Answer, CHUNK_BYTES, ChunkHash, Finished, JobEvent, Manifest, NotebookId, Outcome, Piece,
    State, Submission, api::Problem, proxy::FromProxy, worker::ToWorker,
};
use baton_transport::{ChunkClient, LinkError};
use bytes::Bytes;

pub(crate) fn chunk(seed: u8, bytes: usize) -> (ChunkHash, Bytes) {
    let content: Bytes = (0..bytes)
        .map(|index| seed.wrapping_add(u8::try_from(index % 251).unwrap()))
        .collect();
    (hash(&content), content)
}

fn chunk_client(broker: &Broker) -> ChunkClient {
    let chunk_client = ChunkClient::new(&broker.dial).unwrap();
    chunk_client.of_owner("ada".to_owned(), None)
}

pub(crate) async fn fetched(
    chunk_client: &ChunkClient,
    hashes: &[ChunkHash],
) -> Result<Vec<(ChunkHash, Bytes)>, LinkError> {
    let mut chunks = Vec::new();
    chunk_client
        .get(hashes, |hash, bytes| {
            chunks.push((hash, bytes));
            Ok(())
        })
        .await?;
    Ok(chunks)
}

#[tokio::test]
async fn only_missing_chunks_are_wanted_and_what_was_put_comes_back() {
    let broker = Broker::start().await;
    let chunk_client = chunk_client(&broker);
    let chunks: Vec<_> = (0..20)
        .map(|seed| chunk(seed, if seed == 7 { 3 } else { CHUNK_BYTES }))
        .collect();
    let hashes: Vec<ChunkHash> = chunks.iter().map(|(hash, _)| *hash).collect();
    assert_eq!(chunk_client.missing(&hashes).await.unwrap(), hashes);
    chunk_client.put(&chunks[..10]).await.unwrap();
    assert_eq!(chunk_client.missing(&hashes).await.unwrap(), hashes[10..]);
    chunk_client.put(&chunks[10..]).await.unwrap();
    assert_eq!(fetched(&chunk_client, &hashes).await.unwrap(), chunks);
}

#[tokio::test]
async fn an_unknown_chunk_is_said_to_be_unknown() {
    let broker = Broker::start().await;
    let chunk_client = chunk_client(&broker);
    let known = chunk(1, 100);
    chunk_client
        .put(std::slice::from_ref(&known))
        .await
        .unwrap();
    let (unknown, _) = chunk(2, 100);
    let error = fetched(&chunk_client, &[known.0, unknown])
        .await
        .unwrap_err();
    assert!(matches!(error, LinkError::UnknownChunk), "{error:?}");
}

#[tokio::test]
async fn a_full_store_says_so() {
    let rules = Rules {
        chunks_limit_bytes: 3 << 20,
        ..Rules::default()
    };
    let broker = Broker::start_with(rules).await;
    let chunk_client = chunk_client(&broker);
    let chunks: Vec<_> = (0..5).map(|seed| chunk(seed, CHUNK_BYTES)).collect();
    match chunk_client.put(&chunks).await {
        Err(LinkError::StoreFull { text }) => assert!(text.contains("no room"), "{text}"),
        other => panic!("{other:?}"),
    }
    // The chunks that fitted are stored, and everything else continues.
    assert!(
        chunk_client
            .missing(&[chunks[0].0])
            .await
            .unwrap()
            .is_empty()
    );
}

/// A folder with many short chunks is larger than their bytes.
#[tokio::test]
async fn short_chunks_count_as_four_kibibytes_each() {
    let rules = Rules {
        person_limit_bytes: Some(40_000),
        ..Rules::default()
    };
    let broker = Broker::start_with(rules).await;
    let chunk_client = chunk_client(&broker);
    let chunks: Vec<_> = (0..10).map(|seed| chunk(seed, 3)).collect();
    chunk_client.put(&chunks[..9]).await.unwrap();
    // Sent again, they take no additional space.
    chunk_client.put(&chunks[..9]).await.unwrap();
    match chunk_client.put(&chunks[9..]).await {
        Err(LinkError::StoreFull { text }) => assert!(text.contains("Quota exceeded"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_chunk_that_is_too_large_or_cut_is_refused() {
    let rules = Rules {
        tcp: true,
        ..Rules::default()
    };
    let broker = Broker::start_with(rules).await;
    let url = format!("{}/v1/chunks?owner=ada", broker.dial.address);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let put = async |body: Vec<u8>| {
        let answer = client.put(&url).body(body).send().await.unwrap();
        let kind = &answer.headers()["content-type"];
        assert_eq!(kind, "application/problem+json");
        let status = answer.status().as_u16();
        let problem = answer.text().await.unwrap();
        let problem: Problem = serde_json::from_str(&problem).unwrap();
        assert_eq!(problem.status, status);
        (status, problem.detail)
    };
    let too_large = put(vec![0, 0x10, 0, 1, 0]).await;
    assert_eq!(too_large.0, 400);
    assert!(too_large.1.contains("at most 1048576"), "{too_large:?}");
    let cut = put(vec![0, 0, 0, 9, 1, 2]).await;
    assert_eq!(cut.0, 400);
    assert!(cut.1.contains("inside a chunk"), "{cut:?}");
}

/// Six students, one of them in another course. The token of each is the name.
pub(crate) fn class() -> String {
    let person = |name: &str, course: &str| {
        let courses = [(course.to_owned(), Role::Student)].into();
        Person::new(name.to_owned(), name, false, courses).entry()
    };
    let students = ["ada", "bob", "cy", "dee", "eve", "fay"];
    let entries = students.map(|name| person(name, "ml"));
    entries.concat() + &person("vic", "vision")
}

async fn broker_of_a_class(database: Option<String>) -> Broker {
    let rules = Rules {
        token: Some("sesame"),
        people: Some(class()),
        database,
        person_limit_bytes: Some(3 << 20),
        ..Rules::default()
    };
    Broker::start_with(rules).await
}

fn chunk_client_of(broker: &Broker, token: &str) -> ChunkClient {
    ChunkClient::new(&broker.dial_as(token)).unwrap()
}

pub(crate) fn naming(chunk: &(ChunkHash, Bytes)) -> State {
    let State::Chunks(manifest) = state("") else {
        unreachable!()
    };
    let (hash, bytes) = (chunk.0, u32::try_from(chunk.1.len()).unwrap());
    State::Chunks(Manifest {
        stream: vec![Piece::Stored { hash, bytes }],
        ..manifest
    })
}

pub(crate) async fn submit(proxy: &mut FakeProxy, state: State) -> Submission {
    let submission = Submission {
        state,
        ..submission(proxy.notebook)
    };
    proxy.send(FromProxy::Submit(submission.clone())).await;
    submission
}

#[tokio::test]
async fn nobody_gets_at_the_chunks_of_another_person() {
    let server = Server::start(Disk::NoSync);
    for database in [None, Some(server.url())] {
        nobody_cheats(&broker_of_a_class(database).await).await;
    }
}

async fn nobody_cheats(broker: &Broker) {
    let secret = chunk(1, 1000);
    let ada = chunk_client_of(broker, "ada");
    ada.put(std::slice::from_ref(&secret)).await.unwrap();
    assert_eq!(ada.missing(&[secret.0]).await.unwrap(), []);

    let on_any_notebook = NotebookId::random();
    let as_ada =
        |chunk_client: ChunkClient| chunk_client.of_owner("ada".to_owned(), Some("ml".to_owned()));
    let cheats = [
        ("somebody of the course", chunk_client_of(broker, "bob")),
        ("somebody of another course", chunk_client_of(broker, "vic")),
        (
            "somebody who says to be ada",
            as_ada(chunk_client_of(broker, "bob")),
        ),
        (
            "ada's course, of another one",
            chunk_client_of(broker, "vic").of_owner("vic".to_owned(), Some("ml".to_owned())),
        ),
        (
            "a student who says to be a worker",
            chunk_client_of(broker, "bob").of_notebook(on_any_notebook),
        ),
        (
            "a worker that has no job of this notebook",
            chunk_client_of(broker, "sesame").of_notebook(on_any_notebook),
        ),
        (
            "a worker that names nobody",
            chunk_client_of(broker, "sesame"),
        ),
    ];
    for (who, chunk_client) in cheats {
        // The response is the same for another account's chunk and for a missing one.
        let nothing = chunk(2, 1000).0;
        let answers = [secret.0, nothing].map(async |hash| {
            let asked = chunk_client.missing(&[hash]).await;
            let read = fetched(&chunk_client, &[hash]).await;
            assert!(read.is_err(), "{who} read it");
            assert_ne!(asked.as_deref().ok(), Some(&[][..]), "{who} was told of it");
            (asked.is_ok(), read.unwrap_err().to_string())
        });
        let [foreign, nothing] = answers;
        assert_eq!(foreign.await, nothing.await, "{who}");
    }

    // A job that names it is assigned to no worker. Nor is an answer with it forwarded.
    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut bob = FakeProxy::new(&broker.dial_as("bob")).await;
    let job = submit(&mut bob, naming(&secret)).await.job;
    let ends = bob.events_after(job, 0).await;
    let [JobEvent::Finished(Finished { outcome, error, .. })] = &ends[..] else {
        panic!("{ends:?}")
    };
    assert_eq!(*outcome, Outcome::Refused);
    let words = &error.as_ref().unwrap().value;
    assert!(words.contains("variables are as they were"), "{words}");
    let honest = submit(&mut bob, state("honest")).await.job;
    let (fencing, _) = worker.assignment().await;
    bob.assigned(honest).await;
    let question = JobEvent::NamesWanted {
        question: 1,
        names: vec!["x".to_owned()],
    };
    worker
        .report(honest, fencing, 1, vec![started(), question])
        .await;
    bob.batch(honest).await;
    let state = naming(&secret);
    let names = FromProxy::Answer {
        job: honest,
        question: 1,
        answer: Answer::Names(state),
    };
    bob.send(names).await;
    assert_eq!(worker.next().await, ToWorker::Cancel { job: honest });
    let end = vec![finished(Outcome::Cancelled)];
    worker.report(honest, fencing, 3, end).await;
    bob.events_after(honest, 3).await;
    bob.send(FromProxy::Applied { job: honest }).await;

    // Its owner may name it. So the worker that has the job can read it and upload the result, and
    // later has no access.
    let mut proxy = FakeProxy::new(&broker.dial_as("ada")).await;
    let job = submit(&mut proxy, naming(&secret)).await.job;
    let (fencing, submission) = worker.assignment().await;
    let chunk_client = chunk_client_of(broker, "sesame").of_notebook(submission.notebook);
    assert_eq!(
        fetched(&chunk_client, &[secret.0]).await.unwrap(),
        std::slice::from_ref(&secret)
    );
    let result = chunk(3, 500);
    chunk_client
        .put(std::slice::from_ref(&result))
        .await
        .unwrap();
    worker
        .report(job, fencing, 1, vec![started(), finished(Outcome::Ok)])
        .await;
    assert_eq!(
        fetched(&ada, &[result.0]).await.unwrap(),
        std::slice::from_ref(&result)
    );
    proxy.events_after(job, 0).await;
    proxy.send(FromProxy::Applied { job }).await;
    within("the end of the job", async {
        while fetched(&chunk_client, &[secret.0]).await.is_ok() {}
    })
    .await;

    // A chunk that five people of a course have uploaded independently belongs to the course. Four
    // are not enough.
    for (already, name) in ["bob", "cy", "dee", "eve"].into_iter().enumerate() {
        let fay = chunk_client_of(broker, "fay")
            .missing(&[secret.0])
            .await
            .unwrap();
        assert_eq!(fay, [secret.0], "{already}");
        let chunk_client = chunk_client_of(broker, name);
        chunk_client
            .put(std::slice::from_ref(&secret))
            .await
            .unwrap();
    }
    let fay = chunk_client_of(broker, "fay");
    assert_eq!(fay.missing(&[secret.0]).await.unwrap(), []);
    assert_eq!(
        fetched(&fay, &[secret.0]).await.unwrap(),
        std::slice::from_ref(&secret)
    );
    let vic = chunk_client_of(broker, "vic")
        .missing(&[secret.0])
        .await
        .unwrap();
    assert_eq!(vic, [secret.0]);
}

#[tokio::test]
async fn one_person_cannot_fill_the_store() {
    let broker = broker_of_a_class(None).await;
    let chunks: Vec<_> = (0..4).map(|seed| chunk(seed, CHUNK_BYTES)).collect();
    let ada = chunk_client_of(&broker, "ada");
    ada.put(&chunks[..3]).await.unwrap();
    // Chunks that already exist need no room.
    ada.put(&chunks[..3]).await.unwrap();
    match ada.put(&chunks[3..]).await {
        Err(LinkError::StoreFull { text }) => {
            let said = "Quota exceeded: ada uses 3 MiB of 3 MiB";
            assert!(text.starts_with(said), "{text}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(ada.missing(&[chunks[3].0]).await.unwrap(), [chunks[3].0]);
    chunk_client_of(&broker, "bob")
        .put(&chunks[3..])
        .await
        .unwrap();
}
