//! A person who exceeds a limit gets no more, and the others are not affected.

use crate::{
    attacks::{Running, class, rules},
    chunk_listener,
    harness::{
        Broker, FakeProxy, FakeWorker, Rules, finished, output, started, state, submission, within,
    },
    limits::dialled_as,
};
use baton_protocol::{
    FencingNumber, Finished, JobEvent, JobId, Manifest, NotebookId, Outcome, Payload, Piece, State,
    Submission,
    proxy::{FromProxy, ToProxy},
};
use baton_transport::{ChunkClient, Dial, LinkError};
use bytes::Bytes;
use std::time::{Duration, Instant};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

/// A cell with this much code.
fn with_code(notebook: NotebookId, bytes: usize) -> Submission {
    let mut submission = submission(notebook);
    submission.cell.code = "#".repeat(bytes);
    submission
}

async fn refused(proxy: &mut FakeProxy, submission: Submission) -> String {
    let job = submission.job;
    proxy.send(FromProxy::Submit(submission)).await;
    match &proxy.events_after(job, 0).await[..] {
        [
            JobEvent::Finished(Finished {
                outcome: Outcome::Refused,
                error: Some(error),
                ..
            }),
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
        assert!(why.contains("20 MiB; the limit is 1 MiB"), "{why}");
    }
    let mut wordy = submission(mallory.notebook);
    wordy.cell.folder = "/long".repeat(100_000);
    let why = refused(&mut mallory, wordy).await;
    assert!(why.contains("too long"), "{why}");
    assert!(stored.metadata().unwrap().len() < before + (1 << 20));
    running.goes_on("cells of 20 MB").await;

    // Waiting cells count like stored data: the class gives each person 3 MiB.
    for _ in 0..2 {
        let large = with_code(mallory.notebook, 1 << 20);
        mallory.send(FromProxy::Submit(large)).await;
        assert!(matches!(
            mallory.next().await,
            ToProxy::QueuePosition { .. }
        ));
    }
    let third = with_code(mallory.notebook, 1 << 20);
    let why = refused(&mut mallory, third).await;
    assert!(why.contains("your limit is 3 MiB"), "{why}");
    let bytes = bytes::Bytes::from(vec![7; 1 << 20]);
    let chunk_client = ChunkClient::new(&broker.dial_as("mallory")).unwrap();
    let full = chunk_client
        .put(&[(baton_chunks::hash(&bytes), bytes.clone())])
        .await;
    assert!(matches!(full, Err(LinkError::StoreFull { .. })), "{full:?}");
    let chunk_client = ChunkClient::new(&broker.dial_as("ada")).unwrap();
    chunk_client
        .put(&[(baton_chunks::hash(&bytes), bytes)])
        .await
        .unwrap();
    running.goes_on("more cells than a person may store").await;
    running.ends().await;
}

/// Names a chunk that its account holds, with sizes that the chunk does not have.
#[tokio::test]
async fn a_manifest_says_the_sizes_that_its_chunks_have() {
    let broker = class().await;
    let mut running = Running::start(&broker).await;
    let bytes = bytes::Bytes::from_static(b"one byte less than is said");
    let (hash, length) = (baton_chunks::hash(&bytes), bytes.len() as u32);
    let chunk_client = ChunkClient::new(&broker.dial_as("mallory")).unwrap();
    chunk_client.put(&[(hash, bytes)]).await.unwrap();
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
        assert!(
            why.contains("does not have all of this cell's variables"),
            "{why}"
        );
        running.goes_on("a manifest that lies").await;
    }
    running.ends().await;
}

/// A connection as a notebook of this person, for sending single bytes.
pub(crate) async fn raw_notebook(broker: &Broker, token: &str) -> TcpStream {
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

/// Sends a binary message over the connection of a [`raw_notebook`].
pub(crate) async fn send_frame(stream: &mut TcpStream, message: &[u8]) -> std::io::Result<()> {
    begin_frame(stream, message.len() as u64).await?;
    stream.write_all(message).await
}

/// Receives a short binary message over the connection of a [`raw_notebook`].
pub(crate) async fn receive_frame(stream: &mut TcpStream) -> Vec<u8> {
    assert_eq!(stream.read_u8().await.unwrap(), 0x82, "a whole message");
    let bytes = match stream.read_u8().await.unwrap() {
        126 => stream.read_u16().await.unwrap().into(),
        bytes => bytes.into(),
    };
    let mut message = vec![0; bytes];
    stream.read_exact(&mut message).await.unwrap();
    message
}

async fn begin_frame(stream: &mut TcpStream, bytes: u64) -> std::io::Result<()> {
    let mut head = vec![0x82, 0xff];
    head.extend(bytes.to_be_bytes());
    head.extend([0; 4]);
    stream.write_all(&head).await
}

/// Begins a message of 50 MB and sends 30 MB of it.
async fn begin_large(stream: &mut TcpStream) -> std::io::Result<()> {
    begin_frame(stream, 50 << 20).await?;
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
    // The broker may close the connection before everything is sent.
    drop(begin_large(&mut fifth).await);
    let mut part = [0; 1024];
    while let Ok(1..) = within("an end", fifth.read(&mut part)).await {}
    running
        .goes_on("150 MB of messages that are not whole")
        .await;
    // There is room for other people's large messages.
    let mut large = submission(running.ada.notebook);
    large.cell.code = "#".repeat(1 << 20);
    running.ada.send(FromProxy::Submit(large)).await;
    assert!(matches!(
        running.ada.next().await,
        ToProxy::QueuePosition { .. }
    ));
    running.goes_on("a large cell").await;

    drop(open);
    // Her room is free again as soon as the broker has noticed.
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

/// The bytes of the events that the broker stores.
fn stored_bytes(broker: &Broker) -> i64 {
    let database = rusqlite::Connection::open(broker.folder.path().join("broker.db")).unwrap();
    let sum = "SELECT SUM(LENGTH(body)) FROM events";
    database.query_row(sum, [], |row| row.get(0)).unwrap()
}

/// A job of Mallory that runs.
struct Printing {
    broker: Broker,
    worker: FakeWorker,
    mallory: FakeProxy,
    job: JobId,
    fencing: FencingNumber,
}

async fn printing(output_limit_bytes: u64) -> Printing {
    let broker = Broker::start_with(Rules {
        output_limit_bytes,
        ..rules()
    })
    .await;
    let mut worker = FakeWorker::new(&broker.dial_as("gpu-1")).await;
    let mut mallory = FakeProxy::new(&broker.dial_as("mallory")).await;
    let job = mallory.submit().await;
    let (fencing, _) = worker.assignment().await;
    worker.report(job, fencing, 1, vec![started()]).await;
    Printing {
        broker,
        worker,
        mallory,
        job,
        fencing,
    }
}

#[tokio::test]
async fn output_without_end_is_cut_at_its_beginning_and_counts_for_its_person() {
    let Printing {
        broker,
        mut worker,
        mut mallory,
        job,
        fencing,
    } = printing(4 << 20).await;
    let line = |number: u64| output(&format!("{number} {}", "x".repeat(100_000)));
    for number in 2..=100 {
        worker
            .report(job, fencing, number, vec![line(number)])
            .await;
    }
    assert!(stored_bytes(&broker) < 5 << 20);

    // All of it is more than a person may store.
    let mut other = FakeProxy::new(&broker.dial_as("mallory")).await;
    let next = submission(other.notebook);
    let why = refused(&mut other, next).await;
    assert!(why.contains("your limit is 3 MiB"), "{why}");

    let end = vec![finished(Outcome::Ok)];
    worker.report(job, fencing, 101, end).await;
    let sent = mallory.events_after(job, 0).await;
    let mut mallory = FakeProxy::of(&broker.dial_as("mallory"), mallory.notebook).await;
    mallory.send(FromProxy::Resume { job, after: 0 }).await;
    let read = mallory.events_after(job, 0).await;
    assert_eq!(read.len(), sent.len());
    let said = |event: &JobEvent| match event {
        JobEvent::Output(output) => String::from_utf8(output.content.to_vec()).unwrap(),
        _ => String::new(),
    };
    let is_note =
        |event: &JobEvent| said(event).contains("Older output is missing: too much was printed");
    let note = read.iter().position(is_note).unwrap();
    assert_eq!(read.iter().filter(|event| is_note(event)).count(), 1);
    assert_eq!(read[note + 1..], sent[note + 1..]);
    assert!((30..100).contains(&(read.len() - note)), "{note}");
}

#[tokio::test]
async fn questions_without_end_are_cut_like_output() {
    let Printing {
        broker,
        mut worker,
        mallory,
        job,
        fencing,
    } = printing(1 << 20).await;
    let names = |question| JobEvent::NamesWanted {
        question,
        names: vec!["x".repeat(100_000)],
    };
    let input = |question| JobEvent::InputWanted {
        question,
        prompt: "é".repeat(500_000),
        password: false,
    };
    worker.report(job, fencing, 2, vec![names(1)]).await;
    for number in 3..=60 {
        worker
            .report(job, fencing, number, vec![input(number)])
            .await;
    }
    assert!(stored_bytes(&broker) < 2 << 20);

    // A notebook that was absent can still answer the last question of each kind.
    worker
        .report(job, fencing, 61, vec![finished(Outcome::Ok)])
        .await;
    let mut mallory = FakeProxy::of(&broker.dial_as("mallory"), mallory.notebook).await;
    mallory.send(FromProxy::Resume { job, after: 0 }).await;
    let read = mallory.events_after(job, 0).await;
    assert_eq!(read.len(), 62);
    let place = |question| {
        let is_asked = |event: &JobEvent| event.question() == Some(question);
        read.iter().position(is_asked)
    };
    assert_eq!((place(1), place(3), place(60)), (Some(2), None, Some(60)));
    let JobEvent::InputWanted { prompt, .. } = &read[60] else {
        panic!("{:?}", read[60]);
    };
    assert_eq!(*prompt, "é".repeat(32 << 10) + "…");
}

#[tokio::test]
async fn questions_about_files_that_a_slow_notebook_has_not_read_outlive_the_output_after_them() {
    let Printing {
        broker: _broker,
        mut worker,
        mut mallory,
        job,
        fencing,
    } = printing(1 << 20).await;
    let files = |question| JobEvent::FilesWanted {
        question,
        wanted: Payload(vec![Piece::Inline("a file".into())]),
    };
    let questions: Vec<JobEvent> = (1..=32).map(files).collect();
    worker.report(job, fencing, 2, questions.clone()).await;
    for number in 34..=60 {
        let line = output(&"x".repeat(100_000));
        worker.report(job, fencing, number, vec![line]).await;
    }
    let end = vec![finished(Outcome::Ok)];
    worker.report(job, fencing, 61, end).await;
    mallory.send(FromProxy::Resume { job, after: 0 }).await;
    let mut read = mallory.events_after(job, 0).await;
    read.retain(|event| event.question().is_some());
    assert_eq!(read, questions);
}

/// Opens an upload and sends almost as much of it as the broker collects before it stores anything.
async fn begin_upload(dial: &Dial) -> TcpStream {
    let address = dial.address.to_string().replacen("http://", "", 1);
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = "PUT /v1/chunks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer mallory\r\n\
                content-length: 500000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut chunk = (1_u32 << 20).to_be_bytes().to_vec();
    chunk.resize(4 + (1 << 20), 7);
    let mut part = chunk.repeat(4);
    part.truncate(part.len() - 100);
    // The broker may refuse it before everything is sent.
    drop(stream.write_all(&part).await);
    stream
}

#[tokio::test]
async fn uploads_that_stop_take_no_more_than_one_person_may_have() {
    let broker = class().await;
    let mut running = Running::start(&broker).await;
    let listener = chunk_listener::beside(&broker).await;
    for dial in [&broker.dial, &listener.dial] {
        let mut uploads: JoinSet<_> = (0..40)
            .map(|_| {
                let dial = dial.clone();
                async move {
                    let mut stream = begin_upload(&dial).await;
                    let mut answer = Vec::new();
                    while !answer.ends_with(b"}") {
                        if stream.read_buf(&mut answer).await? == 0 {
                            return Err(std::io::ErrorKind::UnexpectedEof.into());
                        }
                    }
                    std::io::Result::Ok(String::from_utf8(answer).unwrap())
                }
            })
            .collect();
        // The first answer comes long before a pause is too long.
        let first = within("an answer", async {
            loop {
                if let Ok(answer) = uploads.join_next().await.unwrap().unwrap() {
                    return answer;
                }
            }
        });
        let first = first.await;
        assert!(first.starts_with("HTTP/1.1 429"), "{first}");
        let why = "You have reached this broker's limit of bytes in requests";
        assert!(first.contains(why), "{first}");
        running.goes_on("uploads of 160 MB that have stopped").await;
        uploads.shutdown().await;
        // Her room is free again as soon as the broker has noticed.
        let bytes = Bytes::from(vec![8; 1 << 20]);
        let chunk_client = ChunkClient::new(&dialled_as(dial, "mallory")).unwrap();
        let chunks = [(baton_chunks::hash(&bytes), bytes)];
        within("room", chunk_client.put(&chunks)).await.unwrap();
    }
    running.ends().await;
}

#[tokio::test]
async fn cells_without_end_enter_the_queue_slowly() {
    const CELLS: usize = 1030;
    let broker = class().await;
    let begun = Instant::now();
    let mut mallory = FakeProxy::new(&broker.dial_as("mallory")).await;
    for _ in 0..CELLS {
        let cell = submission(mallory.notebook);
        mallory.send(FromProxy::Submit(cell)).await;
    }
    // The first hundred wait in the queue, and all others are refused.
    for _ in 100..CELLS {
        while !matches!(mallory.next().await, ToProxy::Events { .. }) {}
    }
    // A thousand at once, then ten a second.
    assert!(begun.elapsed() >= Duration::from_millis(2900));
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
    // Most of them are closed at once. The others soon make room for connections from the same address.
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
