//! Whatever a session does to its mirror, whatever a worker claims about it, and whatever another
//! process renames meanwhile: nothing outside the two folders is read, written or removed.

use crate::{
    pair::{NOTHING, Pair, tree},
    renamer::Renamer,
};
use baton_chunks::hash;
use baton_mirror::{FilesError, MOST_LISTED, Mirror, list, open_payload, small_payload};
use baton_protocol::{
    JobKind, Piece,
    files::{
        Base, Change, Content, Entry, FilesAnswer, FilesWanted, Listing, Payload, RelativePath,
        Stamp,
    },
};
use baton_transport::{ChunkClient, Dial};
use proptest::{collection::vec, prelude::*};
use serde_bytes::ByteBuf;
use std::{
    fs::{self, File},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{LazyLock, Mutex, PoisonError},
};

#[tokio::test]
async fn a_message_beyond_all_limits_is_not_even_fetched() {
    let chunk_client = ChunkClient::new(&Dial {
        address: "http://localhost:9".parse().unwrap(),
        token: None,
        ca_file: None,
    });
    let piece = Piece::Stored {
        hash: hash(b"held"),
        bytes: 1 << 20,
    };
    let payload = Payload(vec![piece; 500_000]);
    let opened = open_payload::<FilesAnswer>(&chunk_client.unwrap(), &payload).await;
    assert!(matches!(opened, Err(FilesError::TooLarge)), "{opened:?}");
}

#[tokio::test]
async fn a_message_with_more_elements_than_any_of_batons_is_refused() {
    let chunk_client = ChunkClient::new(&Dial {
        address: "http://localhost:9".parse().unwrap(),
        token: None,
        ca_file: None,
    });
    let path = RelativePath::new("a").unwrap();
    let wanted = FilesWanted::Contents {
        paths: vec![path; 600_000],
    };
    let opened = open_payload::<FilesWanted>(&chunk_client.unwrap(), &small_payload(&wanted)).await;
    assert!(matches!(opened, Err(FilesError::Decode(_))), "{opened:?}");
}

#[test]
fn a_listing_with_too_many_entries_changes_nothing() {
    let mut pair = Pair::new();
    let changed = (0..=MOST_LISTED).map(|number| {
        let path = RelativePath::new(number.to_string()).unwrap();
        (path, Entry::Folder { mode: 0o755 })
    });
    let listing = Listing {
        base: None,
        number: 1,
        changed: changed.collect(),
        gone: Vec::new(),
        known: Vec::new(),
        cut: false,
        not_applied: false,
    };
    let synced = pair.mirror.sync(&listing);
    assert!(matches!(synced, Err(FilesError::TooLarge)), "{synced:?}");
    assert!(tree(&pair.at("")).is_empty());
}

const SECRET: &str = "nobody else's";

/// Folders, files and links share a few names, so that they often replace each other.
fn names() -> impl Strategy<Value = RelativePath> {
    let name = prop_oneof![Just("a"), Just("b"), Just("c")];
    let names = prop_oneof![3 => vec(name.clone(), 1..2), 2 => vec(name, 2..4)];
    names.prop_map(|names| RelativePath::new(names.join("/")).unwrap())
}

/// Targets of links; `OUTSIDE` stands for the folder outside.
fn targets() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        3 => Just(".."), 1 => Just("."), 1 => Just("a"), 1 => Just("b"), 2 => Just("outside")
    ];
    prop_oneof![
        4 => vec(part, 1..6).prop_map(|parts| parts.join("/")),
        2 => Just(".".to_owned()),
        2 => Just("a/../outside".to_owned()),
        1 => Just("OUTSIDE".to_owned()),
        1 => Just("OUTSIDE/secret".to_owned()),
        1 => Just("/proc/self/cwd".to_owned()),
    ]
}

#[derive(Debug, Clone)]
enum Thing {
    Folder,
    File(u64),
    Link(String),
}

fn things() -> impl Strategy<Value = Thing> {
    prop_oneof![
        2 => Just(Thing::Folder),
        3 => (0_u64..30).prop_map(Thing::File),
        3 => targets().prop_map(Thing::Link),
    ]
}

/// One operation on a few names.
#[derive(Debug, Clone)]
enum Deed {
    Make(RelativePath, Thing),
    Move(RelativePath, RelativePath),
    Remove(RelativePath),
}

fn deeds() -> impl Strategy<Value = Deed> {
    prop_oneof![
        4 => (names(), things()).prop_map(|(path, thing)| Deed::Make(path, thing)),
        3 => (names(), names()).prop_map(|(from, to)| Deed::Move(from, to)),
        1 => names().prop_map(Deed::Remove),
    ]
}

/// A folder that must not be touched, beside the two folders and with the same names in it.
struct Outside {
    folder: PathBuf,
    before: Vec<(PathBuf, (String, u32))>,
}

impl Outside {
    fn make(folder: &Path) -> Self {
        fs::create_dir_all(folder.join("a/b/c")).unwrap();
        fs::create_dir_all(folder.join("b")).unwrap();
        for name in ["secret", "c", "a/c", "b/a", "b/b", "a/b/c/a"] {
            fs::write(folder.join(name), SECRET).unwrap();
        }
        let folder = folder.to_owned();
        let before = tree(&folder).into_iter().collect();
        Self { folder, before }
    }

    fn is_untouched(&self) -> bool {
        tree(&self.folder).into_iter().collect::<Vec<_>>() == self.before
    }

    fn target(&self, target: &str) -> String {
        target.replace("OUTSIDE", self.folder.to_str().unwrap())
    }

    /// Does what a malicious session could do. Operations that fail are skipped.
    fn deed(&self, root: &Path, deed: &Deed) {
        let place = |path: &RelativePath| root.join(path.as_path());
        match deed {
            // A session may reach the folder outside through its own links; that is not tested here.
            Deed::Make(path, _) | Deed::Remove(path) if leads_out(root, path) => {}
            Deed::Move(from, to) if leads_out(root, from) || leads_out(root, to) => {}
            Deed::Make(path, Thing::Folder) => drop(fs::create_dir(place(path))),
            Deed::Make(path, Thing::File(bytes)) => {
                let written = File::create_new(place(path)).and_then(|file| file.set_len(*bytes));
                drop(written);
            }
            Deed::Make(path, Thing::Link(target)) => {
                drop(symlink(self.target(target), place(path)));
            }
            Deed::Move(from, to) => drop(fs::rename(place(from), place(to))),
            Deed::Remove(path) => {
                let place = place(path);
                drop(fs::remove_file(&place).or_else(|_| fs::remove_dir_all(&place)));
            }
        }
    }
}

fn leads_out(root: &Path, path: &RelativePath) -> bool {
    let folder = path.as_path().parent().unwrap_or(Path::new(""));
    let found = root.join(folder).canonicalize();
    !found.is_ok_and(|found| found.starts_with(root.canonicalize().unwrap()))
}

fn while_renaming<T>(folder: &Path, outside: &Path, work: impl FnOnce() -> T) -> T {
    static RENAMER: LazyLock<Mutex<Renamer>> = LazyLock::new(|| Mutex::new(Renamer::start()));
    let mut renamer = RENAMER.lock().unwrap_or_else(PoisonError::into_inner);
    renamer.during(folder, outside, work)
}

/// Everything that a worker reads in the mirror.
fn collected(mirror: &Mirror) -> Vec<Vec<u8>> {
    let Ok(scan) = mirror.scan(usize::MAX) else {
        return Vec::new();
    };
    let written = scan.differences.iter().filter_map(|difference| {
        let mut file = mirror.open_found(&scan, difference.path()).ok()??;
        let mut bytes = Vec::new();
        std::io::Read::read_to_end(&mut file, &mut bytes).ok()?;
        Some(bytes)
    });
    written.collect()
}

fn listing(number: u64, deeds: &[Deed], outside: &Outside) -> Listing {
    let mut listing = Listing {
        base: (number > 1).then(|| number - 1),
        number,
        changed: Vec::new(),
        gone: Vec::new(),
        known: Vec::new(),
        cut: false,
        not_applied: false,
    };
    for deed in deeds {
        match deed {
            Deed::Make(path, thing) => {
                let entry = match thing {
                    Thing::Folder => Entry::Folder { mode: 0o755 },
                    Thing::File(bytes) => Entry::File {
                        stamp: Stamp(number),
                        bytes: *bytes,
                        modified_ns: 1,
                        mode: 0o644,
                    },
                    Thing::Link(target) => Entry::Link {
                        target: ByteBuf::from(outside.target(target)),
                    },
                };
                listing.changed.push((path.clone(), entry));
            }
            Deed::Move(path, _) | Deed::Remove(path) => listing.gone.push(path.clone()),
        }
    }
    listing
}

/// The changes that a worker claims a cell has made.
fn changes(deeds: &[Deed], outside: &Outside, base: impl Fn(&RelativePath) -> Base) -> Vec<Change> {
    let change = |deed: &Deed| match deed.clone() {
        Deed::Make(path, Thing::Folder) => Change::FolderMade { path, mode: 0o755 },
        Deed::Make(path, Thing::File(_)) => Change::Written {
            over: Some(base(&path)),
            path,
            content: Content {
                stamp: None,
                bytes: 4,
                modified_ns: 1,
                mode: 0o644,
                pieces: vec![Piece::Inline("mine".into())],
            },
        },
        Deed::Make(path, Thing::Link(target)) => Change::Linked {
            over: Some(base(&path)),
            path,
            target: ByteBuf::from(outside.target(&target)),
        },
        Deed::Move(from, path) => Change::Moved {
            base: base(&from),
            over: Some(base(&path)),
            from,
            path,
            mode: 0o644,
        },
        Deed::Remove(path) => Change::Removed {
            base: base(&path),
            path,
        },
    };
    deeds.iter().map(change).collect()
}

fn cases(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(cases(150))]

    #[test]
    fn a_worker_touches_nothing_outside_of_a_mirror(
        rounds in vec((vec(deeds(), 0..8), vec(deeds(), 0..8)), 1..4)
    ) {
        let mut pair = Pair::new();
        let outside = Outside::make(&pair.home.with_file_name("outside"));
        for (number, (from_home, of_session)) in (1..).zip(&rounds) {
            let root = pair.mirror.root().to_owned();
            let listing = listing(number, from_home, &outside);
            while_renaming(&root, &outside.folder, || {
                let _ = pair.mirror.sync(&listing);
                for (path, _) in &listing.changed {
                    // A file that a worker fetches before a cell runs.
                    if let Ok(Some(file)) = pair.mirror.open_placeholder(path) {
                        file.set_len(0).unwrap();
                    }
                }
            });
            of_session.iter().for_each(|deed| outside.deed(&root, deed));
            let read = while_renaming(&root, &outside.folder, || collected(&pair.mirror));
            prop_assert!(outside.is_untouched(), "{:?}", tree(&outside.folder));
            prop_assert!(!read.iter().any(|bytes| bytes == SECRET.as_bytes()));
        }
    }
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn nothing_that_comes_home_leads_out_of_the_notebooks_folder(
        at_first in vec(deeds(), 0..4), cells in vec(vec(deeds(), 0..8), 1..4),
        undone in prop::bool::weighted(0.2), renamed in prop::bool::weighted(0.2)
    ) {
        let pair = Pair::new();
        let outside = Outside::make(&pair.home.with_file_name("outside"));
        let is_link = |deed: &&Deed| matches!(deed, Deed::Make(_, Thing::Link(_)));
        at_first.iter().filter(|deed| !is_link(deed)).for_each(|deed| outside.deed(&pair.home, deed));
        for cell in &cells {
            let base = |path: &RelativePath| match list(pair.root(), 100, &NOTHING).entries.get(path) {
                Some(Entry::File { stamp, .. }) => Base::File(*stamp),
                Some(Entry::Link { target }) => Base::Link { target: target.clone() },
                _ => Base::File(Stamp(0)),
            };
            let changes = changes(cell, &outside, base);
            let commit = || {
                let mut staging = pair.stage().unwrap();
                for change in changes {
                    if let Some((file, content)) = staging.add(change).unwrap() {
                        pair.write(file, &content);
                    }
                }
                let committed = baton_mirror::commit(staging, JobKind::Cell);
                if undone {
                    committed.undo();
                } else {
                    committed.keep();
                }
            };
            match renamed {
                true => while_renaming(&pair.home, &outside.folder, commit),
                false => commit(),
            }
            prop_assert!(outside.is_untouched(), "{:?}", tree(&outside.folder));
            // A link of the other process may have been kept, like everything of the student's.
            if renamed {
                continue;
            }
            let home = pair.home.canonicalize().unwrap();
            for (path, _) in tree(&home) {
                let leads_to = home.join(&path).canonicalize();
                prop_assert!(leads_to.as_ref().map_or(true, |place| place.starts_with(&home)), "{:?}", leads_to);
            }
        }
    }
}
