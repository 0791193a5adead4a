//! Malicious peers: the response to each, and proof that they do not affect another student's running cell.

use crate::harness::{
    Broker, FakeProxy, FakeWorker, Rules, finished, output, outputs, started, state, submission,
    within,
};
use baton_broker::{Person, Role};
use baton_protocol::{
    Answer, FencingNumber, Finished, JobEvent, JobId, Manifest, Outcome, Piece, Refusal, State,
    Submission, WorkerId,
    proxy::{FromProxy, ToProxy},
    worker::{FromWorker, ToWorker},
};
use baton_transport::Connection;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

pub(crate) async fn class() -> Broker {
    Broker::start_with(rules()).await
}

pub(crate) fn rules() -> Rules {
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
pub(crate) struct Running {
    pub(crate) ada: FakeProxy,
    pub(crate) worker: FakeWorker,
    pub(crate) job: JobId,
    pub(crate) fencing: FencingNumber,
    pub(crate) last: u64,
}

impl Running {
    pub(crate) async fn start(broker: &Broker) -> Self {
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

    pub(crate) async fn goes_on(&mut self, after: &str) {
        self.last += 1;
        let line = vec![output(after)];
        self.worker
            .report(self.job, self.fencing, self.last, line)
            .await;
        let heard = self.ada.event(self.job).await;
        assert_eq!(outputs(&[heard]), [after]);
    }

    pub(crate) async fn ends(mut self) {
        let end = vec![finished(Outcome::Ok)];
        self.worker
            .report(self.job, self.fencing, self.last + 1, end)
            .await;
        self.ada.events_after(self.job, self.last + 1).await;
    }
}

/// The first line of the response to these bytes. The broker need not read all of them.
async fn answer_to(broker: &Broker, bytes: Vec<u8>) -> String {
    let address = broker.dial.address.to_string().replacen("http://", "", 1);
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    // The connection may be closed before everything is sent.
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
        baton_transport::connect(&broker.dial_as("mallory"), "/v1/proxy")
            .await
            .unwrap();
    // The connection may be closed in the middle of it.
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
            [JobEvent::Finished(Finished {
                outcome: Outcome::Refused,
                ..
            })]
        ),
        "{end:?}"
    );
    mallory.send(FromProxy::Applied { job }).await;
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
        FromProxy::Answer {
            job: running.job,
            question: 1,
            answer: Answer::State(state("another")),
        },
    ] {
        mallory.send(theirs).await;
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
    other.send(FromWorker::Drain {}).await;
    for (job, fencing) in [
        (running.job, running.fencing),
        (running.job, 99),
        (JobId::random(), 1),
    ] {
        for first in [0, 1, u64::MAX] {
            let end = vec![finished(Outcome::Ok)];
            other
                .send(FromWorker::Events {
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
    other.send(load).await;
    let page = broker.get("/").await;
    assert!(page.len() < 200_000, "{}", page.len());
    running.goes_on("a worker that has not what it says").await;

    too_many_cells(&mut mallory).await;
    running.goes_on("cells without end").await;
    running.ends().await;
}

/// Opens connections like a notebook, each with a burst of goodbyes.
#[tokio::test]
async fn a_flood_of_goodbyes_disconnects_no_worker() {
    let broker = class().await;
    let mut running = Running::start(&broker).await;
    for _ in 0..4 {
        let mut mallory = FakeProxy::new(&broker.dial_as("mallory")).await;
        for _ in 0..200 {
            // The broker closes the connection after the first one.
            if mallory.try_say(FromProxy::Goodbye {}).await.is_err() {
                break;
            }
        }
        mallory.expect_closed_after_news().await;
    }
    running.goes_on("a flood of goodbyes").await;
    running.ends().await;
}

/// The worker asks for them and does not read them.
#[tokio::test]
async fn answers_that_wait_for_a_worker_count_for_their_person() {
    let broker = class().await;
    let mut worker = FakeWorker::with_slots(&broker.dial_as("gpu-1"), 2).await;
    let mut mallory = FakeProxy::new(&broker.dial_as("mallory")).await;
    let theirs = mallory.submit().await;
    let (fencing, _) = worker.assignment().await;
    let wanted = |question| JobEvent::InputWanted {
        question,
        prompt: String::new(),
        password: false,
    };
    let events = [started()].into_iter().chain((1..=8).map(wanted)).collect();
    worker.report(theirs, fencing, 1, events).await;
    let answer = |question, text: &str| FromProxy::Answer {
        job: theirs,
        question,
        answer: Answer::Input(Some(text.to_owned())),
    };
    let large = "x".repeat(40 << 20);
    // The worker has not asked for this.
    for _ in 0..2 {
        mallory.send(answer(99, &large)).await;
    }
    for question in 1..=8 {
        if mallory.try_say(answer(question, &large)).await.is_err() {
            break;
        }
    }
    mallory.expect_closed_after_news().await;
    let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
    let job = ada.submit().await;
    let mut heard = Vec::new();
    let (fencing, assigned) = loop {
        match worker.next().await {
            ToWorker::Answer { question, .. } => heard.push(question),
            // Her notebook may be back too late.
            ToWorker::Cancel { .. } => {}
            ToWorker::Assign {
                fencing,
                submission,
                ..
            } => break (fencing, submission.job),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(assigned, job);
    let count = heard.len() as u64;
    assert_eq!(heard, (1..=count).collect::<Vec<_>>());
    assert!((1..8).contains(&count), "{count}");
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
        hash: baton_chunks::hash(&number.to_be_bytes()),
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
    proxy.send(FromProxy::Submit(submission)).await;
    job
}

/// The first hundred cells wait in the queue, and the others are refused.
async fn too_many_cells(mallory: &mut FakeProxy) {
    let mut jobs = Vec::new();
    for _ in 0..110 {
        jobs.push(submit(mallory, state("")).await);
    }
    let mut refused = Vec::new();
    while refused.len() < 10 {
        if let ToProxy::Events { job, events } = mallory.next().await {
            let JobEvent::Finished(Finished {
                error: Some(error), ..
            }) = &events[0].event
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

#[tokio::test]
async fn a_cell_that_never_started_is_not_reported_as_run() {
    let broker = class().await;
    let mut mallory = FakeProxy::new(&broker.dial_as("mallory")).await;
    for (said, recorded) in [(Outcome::Ok, "cancelled"), (Outcome::Error, "error")] {
        let job = mallory.submit().await;
        mallory.expect_news().await;
        let outcome = Some(said);
        mallory.send(FromProxy::GivenUp { job, outcome }).await;
        mallory.events_after(job, 0).await;
        mallory.expect_silence().await;
        let job = broker.get(&format!("/v1/jobs/{job}")).await;
        assert!(
            job.contains(&format!("\"outcome\":\"{recorded}\"")),
            "{job}"
        );
    }
}

#[tokio::test]
async fn a_name_cannot_contain_another_row_or_commands_of_a_terminal() {
    let broker = class().await;
    let mut mallory = FakeProxy::new(&broker.dial_as("mallory")).await;
    let mut forged = submission(mallory.notebook);
    forged.notebook_name = "a\n7f3a  running  ada\u{1b}]0;x\u{7}\u{202e}".to_owned();
    forged.cell.gpu = Some("a100\u{1b}[2J".to_owned());
    let job = forged.job;
    mallory.send(FromProxy::Submit(forged)).await;
    mallory.expect_news().await;
    let job = broker.get(&format!("/v1/jobs/{job}")).await;
    assert!(job.contains("\"a�7f3a  running  ada�]0;x��\""), "{job}");
    assert!(!job.contains("u001b"), "{job}");
}

/// Her session is still warm on the worker, so anyone with her notebook would get her variables.
#[tokio::test]
async fn nobody_takes_a_notebook_while_its_proxy_is_away() {
    let first = class().await;
    let mut worker = FakeWorker::new(&first.dial_as("gpu-1")).await;
    let mut ada = FakeProxy::new(&first.dial_as("ada")).await;
    let notebook = ada.notebook;
    let job = ada.submit().await;
    assert_eq!(worker.run_to_end().await, job);
    ada.events_after(job, 0).await;
    ada.send(FromProxy::Applied { job }).await;
    ada.expect_silence().await;
    drop(ada);
    let folder = first.stop().await;

    let second = Broker::start_in(folder, rules()).await;
    let dial = second.dial_as("gpu-1");
    let mut worker = FakeWorker::of(&dial, worker.id, 1, &[notebook], &[]).await;
    for _ in 0..2 {
        let (_, answer) = FakeProxy::greet(&second.dial_as("mallory"), notebook, None).await;
        assert_eq!(answer, ToProxy::Refused(Refusal::NotYours {}));
        // This holds even after Ada has closed her notebook.
        let mut ada = FakeProxy::of(&second.dial_as("ada"), notebook).await;
        let job = ada.submit().await;
        assert_eq!(worker.run_to_end().await, job);
        ada.events_after(job, 0).await;
        ada.send(FromProxy::Goodbye {}).await;
        assert_eq!(worker.next().await, ToWorker::EndSession { notebook });
    }
}
