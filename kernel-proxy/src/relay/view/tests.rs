#![allow(clippy::unwrap_used)]
use super::*;
use crate::relay::ParentCell;
use baton_jupyter_wire::{
    connection::ConnectionFile,
    message::{Draft, Signer},
    wire::{decode_message, encode_message},
};
use baton_protocol::Output;
use proptest::prelude::*;
use serde_json::json;
use tokio::{io::DuplexStream, task::JoinHandle};

const READY: &[u8] = b"\x04\x06\x05READY";
const SUBSCRIBE: &[u8] = b"\x04\x0a\x09SUBSCRIBE";

/// A kernel and a client, connected by the view.
struct Pair {
    kernel: DuplexStream,
    client: DuplexStream,
    view: JoinHandle<Result<(), ViewError>>,
}

fn relay(limits: Limits) -> Relay {
    let ports =
        r#""shell_port": 1, "iopub_port": 2, "stdin_port": 3, "control_port": 4, "hb_port": 5"#;
    let file = format!(r#"{{"transport": "ipc", "ip": "/nowhere/kernel", "key": "key", {ports}}}"#);
    let connection = ConnectionFile::parse(file.as_bytes()).unwrap();
    Relay::with_limits(&connection, limits)
}

fn start(relay: &Relay, said: &[&[u8]]) -> Pair {
    start_with_buffer(relay, said, 4 << 10)
}

/// `buffer_bytes`: what a client takes at once, although it reads nothing yet.
fn start_with_buffer(relay: &Relay, said: &[&[u8]], buffer_bytes: usize) -> Pair {
    let (kernel, from_kernel) = tokio::io::duplex(64 << 10);
    let (to_client, client) = tokio::io::duplex(buffer_bytes);
    let audience = Audience::default();
    for bytes in said {
        let mut tracker = Tracker::after_greeting();
        audience.note(&tracker.advance(bytes).unwrap().ended.unwrap(), relay);
    }
    let relay = relay.clone();
    let view = tokio::spawn(async move { show(from_kernel, to_client, &relay, &audience).await });
    Pair {
        kernel,
        client,
        view,
    }
}

fn greeting() -> Vec<u8> {
    let mut greeting = vec![0; 64];
    greeting[0] = 0xff;
    greeting[9] = 0x7f;
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting.extend_from_slice(READY);
    greeting
}

fn message(cell: &str, kind: &str, content: &serde_json::Value) -> Bytes {
    signed(
        kind,
        Draft {
            parent_header: json!({"msg_id": cell}).to_string().into(),
            ..Draft::new(kind, content.to_string())
        },
    )
}

/// A stream message with the number that the kernel's session gives it.
fn printed(cell: &str, text: &str, number: u64) -> Bytes {
    let content = json!({"name": "stdout", "text": text}).to_string();
    signed(
        "stream",
        Draft {
            message_id: format!("kernel_41_{number}"),
            parent_header: json!({"msg_id": cell}).to_string().into(),
            ..Draft::new("stream", content)
        },
    )
}

fn signed(kind: &str, draft: Draft) -> Bytes {
    let mut frames = vec![Bytes::from(kind.to_owned())];
    frames.extend(draft.sign(&Signer::new(b"key", "hmac-sha256").unwrap(), "kernel"));
    encode_message(&frames)
}

fn status(cell: &str, state: &str) -> Bytes {
    message(cell, "status", &json!({"execution_state": state}))
}

fn input(cell: &str) -> Bytes {
    message(cell, "execute_input", &json!({"code": ""}))
}

fn display(cell: &str, bytes: usize) -> Bytes {
    message(
        cell,
        "display_data",
        &json!({"data": {"text/plain": "x".repeat(bytes)}}),
    )
}

fn parent(cell: &str) -> ParentCell {
    ParentCell {
        header: json!({"msg_id": cell}).to_string().into(),
        message_id: cell.to_owned(),
        kernel_session: "s".to_owned(),
        after: None,
        silent: false,
        background: false,
    }
}

fn inject(relay: &Relay, cell: &str, silent: bool, text: &str) {
    inject_below(
        relay,
        &ParentCell {
            silent,
            ..parent(cell)
        },
        text,
    );
}

fn inject_below(relay: &Relay, parent: &ParentCell, text: &str) {
    let content = json!({"name": "stdout", "text": text}).to_string();
    relay.inject(parent, Output::new("stream", content));
}

/// Runs the view until it has nothing left to do.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

impl Pair {
    async fn kernel_sends(&mut self, messages: &[Bytes]) {
        self.kernel.write_all(&messages.concat()).await.unwrap();
        settle().await;
    }

    /// What the client received, in words, once the kernel has closed.
    async fn end(mut self) -> Vec<String> {
        drop(self.kernel);
        let mut bytes = Vec::new();
        self.client.read_to_end(&mut bytes).await.unwrap();
        self.view.await.unwrap().unwrap();
        words(&bytes)
    }
}

/// Each whole message as its `kind`, with the state of a status and the text of a stream.
fn words(bytes: &[u8]) -> Vec<String> {
    let mut tracker = Tracker::default();
    let mut words = Vec::new();
    let mut start = 0;
    let mut used = 0;
    while used < bytes.len() {
        let step = tracker.advance(&bytes[used..]).unwrap();
        used += step.used;
        let ended = step.ended.expect("whole messages only");
        if matches!(ended, Ended::Message(_)) {
            words.push(word(Bytes::copy_from_slice(&bytes[start..used])));
        }
        start = used;
    }
    words
}

fn word(wire: Bytes) -> String {
    let frames = decode_message(wire).unwrap();
    let content: serde_json::Value = serde_json::from_slice(&frames[6]).unwrap();
    let header: serde_json::Value = serde_json::from_slice(&frames[3]).unwrap();
    let kind = header["msg_type"].as_str().unwrap();
    let said = content["execution_state"]
        .as_str()
        .or(content["text"].as_str());
    said.map_or_else(|| kind.to_owned(), str::to_owned)
}

#[tokio::test]
async fn output_stands_between_input_and_idle_although_they_are_read_at_once() {
    let relay = relay(Limits::default());
    let mut pair = start(&relay, &[SUBSCRIBE]);
    settle().await;
    inject(&relay, "a", false, "1");
    inject(&relay, "a", false, "2");
    pair.kernel_sends(&[
        greeting().into(),
        status("a", "busy"),
        input("a"),
        status("a", "idle"),
    ])
    .await;
    assert_eq!(
        pair.end().await,
        ["busy", "execute_input", "1", "2", "idle"]
    );
}

#[tokio::test]
async fn output_of_a_block_stands_below_what_its_cell_printed_before() {
    let relay = relay(Limits::default());
    let mut pair = start(&relay, &[SUBSCRIBE]);
    pair.kernel_sends(&[greeting().into(), status("a", "busy"), input("a")])
        .await;
    let after = |number: u64| ParentCell {
        after: MessageNumber::read(&format!("kernel_41_{number}")),
        ..parent("a")
    };
    pair.kernel_sends(&[printed("a", "before", 9)]).await;
    inject_below(&relay, &after(9), "1");
    settle().await;
    inject_below(&relay, &after(10), "2");
    settle().await;
    pair.kernel_sends(&[
        printed("a", "between", 10),
        printed("a", "behind", 11),
        status("a", "idle"),
    ])
    .await;
    assert_eq!(
        pair.end().await,
        [
            "busy",
            "execute_input",
            "before",
            "1",
            "between",
            "2",
            "behind",
            "idle"
        ]
    );
}

#[tokio::test]
async fn output_of_a_silent_cell_follows_its_busy() {
    let relay = relay(Limits::default());
    let mut pair = start(&relay, &[SUBSCRIBE]);
    settle().await;
    inject(&relay, "a", true, "1");
    inject(&relay, "b", false, "never");
    pair.kernel_sends(&[greeting().into(), status("a", "busy"), status("a", "idle")])
        .await;
    assert_eq!(pair.end().await, ["busy", "1", "idle"]);
}

#[tokio::test]
async fn a_background_cell_shows_output_after_its_idle_and_after_many_other_cells() {
    let relay = relay(Limits::default());
    let background = ParentCell {
        background: true,
        ..parent("a")
    };
    let mut pair = start(&relay, &[SUBSCRIBE]);
    settle().await;
    relay.begin_background(&background);
    inject_below(&relay, &background, "1");
    let a = [status("a", "busy"), input("a"), status("a", "idle")];
    pair.kernel_sends(&[&[greeting().into()], &a[..]].concat())
        .await;
    inject_below(&relay, &background, "2");
    settle().await;
    for number in 0..100 {
        let other = number.to_string();
        pair.kernel_sends(&[status(&other, "busy"), status(&other, "idle")])
            .await;
    }
    inject_below(&relay, &background, "3");
    settle().await;
    let mut shown = pair.end().await;
    shown.retain(|word| word != "busy" && word != "idle");
    assert_eq!(shown, ["execute_input", "1", "2", "3"]);
}

#[tokio::test]
async fn nothing_follows_the_idle_of_a_cell_that_was_left() {
    let relay = relay(Limits::default());
    let mut pair = start(&relay, &[SUBSCRIBE]);
    pair.kernel_sends(&[
        greeting().into(),
        status("a", "busy"),
        input("a"),
        status("a", "idle"),
        status("b", "busy"),
        input("b"),
    ])
    .await;
    inject(&relay, "a", false, "late");
    inject(&relay, "b", false, "1");
    settle().await;
    assert_eq!(
        pair.end().await,
        [
            "busy",
            "execute_input",
            "idle",
            "busy",
            "execute_input",
            "1"
        ]
    );
}

#[tokio::test]
async fn one_that_joins_in_the_middle_of_a_cell_gets_the_rest_at_once() {
    let relay = relay(Limits::default());
    let mut early = start(&relay, &[SUBSCRIBE]);
    early
        .kernel_sends(&[greeting().into(), status("a", "busy"), input("a")])
        .await;
    let mut late = start(&relay, &[SUBSCRIBE]);
    late.kernel_sends(&[greeting().into()]).await;
    inject(&relay, "a", false, "1");
    settle().await;
    late.kernel_sends(&[status("a", "idle")]).await;
    assert_eq!(late.end().await, ["1", "idle"]);
    assert_eq!(early.end().await, ["busy", "execute_input", "1"]);
}

#[tokio::test]
async fn one_that_joins_when_nobody_looks_gets_the_rest_with_the_cells_next_message() {
    let relay = relay(Limits::default());
    let mut pair = start(&relay, &[SUBSCRIBE]);
    pair.kernel_sends(&[greeting().into()]).await;
    inject(&relay, "a", false, "1");
    settle().await;
    pair.kernel_sends(&[status("b", "busy"), display("a", 1), status("a", "idle")])
        .await;
    assert_eq!(pair.end().await, ["busy", "display_data", "1", "idle"]);
}

#[tokio::test]
async fn a_client_gets_what_it_asked_for() {
    let check = async |said: &[&[u8]], expected: &[&str]| {
        let relay = relay(Limits::default());
        let mut pair = start(&relay, said);
        pair.kernel_sends(&[greeting().into()]).await;
        inject(&relay, "a", false, "1");
        settle().await;
        assert_eq!(pair.end().await, expected);
    };
    check(&[], &[]).await;
    check(&[b"\0\x07\x01stream"], &["1"]).await;
    check(&[b"\0\x08\x01display"], &[]).await;
    check(&[SUBSCRIBE], &[]).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_too_slowly_gets_what_matters() {
    let limits = Limits {
        compact_above_bytes: 100 << 10,
        queued_bytes: 200 << 10,
        ..Limits::default()
    };
    let relay = relay(limits);
    let mut pair = start(&relay, &[SUBSCRIBE]);
    pair.kernel_sends(&[greeting().into(), status("a", "busy"), input("a")])
        .await;
    for _ in 0..100 {
        pair.kernel_sends(&[display("a", 10_000)]).await;
    }
    inject(&relay, "a", false, "remote");
    pair.kernel_sends(&[status("a", "idle")]).await;
    let words = pair.end().await;
    assert_eq!(words[..2], ["busy", "execute_input"]);
    assert_eq!(words[words.len() - 2..], ["remote", "idle"]);
    assert!(words.iter().any(|word| word.contains("left out")));
    assert!(words.len() < 60, "{} messages", words.len());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_only_pauses_gets_everything() {
    let limits = Limits {
        compact_above_bytes: 100 << 10,
        queued_bytes: 200 << 10,
        ..Limits::default()
    };
    let pair = start(&relay(limits), &[SUBSCRIBE]);
    let (mut kernel, mut client) = (pair.kernel, pair.client);
    tokio::spawn(async move {
        kernel.write_all(&greeting()).await.unwrap();
        for _ in 0..100 {
            kernel.write_all(&display("a", 10_000)).await.unwrap();
        }
    });
    tokio::time::sleep(limits.patience / 2).await;
    let mut bytes = Vec::new();
    client.read_to_end(&mut bytes).await.unwrap();
    assert_eq!(words(&bytes), ["display_data"; 100]);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stands_still_loses_its_connection() {
    let limits = Limits {
        compact_above_bytes: 10 << 10,
        queued_bytes: 20 << 10,
        ..Limits::default()
    };
    let mut pair = start(&relay(limits), &[SUBSCRIBE]);
    let mut kernel = pair.kernel;
    let kernel = tokio::spawn(async move {
        kernel.write_all(&greeting()).await.unwrap();
        while kernel.write_all(&status("a", "busy")).await.is_ok() {}
    });
    let error = pair.view.await.unwrap().unwrap_err();
    assert!(
        matches!(error, ViewError::Stalled { seconds: 10, .. }),
        "{error}"
    );
    kernel.await.unwrap();
    let mut bytes = Vec::new();
    pair.client.read_to_end(&mut bytes).await.unwrap();
}

/// Starts a cell for a client that takes this much, inserts 200 outputs of 10 kB at once, and returns whether the client
/// is still connected.
async fn stays_connected(kind: &str, buffer_bytes: usize) -> bool {
    let limits = Limits {
        compact_above_bytes: 100 << 10,
        queued_bytes: 200 << 10,
        most_bytes: 1 << 20,
        ..Limits::default()
    };
    let relay = relay(limits);
    let mut pair = start_with_buffer(&relay, &[SUBSCRIBE], buffer_bytes);
    pair.kernel_sends(&[greeting().into(), status("a", "busy"), input("a")])
        .await;
    for _ in 0..200 {
        let content = json!({"data": "x".repeat(10_000)}).to_string();
        relay.inject(&parent("a"), Output::new(kind, content));
    }
    settle().await;
    if !pair.view.is_finished() {
        return true;
    }
    let error = pair.view.await.unwrap().unwrap_err();
    assert!(matches!(error, ViewError::TooSlow { .. }), "{error}");
    false
}

#[tokio::test(start_paused = true)]
async fn a_client_is_disconnected_only_if_too_much_must_wait_for_it() {
    const NEARLY_NOTHING: usize = 4 << 10;
    assert!(stays_connected("display_data", NEARLY_NOTHING).await);
    assert!(!stays_connected("comm_msg", NEARLY_NOTHING).await);
    assert!(stays_connected("comm_msg", 4 << 20).await);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// However the kernel's bytes are cut, and whenever something is injected, the kernel's
    /// messages keep their bytes and their order, and nothing is inserted before the cell's input.
    #[test]
    fn messages_of_the_kernel_stay(cuts in prop::collection::vec(any::<usize>(), 0..20)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (injected, words) = runtime.block_on(words_with_injections(&cuts));
        let mine: Vec<usize> = (0..words.len()).filter(|index| words[*index] == "mine").collect();
        prop_assert_eq!(mine.len(), injected);
        prop_assert!(mine.iter().all(|index| *index >= 2), "{words:?}");
        let kernels: Vec<_> = words.iter().filter(|word| *word != "mine").collect();
        prop_assert_eq!(kernels, ["busy", "execute_input", "display_data", "display_data", "idle"]);
    }
}

proptest! {
    /// Whatever bytes a kernel sends, the client receives them from the first one on, unchanged, or
    /// is disconnected. Set `PROPTEST_CASES=100000` for a longer search.
    #[test]
    fn any_bytes_of_a_kernel_pass_or_end_the_connection(
        begins_right in any::<bool>(),
        frames in prop::collection::vec((0_u8..9, prop::collection::vec(any::<u8>(), 0..300)), 0..30),
        silent in any::<bool>(),
    ) {
        let mut stream = if begins_right { greeting() } else { Vec::new() };
        for (flags, body) in frames {
            stream.push(flags | 2);
            stream.extend((body.len() as u64).to_be_bytes());
            stream.extend(body);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (received, ended) = runtime.block_on(async {
            let relay = relay(Limits::default());
            let Pair { mut kernel, mut client, view } = start(&relay, &[SUBSCRIBE]);
            inject(&relay, "a", silent, "never");
            let sent = stream.clone();
            let sending = tokio::spawn(async move { kernel.write_all(&sent).await });
            let mut received = Vec::new();
            client.read_to_end(&mut received).await.unwrap();
            let _ = sending.await;
            (received, view.await.unwrap())
        });
        prop_assert!(stream.starts_with(&received));
        prop_assert!(ended.is_err() || received.len() == stream.len());
    }
}

/// Injects something at every cut. Returns the number of injections, and what the client received.
async fn words_with_injections(cuts: &[usize]) -> (usize, Vec<String>) {
    let mut stream = greeting();
    for message in [
        status("a", "busy"),
        input("a"),
        display("a", 300),
        display("a", 70_000),
        status("b", "idle"),
    ] {
        stream.extend_from_slice(&message);
    }
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % stream.len()).collect();
    cuts.extend([0, stream.len()]);
    cuts.sort_unstable();

    let relay = relay(Limits::default());
    let Pair {
        mut kernel,
        mut client,
        view,
    } = start(&relay, &[SUBSCRIBE]);
    let reading = tokio::spawn(async move {
        let mut bytes = Vec::new();
        client.read_to_end(&mut bytes).await.unwrap();
        words(&bytes)
    });
    settle().await;
    for cut in cuts.windows(2) {
        kernel.write_all(&stream[cut[0]..cut[1]]).await.unwrap();
        settle().await;
        inject(&relay, "a", false, "mine");
    }
    settle().await;
    drop(kernel);
    view.await.unwrap().unwrap();
    (cuts.len() - 1, reading.await.unwrap())
}
