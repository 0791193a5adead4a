//! The memory transport between two ends in one process.

use baton_chunks::{Bundle, Ledger, memory::Room, pack};
use baton_protocol::{
    HeldKey, Holder,
    shim::{SegmentView, Snapshot},
};
use baton_transport::{MemoryHolder, Unreachable, deposit, fetch};
use nix::sys::stat::fstat;
use std::os::{fd::AsFd, unix::fs::PermissionsExt};
use tempfile::TempDir;
use tokio::task::AbortHandle;

struct Place {
    folder: TempDir,
    holder: MemoryHolder,
    serving: AbortHandle,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir_in("/tmp").unwrap();
        let (holder, serving) = MemoryHolder::open(folder.path()).unwrap();
        let serving = tokio::spawn(serving).abort_handle();
        Self {
            folder,
            holder,
            serving,
        }
    }

    fn address(&self) -> &Holder {
        self.holder.address()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

fn bundle(segment: &[u8]) -> Bundle {
    let snapshot = Snapshot {
        messages: 0,
        stream: "stream".into(),
        segments: vec![SegmentView {
            number: 3,
            address: segment.as_ptr() as u64,
            bytes: segment.len() as u64,
            fresh: true,
            digests: None,
        }],
        dropped_segments: vec![],
    };
    let pid = i32::try_from(std::process::id()).unwrap();
    pack(pid, &snapshot, &Ledger::default(), Room::UNLIMITED, &|| {
        false
    })
    .unwrap()
}

fn inode(file: impl AsFd) -> u64 {
    fstat(file).unwrap().st_ino
}

#[tokio::test]
async fn the_file_itself_arrives_as_often_as_it_is_fetched() {
    let place = Place::new();
    // Large enough that its digests take several reads.
    let sent = bundle(&vec![7; 40 << 20]);
    let (content, number) = (sent.content().clone(), inode(sent.file()));
    let held = place.holder.hold(sent);
    for _ in 0..2 {
        let fetched = fetch(place.address(), held.key()).await.unwrap();
        assert_eq!(fetched.content(), &content);
        assert_eq!(inode(fetched.file()), number);
    }
}

#[tokio::test]
async fn a_result_waits_under_its_name() {
    let place = Place::new();
    let held = place.holder.hold(bundle(b"state"));
    let late = deposit(place.address(), held.key(), &bundle(b"late"))
        .await
        .unwrap();
    let result = bundle(b"result");
    let key = deposit(place.address(), held.key(), &result).await.unwrap();
    assert_ne!(late, key);
    let taken = held.take_result(key).unwrap();
    assert_eq!(inode(taken.file()), inode(result.file()));
    assert!(held.take_result(key).is_none());
}

#[tokio::test]
async fn what_nobody_holds_cannot_be_had() {
    let place = Place::new();
    let held = place.holder.hold(bundle(b"state"));
    let key = held.key();
    drop(held);
    for key in [key, HeldKey::random()] {
        let error = fetch(place.address(), key).await.unwrap_err();
        assert!(matches!(error, Unreachable::Unknown), "{error}");
        let error = deposit(place.address(), key, &bundle(b"x"))
            .await
            .unwrap_err();
        assert!(matches!(error, Unreachable::Unknown), "{error}");
    }
}

#[tokio::test]
async fn another_machine_is_not_even_tried() {
    let place = Place::new();
    let held = place.holder.hold(bundle(b"state"));
    let address = Holder {
        host: "another".to_owned(),
        ..place.address().clone()
    };
    let error = fetch(&address, held.key()).await.unwrap_err();
    assert!(matches!(error, Unreachable::OtherHost), "{error}");
}

#[tokio::test]
async fn a_socket_that_is_gone_is_an_ordinary_answer() {
    let place = Place::new();
    let held = place.holder.hold(bundle(b"state"));
    std::fs::remove_file(&place.address().socket).unwrap();
    let error = fetch(place.address(), held.key()).await.unwrap_err();
    assert!(matches!(error, Unreachable::Socket(_)), "{error}");
}

#[tokio::test]
async fn nobody_else_may_use_the_socket() {
    let place = Place::new();
    let mode = std::fs::metadata(place.folder.path().join("state"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_key_is_not_shown() {
    assert_eq!(format!("{:?}", HeldKey::random()), "HeldKey(hidden)");
}
