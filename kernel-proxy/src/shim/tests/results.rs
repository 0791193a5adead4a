//! Results that arrive although something fails or takes long.

use super::scripted::{Broker, Shim, returning, started, submit_background_cell};
use crate::shim::*;
use baton_protocol::{
    CallId, Finished, JobEvent, JobId, Piece, encode,
    files::{Change, Content, Payload, RelativePath},
    shim::ToNotebook,
};
use std::path::Path;

const VARIABLES: &[u8] = b"the variables that a cell changed";
const FILE: &[u8] = b"the bytes of a file that it wrote";
/// A call before that of the cell.
const EARLIER: CallId = 0;

#[tokio::test]
async fn variables_and_files_arrive_after_errors_of_the_broker() {
    let folder = tempfile::tempdir().unwrap();
    let (_broker, mut shim) = writing(folder.path(), &[FILE]).await;
    check_finished(&mut shim).await;
    let made = folder.path().join("made.txt");
    assert_eq!(std::fs::read(made).unwrap(), FILE);
}

#[tokio::test]
async fn variables_arrive_although_the_bytes_of_a_file_are_gone() {
    let folder = tempfile::tempdir().unwrap();
    let (_broker, mut shim) = writing(folder.path(), &[]).await;
    let warning = match shim.receive().await {
        ToNotebook::Publish { output, .. } => String::from_utf8(output.content.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    };
    let expected = "The cell's file changes could not be applied here (";
    assert!(warning.contains(expected), "{warning}");
    check_finished(&mut shim).await;
}

#[tokio::test]
async fn earlier_output_is_given_while_a_result_is_fetched_and_applied() {
    let mut broker = Broker::start([VARIABLES]).await;
    let closed_gate = broker.close_gate().await;
    let (mut shim, submission) = submit_background_cell(&mut broker).await;
    let end = returning(&submission, stored(VARIABLES));
    send_end(&mut broker, submission.job, end).await;
    broker.until_asked().await;
    check_output_is_given(&mut shim).await;
    // The connection is lost, and the request for the result fails.
    broker.close().await;
    broker.accept().await;
    drop(closed_gate);
    check_output_is_given(&mut shim).await;
    broker.greet().await;
    check_finished(&mut shim).await;
    check_output_is_given(&mut shim).await;
}

/// The shim of a notebook in this folder whose cell wrote the file `made.txt` with `FILE`, and the
/// broker. `chunks`: what the broker has besides the variables and the list of changes.
async fn writing(folder: &Path, chunks: &[&'static [u8]]) -> (Broker, Shim) {
    // The proxy works in the folder of its notebook. Each test has a process of its own.
    std::env::set_current_dir(folder).unwrap();
    let written = Change::Written {
        path: RelativePath::new("made.txt").unwrap(),
        over: None,
        content: Content {
            stamp: None,
            bytes: FILE.len() as u64,
            modified_ns: 0,
            mode: 0o644,
            pieces: vec![stored(FILE)],
        },
    };
    let changes: &'static [u8] = encode(&vec![written]).leak();
    let chunks = chunks.iter().copied().chain([VARIABLES, changes]);
    let mut broker = Broker::start(chunks).await;
    let (shim, submission) = submit_background_cell(&mut broker).await;
    let end = Finished {
        files: Some(Payload(vec![stored(changes)])),
        ..returning(&submission, stored(VARIABLES))
    };
    send_end(&mut broker, submission.job, end).await;
    (broker, shim)
}

/// The proxy hears at once that the job has started and how it ended.
async fn send_end(broker: &mut Broker, job: JobId, end: Finished) {
    let events = started().into_iter().chain([JobEvent::Finished(end)]);
    broker.send_events(job, 1, events).await;
}

fn stored(chunk: &[u8]) -> Piece {
    Piece::Stored {
        hash: baton_chunks::hash(chunk),
        bytes: u32::try_from(chunk.len()).unwrap(),
    }
}

async fn check_finished(shim: &mut Shim) {
    let finished = shim.receive().await;
    assert!(
        matches!(finished, ToNotebook::Finished { delta: Some(_), .. }),
        "{finished:?}"
    );
}

async fn check_output_is_given(shim: &mut Shim) {
    shim.send(FromNotebook::OutputWanted { call: EARLIER })
        .await;
    let given = ToNotebook::OutputGiven {
        call: EARLIER,
        missing: 0,
    };
    assert_eq!(shim.receive().await, given);
}
