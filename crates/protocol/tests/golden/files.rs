//! Messages about files between proxy and worker.

use super::{golden, samples::manifest};
use baton_protocol::{
    decode, encode,
    files::{
        Base, Change, Content, Entry, FilesAnswer, FilesWanted, Listing, NoContent, RelativePath,
        Stamp,
    },
};
use serde_bytes::ByteBuf;

fn path(text: &str) -> RelativePath {
    RelativePath::new(text).unwrap()
}

fn file() -> Entry {
    Entry::File {
        stamp: Stamp(u64::MAX),
        bytes: 5 << 30,
        modified_ns: 1_790_000_000_123_456_789,
        mode: 0o644,
    }
}

fn link() -> Entry {
    Entry::Link {
        target: ByteBuf::from("week-1/data.csv"),
    }
}

fn content() -> Content {
    Content {
        stamp: Some(Stamp(7)),
        bytes: 10,
        modified_ns: -1,
        mode: 0o600,
        pieces: manifest().stream,
    }
}

fn listing() -> Listing {
    Listing {
        base: Some(4),
        number: 5,
        changed: vec![
            (path("week-1"), Entry::Folder { mode: 0o755 }),
            (path("week-1/größe.csv"), file()),
            (path("link"), link()),
        ],
        gone: vec![RelativePath::new(vec![0xff, b'.', b'x']).unwrap()],
        known: vec![path("week-1/größe.csv")],
        cut: true,
        not_applied: false,
    }
}

golden!(entries_are_read, "entry", Entry, [file(), Entry::Folder { mode: 0o755 }, link()], {
    Entry::File { .. } => "file",
    Entry::Folder { .. } => "folder",
    Entry::Link { .. } => "link",
});

golden!(questions_about_files_are_read, "files_wanted", FilesWanted, [
    FilesWanted::Listing {},
    FilesWanted::Contents { paths: vec![path("a/b"), path("c")] },
    FilesWanted::Proof { name: ".baton-7".to_owned() },
    FilesWanted::ProofSeen {},
], {
    FilesWanted::Listing {} => "listing",
    FilesWanted::Contents { .. } => "contents",
    FilesWanted::Proof { .. } => "proof",
    FilesWanted::ProofSeen {} => "proof_seen",
});

golden!(answers_about_files_are_read, "files_answer", FilesAnswer, [
    FilesAnswer::Listing(listing()),
    FilesAnswer::Contents(vec![Ok(content()), Err(NoContent::Gone {})]),
    FilesAnswer::Proof { seen: true },
    FilesAnswer::Failed { reason: "the folder is gone".to_owned() },
], {
    FilesAnswer::Listing(_) => "listing",
    FilesAnswer::Contents(_) => "contents",
    FilesAnswer::Proof { .. } => "proof",
    FilesAnswer::Failed { .. } => "failed",
});

golden!(missing_contents_are_read, "no_content", NoContent, [
    NoContent::Gone {},
    NoContent::Denied {},
    NoContent::Failed { reason: "the disk is full".to_owned() },
], {
    NoContent::Gone {} => "gone",
    NoContent::Denied {} => "denied",
    NoContent::Failed { .. } => "failed",
});

golden!(changes_are_read, "change", Change, [
    Change::Removed { path: path("a"), base: Base::File(Stamp(7)) },
    Change::FolderRemoved { path: path("b") },
    Change::FolderMade { path: path("c"), mode: 0o700 },
    Change::Moved {
        from: path("d"),
        base: Base::Link { target: ByteBuf::from("c") },
        path: path("c/d"),
        over: Some(Base::File(Stamp(8))),
        mode: 0o644,
    },
    Change::Written { path: path("c/e"), over: None, content: content() },
    Change::Linked { path: path("f"), over: None, target: ByteBuf::from("c/e") },
    Change::ModeSet { path: path("g"), base: Base::File(Stamp(8)), mode: 0o755 },
], {
    Change::Removed { .. } => "removed",
    Change::FolderRemoved { .. } => "folder_removed",
    Change::FolderMade { .. } => "folder_made",
    Change::Moved { .. } => "moved",
    Change::Written { .. } => "written",
    Change::Linked { .. } => "linked",
    Change::ModeSet { .. } => "mode_set",
});

/// No message can name a path outside the folder.
#[test]
fn a_path_that_leads_out_is_not_read() {
    for wrong in [
        "",
        "/etc/passwd",
        "..",
        "a/../b",
        "a//b",
        "a/",
        "./a",
        "a\0",
    ] {
        assert!(RelativePath::new(wrong).is_err(), "{wrong:?}");
        let bytes = encode(&ByteBuf::from(wrong));
        assert!(decode::<RelativePath>(&bytes).is_err(), "{wrong:?}");
    }
    assert_eq!(path("a/b/c").parent(), Some(path("a/b")));
    assert_eq!(path("a").parent(), None);
}
