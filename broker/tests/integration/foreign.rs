//! Every message and every address, with the id of another person's job, notebook or chunk.
//!
//! **Invariant:** the response is the same as for an id that never existed, and the other person's job
//! continues. A new message without a case here does not compile, and a new address without one fails a test.

mod addresses;

use crate::harness::{
    Broker, FakeProxy, FakeWorker, Rules, finished, output, outputs, started, state, submission,
};
use baton_broker::{Person, Role};
use baton_protocol::{
    AboutState, Answer, ChunkHash, FencingNumber, JobEvent, JobId, Lock, LockKind, Manifest,
    NotebookId, Outcome, PROTOCOL_VERSION, Payload, Piece, Refusal, SavedState, StateVersion,
    Submission, TableId, WorkerId, encode,
    proxy::{FromProxy, ToProxy},
    worker::{FromWorker, ToWorker},
};
use baton_transport::{ChunkClient, Connection, states};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

const COURSE: &str = "ml";

/// Ids that an attacker may have seen or invented.
#[derive(Clone, Copy)]
struct Ids {
    job: JobId,
    closed: JobId,
    notebook: NotebookId,
    fencing: FencingNumber,
    chunk: ChunkHash,
}

impl Ids {
    fn made_up() -> Self {
        let job = JobId::random();
        Self {
            job,
            closed: JobId::random(),
            notebook: NotebookId::random(),
            fencing: 1,
            chunk: baton_chunks::hash(job.to_string().as_bytes()),
        }
    }

    /// The text without anything that distinguishes these ids from others.
    fn masked(&self, text: &str) -> String {
        let names = [
            self.job.to_string(),
            self.closed.to_string(),
            self.notebook.to_string(),
            self.chunk.to_string(),
            letters(&self.chunk.0),
        ];
        names
            .iter()
            .fold(text.to_owned(), |text, name| text.replace(name, "ID"))
    }
}

/// A class in which Ada has a running cell, a finished cell, and a chunk.
struct Class {
    broker: Broker,
    ada: FakeProxy,
    worker: FakeWorker,
    last: u64,
    ids: Ids,
}

impl Class {
    async fn start() -> Self {
        let person = |name: &str, course: &str, role| {
            let courses = [(course.to_owned(), role)].into();
            Person::new(name.to_owned(), name, false, courses).entry()
        };
        let people = [
            person("ada", COURSE, Role::Student),
            person("mallory", COURSE, Role::Student),
            person("trudy", "vision", Role::Staff),
            Person::new_worker("gpu-1".to_owned(), "gpu-1").entry(),
            Person::new_worker("gpu-2".to_owned(), "gpu-2").entry(),
        ];
        let broker = Broker::start_with(Rules {
            token: Some("sesame"),
            tcp: true,
            people: Some(people.concat()),
            ..Rules::default()
        })
        .await;
        let bytes = bytes::Bytes::from_static(b"what only Ada has");
        let chunk = baton_chunks::hash(&bytes);
        let chunk_client = ChunkClient::new(&broker.dial_as("ada")).unwrap();
        chunk_client.put(&[(chunk, bytes)]).await.unwrap();
        let chunk_client = chunk_client.of_owner("ada".to_owned(), Some(COURSE.to_owned()));

        let mut worker = FakeWorker::new(&broker.dial_as("gpu-1")).await;
        let mut ada = FakeProxy::new(&broker.dial_as("ada")).await;
        let closed = ada.submit().await;
        worker.run_to_end().await;
        ada.events_after(closed, 0).await;
        ada.send(FromProxy::Applied { job: closed }).await;
        let job = ada.submit_alone_in_a_group().await;
        let (fencing, _) = worker.assignment().await;
        ada.assigned(job).await;
        worker.report(job, fencing, 1, vec![started()]).await;
        ada.event(job).await;
        let saved = state_of(job, chunk);
        states::save(&chunk_client, &job.to_string(), &saved)
            .await
            .unwrap();
        let notebook = ada.notebook;
        Self {
            broker,
            ada,
            worker,
            last: 1,
            ids: Ids {
                job,
                closed,
                notebook,
                fencing,
                chunk,
            },
        }
    }

    /// Ada's cell prints a line, and she receives nothing else.
    async fn goes_on(&mut self, after: &str) {
        let Ids { job, fencing, .. } = self.ids;
        self.last += 1;
        let line = vec![output(after)];
        self.worker.report(job, fencing, self.last, line).await;
        assert_eq!(outputs(&[self.ada.event(job).await]), [after]);
    }

    async fn ends(mut self) {
        let Ids { job, fencing, .. } = self.ids;
        let end = vec![finished(Outcome::Ok)];
        self.worker.report(job, fencing, self.last + 1, end).await;
        self.ada.events_after(job, self.last + 1).await;
    }
}

/// A `match` over the type, so that a message without a case does not compile.
fn number_of(message: &FromProxy) -> usize {
    match message {
        FromProxy::Hello { .. } => 0,
        FromProxy::Submit(_) => 1,
        FromProxy::Answer { .. } => 2,
        FromProxy::Resume { .. } => 3,
        FromProxy::Attach { .. } => 4,
        FromProxy::Detach { .. } => 5,
        FromProxy::Cancel { .. } => 6,
        FromProxy::DeferredWanted { .. } => 7,
        FromProxy::Applied { .. } => 8,
        FromProxy::GivenUp { .. } => 9,
        // This names nothing: it concerns the notebook that sends it.
        FromProxy::Goodbye {} => 10,
    }
}

fn proxy_messages(ids: &Ids, job: JobId, own: NotebookId) -> Vec<FromProxy> {
    let submit = |notebook| {
        FromProxy::Submit(Submission {
            job,
            ..submission(notebook)
        })
    };
    let answer = |answer| FromProxy::Answer {
        job,
        question: 1,
        answer,
    };
    vec![
        FromProxy::Hello {
            protocol_version: PROTOCOL_VERSION,
            notebook: ids.notebook,
            owner: "ada".to_owned(),
            course: None,
        },
        submit(own),
        submit(ids.notebook),
        answer(Answer::State(state("another"))),
        answer(Answer::Input(Some("theirs".to_owned()))),
        answer(Answer::Files(Payload(Vec::new()))),
        answer(Answer::Names(state("another"))),
        FromProxy::Resume { job, after: 0 },
        FromProxy::Attach { job, after: 0 },
        FromProxy::Detach { job },
        FromProxy::Cancel { job },
        FromProxy::DeferredWanted { job },
        FromProxy::Applied { job },
        FromProxy::GivenUp {
            job,
            outcome: Some(Outcome::Cancelled),
        },
        FromProxy::GivenUp { job, outcome: None },
        FromProxy::Goodbye {},
    ]
}

#[tokio::test]
async fn no_message_of_a_notebook_reaches_the_job_of_another() {
    let mut class = Class::start().await;
    for token in ["mallory", "trudy"] {
        for job in [class.ids.job, class.ids.closed] {
            let mut mallory = FakeProxy::new(&class.broker.dial_as(token)).await;
            let messages = proxy_messages(&class.ids, job, mallory.notebook);
            let numbers: BTreeSet<usize> = messages.iter().map(number_of).collect();
            assert_eq!(numbers, (0..=10).collect());
            for message in messages {
                let what = format!("{token}: {message:?}");
                let number = number_of(&message);
                mallory.send(message).await;
                match number {
                    // Only the first hello counts.
                    0 => {}
                    10 => mallory.expect_closed().await,
                    _ => assert_eq!(mallory.next().await, ToProxy::UnknownJob { job }, "{what}"),
                }
                class.goes_on(&what).await;
            }
        }
        let mut thief: Connection<ToProxy, FromProxy> =
            baton_transport::connect(&class.broker.dial_as(token), "/v1/proxy")
                .await
                .unwrap();
        let hello = proxy_messages(&class.ids, class.ids.job, class.ids.notebook).remove(0);
        thief.send(&hello).await.unwrap();
        let answer = thief.receive().await.unwrap();
        assert_eq!(answer, Some(ToProxy::Refused(Refusal::NotYours {})));
        class.goes_on("the hello of another notebook").await;
    }
    class.ends().await;
}

fn number_of_worker(message: &FromWorker) -> usize {
    match message {
        FromWorker::Hello { .. } => 0,
        FromWorker::Events { .. } => 1,
        FromWorker::Sessions { .. } => 2,
        FromWorker::Load { .. } => 3,
        // These name nothing.
        FromWorker::Failing { .. } => 4,
        FromWorker::Recovered {} => 5,
        // These concern the worker that sends them.
        FromWorker::Environments { .. } => 6,
        FromWorker::Lock { .. } => 7,
        FromWorker::Drain {} => 8,
    }
}

/// All messages except the hello, which opens the connection.
fn worker_messages(ids: &Ids) -> Vec<FromWorker> {
    let Ids { job, fencing, .. } = *ids;
    let events = |job, fencing, first| FromWorker::Events {
        job,
        fencing,
        first,
        events: vec![JobEvent::DeferredState {
            state: Some(state("theirs")),
            error: None,
        }],
    };
    vec![
        events(job, fencing, 2),
        events(job, fencing + 1, 1),
        events(ids.closed, fencing, 1),
        FromWorker::Sessions {
            warm: vec![ids.notebook],
            keeping: vec![ids.notebook],
        },
        FromWorker::Load {
            memory_bytes: 1,
            memory_total_bytes: 1,
            jobs: vec![(job, u64::MAX)],
            gpus: Vec::new(),
        },
        FromWorker::Failing {
            why: "no disk".to_owned(),
        },
        FromWorker::Recovered {},
        FromWorker::Environments {
            environments: Vec::new(),
        },
        FromWorker::Lock {
            environment: "ml101".to_owned(),
            lock: Lock {
                kind: LockKind::Uv,
                files: Vec::new(),
            },
        },
        FromWorker::Drain {},
    ]
}

#[tokio::test]
async fn no_message_of_a_worker_reaches_the_job_of_another() {
    let mut class = Class::start().await;
    let Ids { job, fencing, .. } = class.ids;
    let mut other = FakeWorker::of(
        &class.broker.dial_as("gpu-2"),
        WorkerId::random(),
        4,
        &[class.ids.notebook],
        &[(job, fencing)],
    )
    .await;
    assert_eq!(other.next().await, ToWorker::Revoke { job, fencing });
    class.goes_on("a hello with a foreign assignment").await;
    let messages = worker_messages(&class.ids);
    let numbers: BTreeSet<usize> = messages.iter().map(number_of_worker).collect();
    assert_eq!(numbers, (1..=8).collect());
    for message in messages {
        let what = format!("{message:?}");
        let revoked = match &message {
            FromWorker::Events { job, fencing, .. } => Some((*job, *fencing)),
            _ => None,
        };
        other.send(message).await;
        if let Some((job, fencing)) = revoked {
            let revoke = ToWorker::Revoke { job, fencing };
            assert_eq!(other.next().await, revoke, "{what}");
        }
        class.goes_on(&what).await;
    }
    class.ends().await;
}

/// One letter for each byte, so that binary responses are compared, too.
fn letters(bytes: &[u8]) -> String {
    bytes.iter().copied().map(char::from).collect()
}

/// The state of a notebook with one variable, in this chunk.
pub(crate) fn state_of(job: JobId, chunk: ChunkHash) -> SavedState {
    SavedState {
        about: AboutState {
            variables: vec![job.to_string()],
            ..AboutState::default()
        },
        manifest: Manifest {
            base: StateVersion {
                table: TableId::random(),
                messages: 0,
            },
            stream: vec![Piece::Stored {
                hash: chunk,
                bytes: 18,
            }],
            segments: Vec::new(),
            dropped_segments: Vec::new(),
        },
    }
}
