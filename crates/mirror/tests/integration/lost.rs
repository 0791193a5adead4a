//! Folders that are gone, replaced, or unreadable: they are never treated as empty.

use crate::{
    faults::{faults, with_faults},
    pair::{NOTHING, Pair, tree},
};
use baton_mirror::{FilesError, HomeListing, Root, list};
use baton_protocol::files::RelativePath;
use std::{fs, path::Path};

fn filled() -> Pair {
    let mut pair = Pair::new();
    fs::create_dir_all(pair.home.join("data/deep")).unwrap();
    for name in ["a", "b", "data/c", "data/deep/d"] {
        fs::write(pair.home.join(name), name).unwrap();
    }
    pair.sync();
    pair
}

#[test]
fn a_mirror_that_is_gone_or_replaced_is_lost() {
    for replaced in [false, true] {
        let pair = filled();
        let root = pair.mirror.root().to_owned();
        fs::remove_dir_all(&root).unwrap();
        if replaced {
            fs::create_dir(&root).unwrap();
        }
        let gone =
            |result: Result<(), FilesError>| matches!(result, Err(FilesError::FolderGone { .. }));
        assert!(gone(pair.mirror.check()));
        assert!(gone(pair.mirror.scan(usize::MAX).map(drop)));
    }
}

#[test]
fn a_mirror_that_cannot_be_read_is_lost() {
    with_faults("lost::a_mirror_that_cannot_be_read_is_lost", || {
        let pair = filled();
        let mut failed = 0;
        for fault in faults() {
            match fault.during(|| pair.mirror.scan(usize::MAX)) {
                Ok(scan) => assert!(
                    scan.differences.is_empty(),
                    "{fault:?}: {:?}",
                    scan.differences
                ),
                Err(_) => failed += 1,
            }
        }
        assert!(failed > 100, "{failed}");
    });
}

#[test]
fn what_cannot_be_read_at_home_is_not_gone() {
    with_faults("lost::what_cannot_be_read_at_home_is_not_gone", || {
        let pair = filled();
        let root = Root::open(&pair.home).unwrap();
        let mut failed = 0;
        for fault in faults() {
            let mut listing = HomeListing::default();
            let all = listing.next(list(&root, 100, &NOTHING), false).changed;
            let seen = fault.during(|| list(&root, 100, &NOTHING));
            failed += usize::from(!seen.errors.is_empty());
            let next = listing.next(seen, false);
            assert_eq!((next.gone, next.changed), (vec![], vec![]), "{fault:?}");
            assert!(listing.has_file(&RelativePath::new("data/deep/d").unwrap()));
            let whole = listing.next(list(&root, 100, &NOTHING), true);
            assert_eq!(whole.changed, all);
        }
        assert!(failed > 100, "{failed}");
    });
}

#[test]
fn what_was_deleted_beside_an_unreadable_folder_is_gone() {
    with_faults(
        "lost::what_was_deleted_beside_an_unreadable_folder_is_gone",
        || {
            for fault in faults().step_by(7) {
                let mut pair = filled();
                fs::remove_file(pair.home.join("a")).unwrap();
                fs::remove_dir_all(pair.home.join("data/deep")).unwrap();
                let seen = fault.during(|| pair.look());
                pair.sync_with(seen);
                let here = tree(pair.mirror.root());
                assert!(
                    here.contains_key(Path::new("b")) && here.contains_key(Path::new("data/c"))
                );
                pair.sync();
                assert_eq!(tree(pair.mirror.root()).len(), 3);
                assert!(pair.cell(|_| ()).is_empty());
                assert_eq!(tree(&pair.home).len(), 3);
            }
        },
    );
}

#[test]
fn a_home_that_is_gone_or_replaced_is_unknown_and_takes_nothing() {
    for replaced in [false, true] {
        let mut pair = filled();
        fs::rename(&pair.home, pair.home.with_file_name("away")).unwrap();
        if replaced {
            fs::create_dir(&pair.home).unwrap();
        }
        let before = tree(pair.mirror.root());
        pair.sync();
        assert_eq!(tree(pair.mirror.root()), before);
        assert!(matches!(pair.stage(), Err(FilesError::FolderGone { .. })));
        assert_eq!(pair.home.exists(), replaced);
    }
}
