//! Cells that end by themselves.

use crate::harness::{Notebook, Worker, manifest};
use baton_protocol::{
    Answer, CHUNK_BYTES, JobEvent, Outcome, Piece, SegmentPart,
    worker::{DeviceKind, FromWorker},
};
use bytes::Bytes;
use serde_json::json;

#[tokio::test]
async fn the_worker_says_what_it_is() {
    let worker = Worker::start().await;
    let FromWorker::Hello {
        name,
        devices,
        slots,
        ..
    } = &worker.hello
    else {
        unreachable!();
    };
    // The worker sends no name: its token has one, or the broker names it after its device.
    assert_eq!((name.as_str(), *slots), ("", 2));
    assert_eq!(devices[0].kind, DeviceKind::Cpu);
    assert!(!devices[0].model.is_empty());
}

#[tokio::test]
async fn an_empty_cell_starts_and_finishes() {
    let mut worker = Worker::start().await;
    let ran = worker.run(Notebook::new().cell("")).await.ok();
    // The broker adds the worker's name.
    let started = JobEvent::Started {
        worker: String::new(),
    };
    assert_eq!(ran.events[0], started);
    assert_eq!(ran.events.len(), 2);
    assert_eq!(ran.state.unwrap().base.messages, 1);
    assert!(ran.usage.peak_memory_bytes > 1 << 20);
}

#[tokio::test]
async fn values_go_in_and_out_and_stay_between_cells() {
    let mut worker = Worker::start().await;
    let mut notebook = Notebook::new();
    let ran = worker
        .run(notebook.cell_with("b = a + 1", &json!({"a": 1})))
        .await
        .ok();
    assert_eq!(ran.value("b"), 2);
    let ran = worker
        .run(notebook.cell("c = b + 1; import os; pid = os.getpid()"))
        .await
        .ok();
    assert_eq!(ran.value("c"), 3);
    let first_pid = ran.value("pid");
    let ran = worker.run(notebook.cell("pid = os.getpid()")).await.ok();
    assert_eq!(ran.value("pid"), first_pid, "the session stays warm");
    assert_eq!(ran.state.unwrap().base.messages, 5);
}

#[tokio::test]
async fn outputs_arrive_complete_and_in_order() {
    let code = r#"
import sys
from IPython.display import display, clear_output, update_display
handle = display("first", display_id="d")
print("out\n", end="")
sys.stdout.flush()
print("err\n", end="", file=sys.stderr)
sys.stderr.flush()
update_display("second", display_id="d")
clear_output(wait=True)
1 + 1
"#;
    let mut worker = Worker::start().await;
    let ran = worker.run(Notebook::new().cell(code)).await.ok();
    let kinds: Vec<&str> = ran.outputs().map(|(kind, _)| kind).collect();
    assert_eq!(
        kinds,
        [
            "display_data",
            "stream",
            "stream",
            "update_display_data",
            "clear_output"
        ],
        "and no status, input or result"
    );
    assert_eq!(
        (ran.text("stdout"), ran.text("stderr")),
        ("out\n".into(), "err\n".into())
    );
}

#[tokio::test]
async fn many_outputs_lose_nothing() {
    let code = r#"
from IPython.display import display
for number in range(3000):
    print(number)
    if number % 10 == 0:
        display({"text/plain": str(number)}, raw=True)
"#;
    let mut worker = Worker::start().await;
    let ran = worker.run(Notebook::new().cell(code)).await.ok();
    let expected: String = (0..3000).map(|number| format!("{number}\n")).collect();
    assert_eq!(ran.text("stdout"), expected);
    let displays = ran
        .outputs()
        .filter(|(kind, _)| *kind == "display_data")
        .count();
    assert_eq!(displays, 300);
}

#[tokio::test]
async fn an_error_comes_with_its_traceback_and_the_state() {
    let mut worker = Worker::start().await;
    let mut notebook = Notebook::new();
    let ran = worker.run(notebook.cell("x = 5\n1 / 0")).await;
    assert_eq!(ran.outcome, Outcome::Error);
    let error = ran.error.as_ref().unwrap();
    assert_eq!(error.name, "ZeroDivisionError");
    assert!(!error.traceback.is_empty());
    assert_eq!(ran.value("x"), 5);
    let ran = worker.run(notebook.cell("y = x")).await.ok();
    assert_eq!(ran.value("y"), 5, "the session goes on");
}

#[tokio::test]
async fn a_state_that_cannot_be_read_is_refused() {
    let mut worker = Worker::start().await;
    let mut notebook = Notebook::new();
    let mut submission = notebook.cell("x = 1");
    manifest(&mut submission).stream = vec![Piece::Inline(Bytes::from_static(b"no JSON"))];
    let ran = worker.run(submission).await;
    assert_eq!(
        (ran.outcome, ran.error_text()),
        (Outcome::Refused, "unreadable")
    );
    // Only the time in which the session tried to read it.
    assert!(ran.usage.run_ms < 10_000, "{:?}", ran.usage);
}

#[tokio::test]
async fn large_state_travels_in_chunks_and_only_once() {
    let mut worker = Worker::start().await;
    let chunks: Vec<Bytes> = (1..4_u8)
        .map(|byte| Bytes::from(vec![byte; CHUNK_BYTES]))
        .collect();
    let pieces = chunks.iter().enumerate().map(|(number, bytes)| {
        let hash = baton_chunks::hash(bytes);
        worker
            .broker
            .chunks
            .lock()
            .unwrap()
            .insert(hash, bytes.clone());
        let number = u32::try_from(number).unwrap();
        let bytes = u32::try_from(bytes.len()).unwrap();
        (number, Piece::Stored { hash, bytes })
    });
    let segment = SegmentPart {
        number: 7,
        bytes: 3 * CHUNK_BYTES as u64,
        fresh: true,
        chunks: pieces.collect(),
    };

    let mut notebook = Notebook::new();
    let mut submission =
        notebook.cell("total = sum(segment_7)\nlength = len(segment_7)\nsegment_7[1 << 20] = 9");
    manifest(&mut submission).segments.push(segment.clone());
    let ran = worker.run(submission).await.ok();
    assert_eq!(ran.value("total"), 6 * CHUNK_BYTES);
    let changed = &ran.state.as_ref().unwrap().segments;
    assert_eq!(changed.len(), 1);
    let [(1, Piece::Stored { hash, .. })] = changed[0].chunks[..] else {
        panic!("only the changed chunk comes back, not {:?}", changed[0]);
    };
    let bytes = worker.broker.chunks.lock().unwrap()[&hash].clone();
    assert_eq!((bytes[0], bytes[1]), (9, 2));
    assert_eq!(*worker.broker.fetched.lock().unwrap(), 3);

    let mut other = Notebook::new();
    let mut submission = other.cell("total = sum(segment_7)");
    manifest(&mut submission).segments.push(segment);
    let ran = worker.run(submission).await.ok();
    assert_eq!(ran.value("total"), 6 * CHUNK_BYTES);
    assert_eq!(
        *worker.broker.fetched.lock().unwrap(),
        3,
        "the rest came from the cache"
    );
}

#[tokio::test]
async fn input_goes_out_and_the_answer_comes_back() {
    let mut worker = Worker::start().await;
    let submission = Notebook::new().cell("print('before')\nname = input('Name? ')");
    let job = submission.job;
    worker.assign(submission).await;
    let answer = Answer::Input(Some("Ada".to_owned()));
    let mut events = worker.answer_next(job, answer).await;
    assert!(events.iter().any(|event| matches!(
        event,
        JobEvent::InputWanted { prompt, password: false, .. } if prompt == "Name? "
    )));
    events.extend(worker.events_until(job, JobEvent::is_last).await);
    let ran = crate::harness::Ran::new(events).ok();
    assert_eq!(ran.value("name"), "Ada");
    assert_eq!(ran.text("stdout"), "before\n");
}
