//! Cells that make their session send more than the broker, or this machine, has room for.

use crate::harness::{Notebook, Ran, Worker, within};
use baton_protocol::{
    Answer, Bound, JobEvent, JobId, Outcome, Submission,
    worker::{FromWorker, ToWorker},
};

/// `frame(name, body)` makes a frame of the session's own connection.
const FRAMES: &str = "import os, signal, struct, msgpack
link = get_ipython().kernel.link
def frame(name, body):
    document = msgpack.packb({name: body})
    return struct.pack('>Q', len(document)) + document
def comm(number):
    content = ('{\"number\": %d}' % number).encode()
    output = {'kind': 'comm_msg', 'content': content, 'metadata': b'{}', 'buffers': [bytes(1 << 20)]}
    return frame('published', {'output': output})
def of_long_kind(number):
    content = ('{\"number\": %d}' % number).encode()
    output = {'kind': 'x' * (1 << 20), 'content': content, 'metadata': b'{}', 'buffers': []}
    return frame('published', {'output': output})
def question(number):
    prompt = str(number) + ' ' * (1 << 20)
    body = {'message_id': 'cell-1', 'question': number, 'prompt': prompt, 'password': False}
    return frame('input_wanted', body)
";

/// How many messages of 1 MiB a cell sends.
const MESSAGES: u64 = 120;

/// Sends messages until the connection accepts no more for some seconds, then does `then`, and then sends the rest.
fn flood(message: &str, path: &std::path::Path, then: &str) -> String {
    let path = path.display();
    format!(
        "{FRAMES}
for number in range({MESSAGES}):
    rest = memoryview({message}(number))
    while rest:
        try:
            rest = rest[link.socket.send(rest):]
        except TimeoutError:
            link.socket.settimeout(None)
            {then}
            open('{path}.new', 'w').write(str(number))
            os.rename('{path}.new', '{path}')
    if number == 0:
        link.socket.settimeout(3)
link.socket.settimeout(None)
"
    )
}

/// Receives the worker's events without acknowledging any, until `end`. Returns them, and the last one's number.
async fn unacknowledged(
    worker: &mut Worker,
    job: JobId,
    end: impl Fn(&[JobEvent]) -> bool,
) -> (Vec<JobEvent>, u64) {
    let (mut all, mut last) = (Vec::new(), 0);
    within(async {
        while !end(&all) {
            let wait = tokio::time::sleep(std::time::Duration::from_millis(5));
            tokio::select! {
                message = worker.line.receive() => {
                    if let FromWorker::Events { first, events, .. } = message {
                        last = first + events.len() as u64 - 1;
                        acknowledge_start(worker, job, &events).await;
                        all.extend(events);
                    }
                }
                () = wait => {}
            }
        }
    })
    .await;
    (all, last)
}

/// A cell begins only when its start is stored.
async fn acknowledge_start(worker: &mut Worker, job: JobId, events: &[JobEvent]) {
    if matches!(events, [JobEvent::Started { .. }, ..]) {
        acknowledge(worker, job, 1).await;
    }
}

async fn acknowledge(worker: &mut Worker, job: JobId, number: u64) {
    let message = ToWorker::Acknowledge {
        job,
        fencing: 1,
        number,
    };
    worker.line.send(message).await;
}

/// The numbers of the cell's messages.
fn numbers(events: &[JobEvent]) -> Vec<u64> {
    let number = |event: &JobEvent| match event {
        JobEvent::Output(output) => {
            let content: serde_json::Value = serde_json::from_slice(&output.content).unwrap();
            content["number"].as_u64()
        }
        // The upper half of the number names the assignment, and the first question is number 1.
        JobEvent::InputWanted { question, .. } => Some((question & u64::from(u32::MAX)) - 1),
        _ => None,
    };
    events.iter().filter_map(number).collect()
}

async fn flooded(message: &str) {
    let mut worker = Worker::start().await;
    let path = worker.folder.path().join("waited-at");
    let submission = Notebook::new().cell(&flood(message, &path, "pass"));
    let job = submission.job;
    worker.assign(submission).await;
    let (mut events, last) = unacknowledged(&mut worker, job, |_| path.exists()).await;
    let waited_at: u64 = std::fs::read_to_string(&path).unwrap().parse().unwrap();
    assert!(waited_at < 100, "{waited_at}");
    acknowledge(&mut worker, job, last).await;
    let ran = worker.until_finished(job).await.ok();
    events.extend(ran.events);
    assert_eq!(numbers(&events), (0..MESSAGES).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_cell_waits_while_its_messages_to_widgets_are_not_stored() {
    flooded("comm").await;
}

#[tokio::test]
async fn a_cell_waits_while_its_outputs_of_a_long_kind_are_not_stored() {
    flooded("of_long_kind").await;
}

#[tokio::test]
async fn a_cell_waits_while_its_questions_are_not_stored() {
    flooded("question").await;
}

#[tokio::test]
async fn the_end_of_a_session_that_waits_is_noticed() {
    let mut worker = Worker::start().await;
    let path = worker.folder.path().join("never");
    let code = flood("comm", &path, "os.kill(os.getpid(), signal.SIGKILL)");
    let submission = Notebook::new().cell(&code);
    let job = submission.job;
    worker.assign(submission).await;
    let ended = |events: &[JobEvent]| events.last().is_some_and(JobEvent::is_last);
    let (events, _) = unacknowledged(&mut worker, job, ended).await;
    assert_eq!(Ran::new(events).outcome, Outcome::WorkerLost);
}

async fn ends(submission: Submission) -> Ran {
    Worker::start().await.run(submission).await
}

#[tokio::test]
async fn a_child_that_goes_on_sending_does_not_delay_the_end_of_its_session() {
    let code = format!(
        "{FRAMES}
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    message = comm(0)
    link.socket.sendall(message)
    os.write(writer, b'!')
    while True:
        link.socket.sendall(message)
os.read(reader, 1)
os.kill(os.getpid(), signal.SIGKILL)
"
    );
    let ran = ends(Notebook::new().cell(&code)).await;
    assert_eq!(ran.outcome, Outcome::WorkerLost);
    assert!(
        ran.error_text().contains("signal 9"),
        "{}",
        ran.error_text()
    );
}

#[tokio::test]
async fn a_state_that_claims_more_than_all_memory_is_refused() {
    let code = "kernel = get_ipython().kernel
claim = kernel.snapshot()
claim['segments'].append({'number': 77, 'address': 4096, 'bytes': 1 << 50, 'fresh': True, 'digests': None})
kernel.snapshot = lambda: claim
";
    let ran = ends(Notebook::new().cell(code)).await;
    assert_eq!((ran.outcome, &ran.state), (Outcome::WorkerLost, &None));
    let text = ran.error_text();
    assert!(text.contains("The state has 1125899906"), "{text}");
}

#[tokio::test]
async fn a_session_that_sends_too_large_a_message_is_ended() {
    let code =
        format!("{FRAMES}\nlink.socket.sendall(struct.pack('>Q', 200 << 20) + bytes(1 << 20))");
    let ran = ends(Notebook::new().cell(&code)).await;
    assert_eq!((ran.outcome, &ran.state), (Outcome::WorkerLost, &None));
    let text = ran.error_text();
    assert!(text.contains("sent a message of 200 MiB"), "{text}");
}

#[tokio::test]
async fn a_session_that_sends_a_message_of_too_many_parts_is_ended() {
    let code = format!(
        "{FRAMES}
output = {{'kind': 'comm_msg', 'content': b'{{}}', 'metadata': b'{{}}', 'buffers': [b''] * (3 << 20)}}
link.socket.sendall(frame('published', {{'output': output}}))"
    );
    let ran = ends(Notebook::new().cell(&code)).await;
    assert_eq!((ran.outcome, &ran.state), (Outcome::WorkerLost, &None));
    let text = ran.error_text();
    assert!(text.contains("sent a message of 6 MiB"), "{text}");
}

/// A cell of another notebook runs. `Line::receive` fails if the connection was replaced.
async fn check_others_go_on(worker: &mut Worker) {
    worker.run(Notebook::new().cell("other = 1")).await.ok();
}

#[tokio::test]
async fn a_very_long_error_is_cut() {
    let mut worker = Worker::start().await;
    let code = "raise ValueError('begin' + 'x' * 40_000_000 + 'end')";
    let ran = worker.run(Notebook::new().cell(code)).await;
    assert_eq!(ran.outcome, Outcome::Error);
    assert!(ran.state.is_some(), "its changes are kept");
    let text = ran.error_text();
    assert!(text.starts_with("beginx") && text.ends_with("xend"));
    assert!(text.contains("[Baton left out 37.1 MiB here]"));
    check_others_go_on(&mut worker).await;
}

#[tokio::test]
async fn a_traceback_of_very_many_lines_arrives() {
    let mut worker = Worker::start().await;
    let code = "class E(Exception):
    _render_traceback_ = lambda self: [''] * 1_000_000
raise E()";
    let ran = worker.run(Notebook::new().cell(code)).await;
    assert_eq!(ran.outcome, Outcome::Error);
    assert!(ran.state.is_some(), "its changes are kept");
    assert_eq!(ran.error.unwrap().traceback, ["\n".repeat(999_999)]);
    check_others_go_on(&mut worker).await;
}

#[tokio::test]
async fn a_very_long_question_is_cut() {
    let mut worker = Worker::start().await;
    let submission = Notebook::new().cell("answer = input('x' * 70_000_000)");
    let job = submission.job;
    worker.assign(submission).await;
    let answer = Answer::Input(Some("here".to_owned()));
    let events = worker.answer_next(job, answer).await;
    let Some(JobEvent::InputWanted { prompt, .. }) = events.last() else {
        panic!("the last event is no question");
    };
    assert!(prompt.len() < 2 << 20, "{}", prompt.len());
    let ran = worker.until_finished(job).await.ok();
    assert_eq!(ran.value("answer"), "here");
}

/// A state with `segments` new segments of eight bytes.
async fn leaves(worker: &mut Worker, segments: usize) -> Ran {
    let code = format!(
        "import ctypes
kernel = get_ipython().kernel
memory = (ctypes.c_char * 8)()
claim = kernel.snapshot()
claim['segments'] = [
    {{'number': number, 'address': ctypes.addressof(memory), 'bytes': 8, 'fresh': True, 'digests': None}}
    for number in range({segments})
]
kernel.snapshot = lambda: claim
"
    );
    worker.run(Notebook::new().cell(&code)).await
}

#[tokio::test]
async fn a_state_is_returned_only_if_the_broker_accepts_its_list_of_objects() {
    let mut worker = Worker::start().await;
    let ran = leaves(&mut worker, 120_000).await.ok();
    assert!(Bound::MESSAGE.allows(ran.state.as_ref().unwrap()));
    let ran = leaves(&mut worker, 140_000).await;
    assert_eq!((ran.outcome, &ran.state), (Outcome::WorkerLost, &None));
    assert_eq!(ran.error.as_ref().unwrap().name, "StateTooLarge");
    check_others_go_on(&mut worker).await;
}
