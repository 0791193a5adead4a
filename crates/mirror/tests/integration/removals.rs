//! Only removals that a cell was seen making are repeated at home. If removals are not seen, only
//! plausible ones are.

use crate::pair::{Before, NOTHING, Pair, tree};
use baton_mirror::{HomeListing, Mirror, Root, Scan, list};
use std::{
    collections::{HashMap, HashSet},
    ffi::OsStr,
    fs,
};

/// `count` files, all in one folder.
fn filled(count: usize) -> Pair {
    let mut pair = Pair::new();
    fs::create_dir(pair.home.join("data")).unwrap();
    for number in 0..count {
        fs::write(pair.home.join(format!("data/{number}")), "x").unwrap();
    }
    pair.sync();
    pair
}

#[test]
fn what_no_cell_removed_stays_at_home() {
    let mut pair = filled(4);
    let before = tree(&pair.home);
    for number in 0..3 {
        fs::remove_file(pair.at(format!("data/{number}"))).unwrap();
    }
    let scan = pair.mirror.scan(usize::MAX).unwrap();
    assert_eq!(scan.missing.len(), 3);
    assert_eq!(scan.differences, []);
    assert!(pair.commit(scan).keep().is_empty());
    assert!(pair.mirror.is_damaged());
    assert_eq!(tree(&pair.home), before);
}

#[test]
fn all_of_it_goes_that_a_cell_removed() {
    let mut pair = filled(300);
    for number in 0..300 {
        let place = pair.removing(format!("data/{number}"));
        fs::remove_file(place).unwrap();
    }
    fs::remove_dir(pair.removing("data")).unwrap();
    assert!(pair.commit_home().keep().is_empty());
    assert!(!pair.mirror.is_damaged());
    assert!(tree(&pair.home).is_empty());
}

#[test]
fn what_was_in_a_folder_that_a_cell_renamed_is_there_no_more() {
    let mut pair = filled(5);
    let (from, to) = (pair.removing("data"), pair.at("moved"));
    fs::rename(from, to).unwrap();
    assert!(pair.commit_home().keep().is_empty());
    let names: Vec<_> = tree(&pair.home).into_keys().collect();
    assert_eq!(names.len(), 6);
    assert!(names.iter().all(|name| name.starts_with("moved")));
    // The folder is known under its new name.
    pair.sync();
    let place = pair.at("moved/1");
    pair.before(&place, Before::Removing);
    fs::remove_file(place).unwrap();
    assert!(pair.commit_home().keep().is_empty());
    assert_eq!(tree(&pair.home).len(), 5);
}

#[test]
fn a_removal_that_was_tried_and_failed_proves_nothing_of_what_is_inside() {
    let mut pair = filled(2);
    let folder = pair.removing("data");
    assert!(fs::remove_dir(&folder).is_err());
    fs::remove_file(folder.join("0")).unwrap();
    assert_eq!(pair.mirror.scan(usize::MAX).unwrap().missing.len(), 1);
}

#[test]
fn what_is_removed_unseen_is_believed_within_limits() {
    let check = |files: usize, removed: usize, believed: bool| {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path().join("home");
        fs::create_dir(&home).unwrap();
        for number in 0..files {
            fs::write(home.join(number.to_string()), "x").unwrap();
        }
        let mut mirror = Mirror::create(folder.path(), OsStr::new("home")).unwrap();
        let seen = list(&Root::open(&home).unwrap(), 1000, &NOTHING);
        mirror
            .sync(&HomeListing::default().next(seen, false))
            .unwrap();
        for number in 0..removed {
            fs::remove_file(mirror.root().join(number.to_string())).unwrap();
        }
        let Scan {
            differences,
            missing,
            ..
        } = mirror.scan(usize::MAX).unwrap();
        let expected = if believed { (removed, 0) } else { (0, removed) };
        assert_eq!(
            (differences.len(), missing.len()),
            expected,
            "{removed} of {files}"
        );
    };
    check(5, 2, true);
    check(5, 3, false);
    check(4, 2, false);
    check(1, 1, false);
    check(300, 100, true);
    check(300, 101, false);
}

#[test]
fn what_a_scan_did_not_reach_counts_as_unchanged() {
    let mut pair = filled(4);
    let before = tree(&pair.home);
    fs::write(pair.at("new"), "x").unwrap();
    fs::remove_file(pair.removing("data/0")).unwrap();
    for number in 0..4 {
        fs::write(pair.at(format!("data/more-{number}")), "x").unwrap();
    }
    let scan = pair.mirror.scan(4).unwrap();
    assert!(scan.cut && scan.missing.is_empty());
    pair.commit(scan).keep();
    assert!(!pair.mirror.is_damaged());
    let after = tree(&pair.home);
    assert!(after.keys().any(|path| path.ends_with("new")));
    assert!(before.keys().all(|path| after.contains_key(path)));

    let scan = pair.mirror.scan(usize::MAX).unwrap();
    assert!(!scan.cut);
    pair.commit(scan).keep();
    assert_eq!(tree(&pair.home).len(), before.len() - 1 + 1 + 4);
}

#[test]
fn a_removal_that_was_not_sent_is_found_again() {
    let mut pair = Pair::new();
    fs::write(pair.home.join("a"), "a").unwrap();
    pair.sync();
    fs::remove_file(pair.removing("a")).unwrap();
    let scan = pair.mirror.scan(usize::MAX).unwrap();
    assert_eq!(scan.differences.len(), 1);
    let nothing = HashMap::new();
    pair.mirror.adopt(&scan, &[], &nothing, &HashSet::new());
    pair.sync();
    assert!(!pair.at("a").exists());
    let again = pair.mirror.scan(usize::MAX).unwrap();
    assert_eq!(again.differences, scan.differences);
}

#[test]
fn removals_that_are_not_sent_do_not_count_for_the_next_cell() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    fs::create_dir(&home).unwrap();
    for number in 0..9 {
        fs::write(home.join(number.to_string()), "x").unwrap();
    }
    let mut mirror = Mirror::create(folder.path(), OsStr::new("home")).unwrap();
    let seen = list(&Root::open(&home).unwrap(), 1000, &NOTHING);
    let listing = HomeListing::default().next(seen, false);
    mirror.sync(&listing).unwrap();
    let nothing = HashMap::new();
    for number in 0..6 {
        fs::remove_file(mirror.root().join(number.to_string())).unwrap();
        let scan = mirror.scan(usize::MAX).unwrap();
        assert_eq!(
            (scan.differences.len(), &scan.missing[..]),
            (number + 1, &[][..])
        );
        mirror.adopt(&scan, &[], &nothing, &HashSet::new());
    }
    assert!(!mirror.is_damaged());
}

#[test]
fn a_replaced_file_that_was_not_sent_is_found_again() {
    let mut pair = Pair::new();
    fs::write(pair.home.join("a"), "a").unwrap();
    pair.sync();
    fs::remove_file(pair.removing("a")).unwrap();
    fs::create_dir(pair.at("a")).unwrap();
    let scan = pair.mirror.scan(usize::MAX).unwrap();
    let nothing = HashMap::new();
    for _ in 0..2 {
        pair.mirror.adopt(&scan, &[], &nothing, &HashSet::new());
        pair.sync();
        let again = pair.mirror.scan(usize::MAX).unwrap();
        assert_eq!(
            (&again.differences, &again.missing[..]),
            (&scan.differences, &[][..])
        );
    }
    assert!(pair.commit_home().keep().is_empty());
    assert!(pair.home.join("a").is_dir());
}
