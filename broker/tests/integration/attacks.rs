//! Peers that mean harm: what each is answered, and that a student whose cell runs meanwhile notices nothing.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, Rules, finished, output, outputs, started, state, submission,
    within,
};
use baton_broker::{Person, Role};
use baton_link::{ChunkLane, Connection, LinkError};
use baton_protocol::{
    FencingNumber, JobEvent, JobId, Manifest, NotebookId, Outcome, PROTOCOL_VERSION, Parcel, Piece,
    Refusal, State, Submission, WorkerId,
    proxy::{FromProxy, ToProxy},
    worker::{FromWorker, ToWorker},
};
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

async fn class() -> Broker {
    Broker::start_with(rules()).await
}

fn rules() -> Rules {
    let student = |name: &str| {
        let courses = [("ml".to_owned(), Role::Student)].into();
        Person::new(name.to_owned(), name, false, courses).entry()
    };
    let worker = |name: &str| Person::new_worker(name.to_owned(), name).entry();
    Rules {
        token: Some("sesame"),
        tcp: true,
        people: Some(student("ada") + &student("mallory") + &worker("gpu-1") + &worker("gpu-2")),
        person_limit_bytes: Some(3 << 20),
        ..Rules::default()
    }
}

/// Ada's cell, which prints a line after each attack.
struct Running {
    ada: FakeProxy,
    worker: FakeWorker,
    job: JobId,
    fencing: FencingNumber,
    last: u64,
}

impl Running {
    async fn start(broker: &Broker) -> Self {
        let mut worker = FakeWorker::new(&broker.dial_as("gpu-1")).await;
        let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
        let job = ada.submit().await;
        let (fencing, _) = worker.assignment().await;
        ada.assigned(job).await;
        worker.report(job, fencing, 1, vec![started()]).await;
        ada.event(job).await;
        Self {
            ada,
            worker,
            job,
            fencing,
            last: 1,
        }
    }

    async fn goes_on(&mut self, after: &str) {
        self.last += 1;
        let line = vec![output(after)];
        self.worker
            .report(self.job, self.fencing, self.last, line)
            .await;
        let heard = self.ada.event(self.job).await;
        assert_eq!(outputs(&[heard]), [after]);
    }

    async fn ends(mut self) {
        let end = vec![finished(Outcome::Ok)];
        self.worker
            .report(self.job, self.fencing, self.last + 1, end)
            .await;
        self.ada.events_after(self.job, self.last + 1).await;
    }
}

/// The first line of the answer to these bytes, of which the broker need not read all.
async fn answer_to(broker: &Broker, bytes: Vec<u8>) -> String {
    let address = broker.dial.address.to_string().replacen("http://", "", 1);
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    // It may be closed before all of it is sent.
    let sending = tokio::spawn(async move {
        let sent = writer.write_all(&bytes).await;
        (sent, writer)
    });
    let mut heard = Vec::new();
    let mut part = [0; 4096];
    while !heard.contains(&b'\n') {
        let read = within("an answer", reader.read(&mut part)).await;
        match read.unwrap_or(0) {
            0 => break,
            length => heard.extend_from_slice(&part[..length]),
        }
    }
    sending.abort();
    let heard = String::from_utf8_lossy(&heard).into_owned();
    heard.lines().next().unwrap_or_default().to_owned()
}

fn request(head: &str, token: &[u8], body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{head} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\nauthorization: Bearer ",
        body.len()
    );
    [head.as_bytes(), token, b"\r\n\r\n", body].concat()
}

#[tokio::test]
async fn a_request_that_means_harm_is_answered_and_nothing_else_happens() {
    let broker = class().await;
    let mut running = Running::start(&broker).await;
    let body = vec![0; 100 << 20];
    let many_heads = "x: y\r\n".repeat(5000);
    let long = "x".repeat(1 << 20);
    let cookie = [
        b"GET / HTTP/1.1\r\nhost: x\r\ncookie: baton_signed_in=",
        &b"\xff\xfe\r\n\r\n"[..],
    ]
    .concat();
    let two_lengths = "POST /v1/chunks/get HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/workers";
    for (what, bytes, status) in [
        (
            "a token that is no text",
            request("GET /v1/jobs", b"\xff\xfe\x80", b""),
            "401",
        ),
        ("a cookie that is no text", cookie, "401"),
        (
            "a token in the address that is no text",
            request("GET /?token=%ff%fe", b"", b""),
            "401",
        ),
        (
            "a token of a megabyte",
            request("GET /v1/jobs", long.as_bytes(), b""),
            "431",
        ),
        (
            "an address of a megabyte",
            request(&format!("GET /{long}"), b"ada", b""),
            "4",
        ),
        (
            "five thousand heads",
            format!("GET / HTTP/1.1\r\n{many_heads}\r\n").into_bytes(),
            "431",
        ),
        (
            "something else than HTTP",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n".to_vec(),
            "400",
        ),
        ("two lengths", two_lengths.into(), "4"),
        (
            "100 MB as an action",
            request("POST /v1/workers/gpu-1/drain", b"sesame", &body),
            "413",
        ),
        (
            "100 MB of names",
            request("POST /v1/chunks/missing", b"mallory", &body),
            "413",
        ),
        (
            "100 MB of names to read",
            request("POST /v1/chunks/get", b"mallory", &body),
            "413",
        ),
        (
            "25 million empty chunks",
            request("PUT /v1/chunks", b"mallory", &body),
            "400",
        ),
        (
            "a chunk of 4 GB",
            request("PUT /v1/chunks", b"mallory", &[0xff; 100]),
            "400",
        ),
        (
            "chunks of a notebook that is not theirs",
            request(
                &format!("PUT /v1/chunks?notebook={}", running.ada.notebook),
                b"mallory",
                b"",
            ),
            "403",
        ),
        (
            "the chunks of a notebook by a worker without its job",
            request(
                &format!("PUT /v1/chunks?notebook={}", running.ada.notebook),
                b"gpu-2",
                b"",
            ),
            "409",
        ),
    ] {
        let line = answer_to(&broker, bytes).await;
        assert!(
            line.starts_with(&format!("HTTP/1.1 {status}")),
            "{what}: {line:?}"
        );
        running.goes_on(what).await;
    }
    running.ends().await;
}

#[tokio::test]
async fn a_connection_that_means_harm_is_closed_or_told_and_nothing_else_happens() {
    let broker = class().await;
    let mut running = Running::start(&broker).await;

    let mut endless: Connection<ToProxy, String> =
        baton_link::connect(&broker.dial_as("mallory"), "/v1/proxy")
            .await
            .unwrap();
    // Its sender may be stopped in the middle of it.
    drop(endless.send(&"x".repeat(61 << 20)).await);
    let end = within("an end", endless.receive()).await;
    assert!(
        matches!(end, Ok(None | Some(ToProxy::Refused(_))) | Err(_)),
        "{end:?}"
    );
    running.goes_on("a message of 61 MB").await;

    let mut mallory = FakeProxy::new(&broker.dial_as("mallory")).await;
    let huge = naming_many(20_000);
    let job = submit(&mut mallory, huge).await;
    let end = mallory.events_after(job, 0).await;
    assert!(
        matches!(
            end[..],
            [JobEvent::Finished {
                outcome: Outcome::Refused,
                ..
            }]
        ),
        "{end:?}"
    );
    mallory.say(FromProxy::Applied { job }).await;
    running
        .goes_on("a manifest of chunks that are not theirs")
        .await;

    for theirs in [
        FromProxy::Cancel { job: running.job },
        FromProxy::Resume {
            job: running.job,
            after: 0,
        },
        FromProxy::Applied { job: running.job },
        FromProxy::State {
            job: running.job,
            state: state("another"),
        },
    ] {
        mallory.say(theirs).await;
        assert_eq!(
            mallory.next().await,
            ToProxy::UnknownJob { job: running.job }
        );
    }
    running
        .goes_on("messages about a job of somebody else")
        .await;

    let mut other = FakeWorker::of(
        &broker.dial_as("gpu-2"),
        WorkerId::random(),
        4,
        &[running.ada.notebook],
        &[(running.job, running.fencing)],
    )
    .await;
    let revoked = |job, fencing| ToWorker::Revoke { job, fencing };
    assert_eq!(other.next().await, revoked(running.job, running.fencing));
    other.say(FromWorker::Drain {}).await;
    for (job, fencing) in [
        (running.job, running.fencing),
        (running.job, 99),
        (JobId::random(), 1),
    ] {
        for first in [0, 1, u64::MAX] {
            let end = vec![finished(Outcome::Ok)];
            other
                .say(FromWorker::Events {
                    job,
                    fencing,
                    first,
                    events: end,
                })
                .await;
            assert_eq!(other.next().await, revoked(job, fencing));
        }
    }
    let load = FromWorker::Load {
        memory_bytes: u64::MAX,
        memory_total_bytes: 1,
        jobs: vec![(running.job, u64::MAX); 1000],
        gpus: Vec::new(),
    };
    other.say(load).await;
    let page = broker.get("/").await;
    assert!(page.len() < 200_000, "{}", page.len());
    running.goes_on("a worker that has not what it says").await;

    too_many_cells(&mut mallory).await;
    running.goes_on("cells without end").await;
    running.ends().await;
}

/// One notebook answers without end and the worker that all share reads nothing meanwhile: the notebook is cut off, and
/// the worker goes on where it was.
#[tokio::test]
async fn a_flood_of_answers_costs_its_sender_the_connection_and_not_the_worker() {
    let broker = class().await;
    let mut worker = FakeWorker::with_slots(&broker.dial_as("gpu-1"), 2).await;
    let mut mallory = FakeProxy::new(&broker.dial_as("mallory")).await;
    let theirs = mallory.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker.report(theirs, fencing, 1, vec![started()]).await;
    let answer = "x".repeat(256 << 10);
    let mut heard = Vec::new();
    for question in 1..=1000 {
        let value = Some(answer.clone());
        let input = FromProxy::Input {
            job: theirs,
            question,
            value,
        };
        if mallory.try_say(input).await.is_err() {
            break;
        }
    }
    mallory.expect_closed_after_news().await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    let job = ada.submit().await;
    let (fencing, assigned) = loop {
        match worker.next().await {
            ToWorker::Input { question, .. } => heard.push(question),
            ToWorker::Assign {
                fencing,
                submission,
                ..
            } => break (fencing, submission.job),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(assigned, job);
    assert!((1..1000).contains(&heard.len()), "{}", heard.len());
    worker
        .report(job, fencing, 1, vec![started(), finished(Outcome::Ok)])
        .await;
    ada.events_after(job, 0).await;
}

fn naming_many(chunks: u32) -> State {
    let State::Chunks(manifest) = state("") else {
        unreachable!()
    };
    let piece = |number: u32| Piece::Stored {
        hash: baton_blobs::hash(&number.to_be_bytes()),
        bytes: 1,
    };
    State::Chunks(Manifest {
        stream: (0..chunks).map(piece).collect(),
        ..manifest
    })
}

async fn submit(proxy: &mut FakeProxy, state: State) -> JobId {
    let submission = Submission {
        state,
        notebook_name: "n".repeat(1 << 20),
        ..submission(proxy.notebook)
    };
    let job = submission.job;
    proxy.say(FromProxy::Submit(submission)).await;
    job
}

/// The first hundred are in line, each behind the one before it, and the others are refused.
async fn too_many_cells(mallory: &mut FakeProxy) {
    let mut jobs = Vec::new();
    for _ in 0..110 {
        jobs.push(submit(mallory, state("")).await);
    }
    let mut refused = Vec::new();
    while refused.len() < 10 {
        if let ToProxy::Events { job, events } = mallory.next().await {
            let JobEvent::Finished {
                error: Some(error), ..
            } = &events[0].event
            else {
                panic!("{events:?}")
            };
            assert!(
                error.value.contains("variables are as they were"),
                "{error:?}"
            );
            refused.push(job);
        }
    }
    assert_eq!(refused, jobs[100..]);
}

/// Her session is still warm on the worker, so whoever had her notebook would have her variables.
#[tokio::test]
async fn nobody_takes_a_notebook_while_its_proxy_is_away() {
    let first = class().await;
    let mut worker = FakeWorker::new(&first.dial_as("gpu-1")).await;
    let mut ada = FakeProxy::new(&first.dial_as("ada")).await;
    let notebook = ada.notebook;
    let job = ada.submit().await;
    assert_eq!(worker.run_to_end().await, job);
    ada.events_after(job, 0).await;
    ada.say(FromProxy::Applied { job }).await;
    ada.expect_silence().await;
    drop(ada);
    let folder = first.stop().await;

    let second = Broker::start_in(folder, rules()).await;
    let dial = second.dial_as("gpu-1");
    let mut worker = FakeWorker::of(&dial, worker.id, 1, &[notebook], &[]).await;
    for _ in 0..2 {
        let mut thief: Connection<ToProxy, FromProxy> =
            baton_link::connect(&second.dial_as("mallory"), "/v1/proxy")
                .await
                .unwrap();
        let hello = FromProxy::Hello {
            protocol_version: PROTOCOL_VERSION,
            notebook,
            owner: "ada".to_owned(),
            course: None,
        };
        thief.send(&hello).await.unwrap();
        let answer = within("an answer", thief.receive()).await.unwrap();
        assert_eq!(answer, Some(ToProxy::Refused(Refusal::NotYours {})));
        // Also after Ada has closed her notebook.
        let mut ada = FakeProxy::of(&second.dial_as("ada"), notebook).await;
        let job = ada.submit().await;
        assert_eq!(worker.run_to_end().await, job);
        ada.events_after(job, 0).await;
        ada.say(FromProxy::Goodbye {}).await;
        assert_eq!(worker.next().await, ToWorker::EndSession { notebook });
    }
}

/// A cell with this much code.
fn with_code(notebook: NotebookId, bytes: usize) -> Submission {
    let mut submission = submission(notebook);
    submission.cell.code = "#".repeat(bytes);
    submission
}

async fn refused(proxy: &mut FakeProxy, submission: Submission) -> String {
    let job = submission.job;
    proxy.say(FromProxy::Submit(submission)).await;
    match &proxy.events_after(job, 0).await[..] {
        [
            JobEvent::Finished {
                outcome: Outcome::Refused,
                error: Some(error),
                ..
            },
        ] => {
            assert!(error.value.contains("variables are as they were"));
            error.value.clone()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_cell_larger_than_any_program_is_not_stored() {
    let broker = class().await;
    let mut running = Running::start(&broker).await;
    let mut mallory = FakeProxy::new(&broker.dial_as("mallory")).await;
    let stored = broker.folder.path().join("broker.db-wal");
    let before = stored.metadata().unwrap().len();
    for _ in 0..3 {
        let huge = with_code(mallory.notebook, 20 << 20);
        let why = refused(&mut mallory, huge).await;
        assert!(
            why.contains("20.0 MiB, and a cell may have 1.0 MiB"),
            "{why}"
        );
    }
    let mut wordy = submission(mallory.notebook);
    wordy.cell.folder = "/long".repeat(100_000);
    let why = refused(&mut mallory, wordy).await;
    assert!(why.contains("too long"), "{why}");
    assert!(stored.metadata().unwrap().len() < before + (1 << 20));
    running.goes_on("cells of 20 MB").await;

    // What waits counts like what is stored: the class gives each of them 3 MiB.
    for _ in 0..2 {
        let large = with_code(mallory.notebook, 1 << 20);
        mallory.say(FromProxy::Submit(large)).await;
        assert!(matches!(mallory.next().await, ToProxy::Place { .. }));
    }
    let third = with_code(mallory.notebook, 1 << 20);
    let why = refused(&mut mallory, third).await;
    assert!(why.contains("you may store 3.0 MiB"), "{why}");
    let bytes = bytes::Bytes::from(vec![7; 1 << 20]);
    let lane = ChunkLane::new(&broker.dial_as("mallory")).unwrap();
    let full = lane
        .put(&[(baton_blobs::hash(&bytes), bytes.clone())])
        .await;
    assert!(matches!(full, Err(LinkError::StoreFull { .. })), "{full:?}");
    let lane = ChunkLane::new(&broker.dial_as("ada")).unwrap();
    lane.put(&[(baton_blobs::hash(&bytes), bytes)])
        .await
        .unwrap();
    running.goes_on("more cells than a person may store").await;
    running.ends().await;
}

/// The names of chunks that somebody holds, with sizes that they do not have.
#[tokio::test]
async fn a_manifest_says_the_sizes_that_its_chunks_have() {
    let broker = class().await;
    let mut running = Running::start(&broker).await;
    let bytes = bytes::Bytes::from_static(b"one byte less than is said");
    let (hash, length) = (baton_blobs::hash(&bytes), bytes.len() as u32);
    let lane = ChunkLane::new(&broker.dial_as("mallory")).unwrap();
    lane.put(&[(hash, bytes)]).await.unwrap();
    let mut mallory = FakeProxy::new(&broker.dial_as("mallory")).await;
    for bytes in [length + 1, length - 1, u32::MAX] {
        let State::Chunks(manifest) = state("") else {
            unreachable!()
        };
        let state = State::Chunks(Manifest {
            stream: vec![Piece::Stored { hash, bytes }; 1000],
            ..manifest
        });
        let lies = Submission {
            state,
            ..submission(mallory.notebook)
        };
        let why = refused(&mut mallory, lies).await;
        assert!(why.contains("does not have everything"), "{why}");
        running.goes_on("a manifest that lies").await;
    }
    running.ends().await;
}

/// A connection as a notebook of this person, on which whatever follows is said byte by byte.
async fn raw_notebook(broker: &Broker, token: &str) -> TcpStream {
    let address = broker.dial.address.to_string().replacen("http://", "", 1);
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "GET /v1/proxy HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\
         authorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut heard = Vec::new();
    while !heard.ends_with(b"\r\n\r\n") {
        heard.push(within("an upgrade", stream.read_u8()).await.unwrap());
    }
    assert!(heard.starts_with(b"HTTP/1.1 101"), "{heard:?}");
    stream
}

/// Begins a message of 50 MB, and sends 30 MB of it.
async fn begin_large(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut head = vec![0x82, 0xff];
    head.extend((50_u64 << 20).to_be_bytes());
    head.extend([0; 4]);
    stream.write_all(&head).await?;
    let part = vec![0; 1 << 20];
    for _ in 0..30 {
        within("a part", stream.write_all(&part)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn messages_that_are_never_whole_take_no_more_than_one_person_may_have() {
    let broker = class().await;
    let mut running = Running::start(&broker).await;
    let mut open = Vec::new();
    for _ in 0..4 {
        let mut stream = raw_notebook(&broker, "mallory").await;
        begin_large(&mut stream).await.unwrap();
        open.push(stream);
    }
    let mut fifth = raw_notebook(&broker, "mallory").await;
    // The broker may close it before all of it is sent.
    drop(begin_large(&mut fifth).await);
    let mut part = [0; 1024];
    while let Ok(1..) = within("an end", fifth.read(&mut part)).await {}
    running
        .goes_on("150 MB of messages that are not whole")
        .await;
    // Large messages of others have room.
    let mut large = submission(running.ada.notebook);
    large.cell.code = "#".repeat(1 << 20);
    running.ada.say(FromProxy::Submit(large)).await;
    assert!(matches!(running.ada.next().await, ToProxy::Place { .. }));
    running.goes_on("a large cell").await;

    drop(open);
    // Her room is hers again as soon as the broker has noticed.
    within("room", async {
        loop {
            let mut again = raw_notebook(&broker, "mallory").await;
            if begin_large(&mut again).await.is_ok() {
                return;
            }
        }
    })
    .await;
    running.ends().await;
}

#[tokio::test]
async fn connections_without_a_token_hold_up_nobody() {
    let broker = class().await;
    let mut running = Running::start(&broker).await;
    let address = broker.dial.address.to_string().replacen("http://", "", 1);
    let mut silent = Vec::new();
    for _ in 0..400 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    running
        .goes_on("four hundred connections that say nothing")
        .await;
    // Most of them are closed at once, and the others make room soon for whoever comes from the same address.
    let mut closed = 0;
    let mut part = [0];
    for stream in &mut silent[288..] {
        let end = within("an end", stream.read(&mut part)).await;
        closed += usize::from(matches!(end, Ok(0) | Err(_)));
    }
    assert_eq!(closed, 112);
    running.goes_on("they are closed").await;
    drop(silent);
    let mut mallory = FakeProxy::new(&broker.dial_as("mallory")).await;
    mallory.expect_silence().await;
    running.ends().await;
}

#[tokio::test]
async fn answers_for_a_worker_that_is_away_take_bounded_memory() {
    let broker = Broker::start_with(Rules {
        worker_grace: Duration::from_secs(30),
        ..rules()
    })
    .await;
    let mut worker = FakeWorker::new(&broker.dial_as("gpu-1")).await;
    let mut mallory = FakeProxy::new(&broker.dial_as("mallory")).await;
    let job = mallory.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker.report(job, fencing, 1, vec![started()]).await;
    drop(worker);
    within("an absence", async {
        while !broker.get("/v1/workers").await.contains("\"away\"") {}
    })
    .await;
    for question in 1..=100 {
        let answer = Parcel(vec![Piece::Inline(vec![0; 8 << 20].into())]);
        let answer = FromProxy::Files {
            job,
            question,
            answer,
        };
        if mallory.try_say(answer).await.is_err() {
            assert!(question > 8);
            break;
        }
    }
    mallory.expect_closed_after_news().await;
}
