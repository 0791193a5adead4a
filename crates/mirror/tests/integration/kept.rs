//! What a cell made is kept if it cannot be put in place.

use crate::{
    faults::{CALLS, Fault, with_border, with_faults, without_times_and_permissions},
    pair::{Pair, tree},
};
use baton_mirror::{Committed, Staging};
use baton_protocol::JobKind;
use nix::errno::Errno;
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

/// A cell renames a file into the folder "mounted", replaces another one there, and makes a new one.
fn cell() -> Pair {
    let mut pair = Pair::new();
    fs::create_dir(pair.home.join("mounted")).unwrap();
    fs::write(pair.home.join("a.csv"), "a").unwrap();
    fs::write(pair.home.join("mounted/old.csv"), "old").unwrap();
    pair.sync();
    let (from, to) = (pair.removing("a.csv"), pair.removing("mounted/a.csv"));
    fs::rename(from, to).unwrap();
    fs::write(pair.at("mounted/old.csv"), "new").unwrap();
    fs::write(pair.at("mounted/result.csv"), "result").unwrap();
    pair
}

fn commit(pair: &mut Pair, commit: impl FnOnce(Staging) -> Committed) -> Committed {
    let scan = pair.mirror.scan(usize::MAX).unwrap();
    pair.commit_by(scan, commit)
}

#[test]
fn a_folder_that_is_gone_at_home_costs_no_file() {
    for undo in [false, true] {
        let mut pair = cell();
        let home = pair.home.clone();
        fs::rename(home.join("mounted"), home.join("elsewhere")).unwrap();
        let before = tree(&home);
        let committed = pair.commit_home();
        if undo {
            assert_eq!(committed.undo(), [""; 0]);
            assert_eq!(tree(&home), before);
            continue;
        }
        assert_eq!(text(home.join("a.csv")), "a");
        assert_eq!(text(home.join("elsewhere/old.csv")), "old");
        let notes = committed.keep();
        assert_eq!(notes.len(), 3, "{notes:?}");
        assert!(notes[0].starts_with("'a.csv' was renamed to 'mounted/a.csv' by the cell, but "));
        assert!(notes[0].ends_with("; it stays here as it was"));
        for (name, bytes) in [("old", "new"), ("result", "result")] {
            let kept = format!("{name} (from the GPU).csv");
            let version = format!("; the cell's version is '{kept}'");
            assert!(
                notes.iter().any(|note| note.ends_with(&version)),
                "{notes:?}"
            );
            assert_eq!(text(home.join(kept)), bytes);
        }
        // Both sides agree again.
        assert!(pair.cell(|_| ()).is_empty());
        let mirrored = pair.at("result (from the GPU).csv");
        pair.fill(&mirrored);
        assert_eq!(text(mirrored), "result");
    }
}

#[test]
fn a_folder_where_nothing_may_be_written_costs_no_file() {
    with_faults(
        "kept::a_folder_where_nothing_may_be_written_costs_no_file",
        || {
            let mut pair = cell();
            let home = pair.home.clone();
            let committed = commit(&mut pair, |staging| {
                with_border(Errno::EACCES, || {
                    baton_mirror::commit(staging, JobKind::Cell)
                })
            });
            let notes = committed.keep();
            assert_eq!(notes.len(), 3, "{notes:?}");
            assert_eq!(text(home.join("a.csv")), "a");
            assert_eq!(text(home.join("mounted/old.csv")), "old");
            assert_eq!(text(home.join("old (from the GPU).csv")), "new");
            assert_eq!(text(home.join("result (from the GPU).csv")), "result");
        },
    );
}

#[test]
fn both_versions_stay_on_another_file_system() {
    with_faults("kept::both_versions_stay_on_another_file_system", || {
        let mut pair = cell();
        let home = pair.home.clone();
        fs::write(home.join("mounted/old.csv"), "of somebody else").unwrap();
        let committed = commit(&mut pair, |staging| {
            with_border(Errno::EXDEV, || {
                baton_mirror::commit(staging, JobKind::Cell)
            })
        });
        let notes = committed.keep();
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert_eq!(text(home.join("mounted/old.csv")), "of somebody else");
        assert_eq!(text(home.join("mounted/old (from the GPU).csv")), "new");
        assert_eq!(text(home.join("mounted/a.csv")), "a");
        assert!(!home.join("a.csv").exists());
    });
}

#[test]
fn a_file_system_without_times_and_permissions_gets_the_bytes() {
    with_faults(
        "kept::a_file_system_without_times_and_permissions_gets_the_bytes",
        || {
            for border in [0, Errno::EXDEV as i32] {
                let mut pair = cell();
                fs::create_dir(pair.at("made")).unwrap();
                let committed = commit(&mut pair, |staging| {
                    without_times_and_permissions(Errno::EPERM, || {
                        with_border(Errno::from_raw(border), || {
                            baton_mirror::commit(staging, JobKind::Cell)
                        })
                    })
                });
                let notes = committed.keep();
                assert!(notes.is_empty(), "{notes:?}");
                let home = pair.home.clone();
                assert!(home.join("made").is_dir());
                for (name, bytes) in [("a", "a"), ("old", "new"), ("result", "result")] {
                    assert_eq!(text(home.join(format!("mounted/{name}.csv"))), bytes);
                }
                // The mirror keeps its versions: they are what is here now.
                let listing = pair.sync();
                assert_eq!(listing.known.len(), 3, "{listing:?}");
            }
        },
    );
}

#[test]
fn whatever_fails_no_bytes_are_lost() {
    with_faults("kept::whatever_fails_no_bytes_are_lost", || {
        for (after, undo) in (0..CALLS).flat_map(|after| [(after, false), (after, true)]) {
            let mut pair = cell();
            let before = tree(&pair.home);
            let full = Fault {
                error: Errno::ENOSPC,
                after,
                sticky: false,
            };
            let committed = commit(&mut pair, |staging| {
                with_border(Errno::EXDEV, || {
                    full.during(|| baton_mirror::commit(staging, JobKind::Cell))
                })
            });
            if undo {
                assert_eq!(committed.undo(), [""; 0]);
                assert_eq!(tree(&pair.home), before, "{full:?}");
                continue;
            }
            let notes = committed.keep();
            let left = contents(pair.home.parent().unwrap());
            for bytes in ["a", "old", "new", "result"] {
                assert!(left.contains(bytes), "{bytes} after {full:?}: {notes:?}");
            }
        }
    });
}

/// The contents of all files at home and in the trash.
fn contents(folder: &Path) -> BTreeSet<String> {
    let mut contents = BTreeSet::new();
    let mut folders: Vec<PathBuf> = ["course", "state"].map(|name| folder.join(name)).into();
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => drop(contents.insert(text(path))),
            }
        }
    }
    contents
}
