//! State that does not pass through the broker, and what happens when that is impossible.

use crate::harness::{Notebook, Worker};
use baton_chunks::{Bundle, Ledger, memory::Room, pack};
use baton_protocol::{
    Answer, Finished, HeldState, JobEvent, Outcome, State, StateVersion, Submission,
    shim::{SegmentView, Snapshot},
};
use baton_transport::{HeldMemory, MemoryHolder, TransportChoice};
use serde_json::{Value, json};
use std::{os::unix::fs::FileExt, path::Path};

/// The proxy's end.
struct Proxy {
    notebook: Notebook,
    holder: MemoryHolder,
    ledger: Ledger,
    _folder: tempfile::TempDir,
}

impl Proxy {
    fn new() -> Self {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let (holder, serving) = MemoryHolder::open(folder.path()).unwrap();
        tokio::spawn(serving);
        Self {
            notebook: Notebook::new(),
            holder,
            ledger: Ledger::default(),
            _folder: folder,
        }
    }

    /// A cell that sends values and one segment, number 7.
    fn cell(&mut self, code: &str, values: &Value, segment: &[u8]) -> (Submission, HeldMemory) {
        let mut submission = self.notebook.cell(code);
        let base = submission.state.base();
        let snapshot = Snapshot {
            messages: base.messages,
            stream: values.to_string().into(),
            segments: vec![SegmentView {
                number: 7,
                address: segment.as_ptr() as u64,
                bytes: segment.len() as u64,
                fresh: base.messages == 0,
                digests: None,
            }],
            dropped_segments: vec![],
        };
        let pid = i32::try_from(std::process::id()).unwrap();
        let bundle = pack(pid, &snapshot, &self.ledger, Room::UNLIMITED, &|| false).unwrap();
        self.ledger = bundle.enter(std::mem::take(&mut self.ledger)).unwrap();
        let bytes = bundle.file_bytes();
        let held = self.holder.hold(bundle);
        submission.state = State::Memory(HeldState {
            base,
            bytes,
            holder: self.holder.address().clone(),
            key: held.key(),
            enclosed: None,
        });
        (submission, held)
    }

    fn result(&mut self, held: &HeldMemory, events: &[JobEvent]) -> Bundle {
        let Some(JobEvent::Finished(Finished {
            outcome: Outcome::Ok,
            state: Some(State::Memory(state)),
            ..
        })) = events.last().cloned()
        else {
            panic!("no result in memory: {events:?}");
        };
        let bundle = match state.enclosed {
            Some(enclosed) => Bundle::disclose(*enclosed).unwrap(),
            None => held.take_result(state.key).expect("the result is here"),
        };
        self.ledger = bundle.enter(std::mem::take(&mut self.ledger)).unwrap();
        bundle
    }
}

fn stream(bundle: Bundle) -> Value {
    let (file, delta) = bundle.into_parts();
    let mut bytes = vec![0; usize::try_from(delta.stream.bytes).unwrap()];
    let file = std::fs::File::from(file);
    file.read_exact_at(&mut bytes, delta.stream.offset).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

async fn events(worker: &mut Worker, submission: Submission) -> Vec<JobEvent> {
    let job = submission.job;
    worker.assign(submission).await;
    worker.events_until(job, JobEvent::is_last).await
}

#[tokio::test]
async fn state_goes_past_the_broker_both_ways() {
    let mut worker = Worker::start().await;
    let mut proxy = Proxy::new();
    let mut segment = vec![1_u8; 3 << 20];
    let (submission, held) = proxy.cell(
        "total = sum(segment_7) + x\nsegment_7[5] = 9",
        &json!({"x": 4}),
        &segment,
    );
    let events_of_first = events(&mut worker, submission).await;
    let result = proxy.result(&held, &events_of_first);
    let [changed] = result.content().delta.segments.as_slice() else {
        panic!("{:?}", result.content().delta);
    };
    assert_eq!(changed.patches[0].source.bytes, 4096);
    assert_eq!(stream(result)["total"], (3 << 20) + 4);

    // The same session continues from there, with what has changed meanwhile.
    segment[5] = 9;
    segment[1 << 20] = 2;
    let (submission, held) = proxy.cell("total = sum(segment_7)", &json!({}), &segment);
    let events = events(&mut worker, submission).await;
    assert!(matches!(events[0], JobEvent::Started { .. }), "{events:?}");
    let result = proxy.result(&held, &events);
    assert_eq!(stream(result)["total"], (3 << 20) + 8 + 1);
    assert!(worker.broker.chunks.lock().unwrap().is_empty());
}

#[tokio::test]
async fn without_the_holder_the_state_comes_through_the_broker() {
    let mut worker = Worker::start().await;
    let mut proxy = Proxy::new();
    let (submission, _held) = proxy.cell("y = x", &json!({"x": 4}), &[]);
    std::fs::remove_file(Path::new(&proxy.holder.address().socket)).unwrap();
    asks_for_bytes(&mut worker, &mut proxy, submission).await;
}

#[tokio::test]
async fn a_worker_told_so_uses_the_broker_only() {
    let mut worker = Worker::start_with(|config| config.transport = TransportChoice::Http).await;
    let mut proxy = Proxy::new();
    let (submission, _held) = proxy.cell("y = x", &json!({"x": 4}), &[]);
    asks_for_bytes(&mut worker, &mut proxy, submission).await;
}

async fn asks_for_bytes(worker: &mut Worker, proxy: &mut Proxy, submission: Submission) {
    let job = submission.job;
    worker.assign(submission).await;
    proxy.notebook.forget();
    let state = proxy.notebook.state(&json!({"x": 5}));
    let first = worker.answer_next(job, Answer::State(state)).await;
    assert!(matches!(first[..], [JobEvent::BytesWanted { .. }]));
    let ran = worker.until_finished(job).await.ok();
    assert_eq!(ran.value("y"), 5);
}

#[tokio::test]
async fn a_result_that_cannot_be_brought_goes_through_the_broker() {
    let mut worker = Worker::start().await;
    let mut proxy = Proxy::new();
    let (submission, held) = proxy.cell("y = input() * 2500", &json!({}), &[]);
    let job = submission.job;
    worker.assign(submission).await;
    let is_question = |event: &JobEvent| matches!(event, JobEvent::InputWanted { .. });
    let asked = worker.events_until(job, is_question).await;
    let question = asked.iter().find_map(JobEvent::question).unwrap();
    drop(held);
    let answer = Answer::Input(Some("home".to_owned()));
    worker.answer(job, question, answer).await;
    let ran = worker.until_finished(job).await.ok();
    assert_eq!(ran.value("y"), "home".repeat(2500));
    let version: StateVersion = ran.state.unwrap().base;
    assert_eq!(version.messages, 1);
}
