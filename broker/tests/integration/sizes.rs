//! Messages that are small on the way to the broker and large on the way to a worker.

use crate::{
    attacks::{Running, class, rules},
    exhaustion::{raw_notebook, receive_frame, send_frame},
    harness::{Broker, FakeProxy, FakeWorker, state, submission, within},
};
use baton_protocol::{
    Cell, Finished, JobEvent, JobId, NotebookId, Outcome, PROTOCOL_VERSION, Piece, Priority, State,
    StateVersion, Submission, decode, encode,
    proxy::{FromProxy, ToProxy},
};
use baton_transport::{Connection, connect};
use bytes::Bytes;
use serde::Serialize;
use tokio::io::AsyncReadExt as _;

/// Messages without the names of fields, which the broker also reads.
#[derive(Serialize)]
#[serde(untagged)]
enum Terse {
    Named(FromProxy),
    Submit { submit: TerseSubmission },
}

/// In the order of [`Submission`].
type TerseSubmission = (
    JobId,
    NotebookId,
    String,
    (),
    Priority,
    (),
    Cell,
    TerseState,
);

#[derive(Serialize)]
struct TerseState {
    chunks: (StateVersion, Vec<Piece>, Vec<TerseSegment>, [u32; 0]),
}

/// Four bytes and the head of the list.
type TerseSegment = (u32, u64, bool, [u32; 0]);

struct Mallory {
    connection: Connection<ToProxy, Terse>,
    notebook: NotebookId,
}

impl Mallory {
    async fn of(broker: &Broker) -> Self {
        let dial = broker.dial_as("mallory");
        let mut connection = within("a dial", connect(&dial, "/v1/proxy")).await.unwrap();
        let notebook = NotebookId::random();
        connection.send(&hello(notebook)).await.unwrap();
        let mut mallory = Self {
            connection,
            notebook,
        };
        let welcome = mallory.next().await;
        assert!(matches!(welcome, Some(ToProxy::Welcome { .. })));
        mallory
    }

    async fn next(&mut self) -> Option<ToProxy> {
        within("a message", self.connection.receive())
            .await
            .unwrap()
    }
}

fn hello(notebook: NotebookId) -> Terse {
    Terse::Named(FromProxy::Hello {
        protocol_version: PROTOCOL_VERSION,
        notebook,
        owner: String::new(),
        course: None,
    })
}

fn submit(notebook: NotebookId, inline_bytes: usize, segments: usize) -> Terse {
    let Submission {
        job,
        notebook_name,
        priority,
        cell,
        state,
        ..
    } = submission(notebook);
    let inline = Piece::Inline(Bytes::from(vec![0; inline_bytes]));
    let segments = vec![(0, 0, false, []); segments];
    let state = TerseState {
        chunks: (state.base(), vec![inline], segments, []),
    };
    let submit = (job, notebook, notebook_name, (), priority, (), cell, state);
    Terse::Submit { submit }
}

#[tokio::test]
async fn a_message_that_grows_when_it_is_forwarded_reaches_no_worker() {
    let broker = class().await;
    let mut running = Running::start(&broker).await;
    let mut mallory = Mallory::of(&broker).await;
    let submit = submit(mallory.notebook, 58 << 20, 100_000);
    mallory.connection.send(&submit).await.unwrap();
    let Some(ToProxy::Events { events, .. }) = mallory.next().await else {
        panic!("expected a refusal");
    };
    let JobEvent::Finished(Finished {
        outcome: Outcome::Refused,
        error: Some(error),
        ..
    }) = &events[0].event
    else {
        panic!("{events:?}");
    };
    assert!(
        error.value.contains("60.9 MiB; the limit is 60 MiB"),
        "{}",
        error.value
    );
    running.goes_on("a message that grows").await;
    running.ends().await;
}

#[tokio::test]
async fn a_message_with_a_million_elements_is_not_read() {
    let broker = class().await;
    let mut running = Running::start(&broker).await;
    // Baton's own connections do not send such a message.
    let mut stream = raw_notebook(&broker, "mallory").await;
    let notebook = NotebookId::random();
    send_frame(&mut stream, &encode(&hello(notebook)))
        .await
        .unwrap();
    let welcome = within("a welcome", receive_frame(&mut stream)).await;
    let welcome: ToProxy = decode(&welcome).unwrap();
    assert!(matches!(welcome, ToProxy::Welcome { .. }), "{welcome:?}");
    let submit = submit(notebook, 0, 200_000);
    send_frame(&mut stream, &encode(&submit)).await.unwrap();
    within("an end", stream.read_to_end(&mut Vec::new()))
        .await
        .unwrap();
    running.goes_on("a million elements").await;
    running.ends().await;
}

/// Earlier versions stored such cells.
#[tokio::test]
async fn a_stored_cell_that_no_worker_accepts_ends_and_the_worker_stays_connected() {
    let first = class().await;
    let mut ada = FakeProxy::new(&first.dial_as("ada")).await;
    let notebook = ada.notebook;
    let job = ada.submit().await;
    ada.expect_news().await;
    drop(ada);
    let folder = first.stop().await;
    let State::Chunks(mut large) = state("") else {
        unreachable!()
    };
    large.stream = vec![Piece::Inline(Bytes::from(vec![0; 65 << 20]))];
    let database = rusqlite::Connection::open(folder.path().join("broker.db")).unwrap();
    let changed = database.execute(
        "UPDATE jobs SET manifest = ?",
        [encode(&State::Chunks(large))],
    );
    assert_eq!(changed.unwrap(), 1);
    drop(database);

    let second = Broker::start_in(folder, rules()).await;
    let mut worker = FakeWorker::new(&second.dial_as("gpu-1")).await;
    let mut ada = FakeProxy::of(&second.dial_as("ada"), notebook).await;
    ada.send(FromProxy::Resume { job, after: 0 }).await;
    let events = ada.events_after(job, 0).await;
    let Some(JobEvent::Finished(Finished {
        outcome: Outcome::Refused,
        error: Some(error),
        ..
    })) = events.last()
    else {
        panic!("{events:?}");
    };
    assert!(error.value.contains("takes 65 MiB"), "{}", error.value);
    let mut mallory = FakeProxy::new(&second.dial_as("mallory")).await;
    let next = mallory.submit().await;
    let (_, assigned) = worker.assignment().await;
    assert_eq!(assigned.job, next);
}
