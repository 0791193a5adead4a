//! Files that a cell deletes or replaces are in the trash and can be restored.

use crate::pair::{Pair, tree};
use baton_mirror::{Kept, TrashLimits, Was};
use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

const PLENTY: TrashLimits = TrashLimits {
    bytes: 1 << 30,
    age: Duration::from_secs(3600),
};

fn kept(pair: &Pair) -> Vec<(String, Was)> {
    let kept = pair.trash().kept().unwrap();
    kept.iter()
        .map(|kept| (kept.path.to_string(), kept.was))
        .collect()
}

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

/// What cells took away is ordered by the millisecond in which that began.
fn until_the_next_millisecond() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let before = now().as_millis();
    while now().as_millis() == before {}
}

/// Home has `a`, which a cell replaces, and `data/b`, which it deletes.
fn used(pair: &mut Pair) {
    fs::create_dir(pair.home.join("data")).unwrap();
    fs::write(pair.home.join("a"), "before").unwrap();
    fs::write(pair.home.join("data/b"), "deleted").unwrap();
    fs::write(pair.home.join("c"), "renamed").unwrap();
    pair.sync();
    fs::write(pair.at("a"), "after").unwrap();
    fs::remove_file(pair.removing("data/b")).unwrap();
    fs::remove_dir(pair.removing("data")).unwrap();
    fs::rename(pair.removing("c"), pair.at("d")).unwrap();
}

#[test]
fn what_a_cell_takes_away_comes_back() {
    let mut pair = Pair::new();
    used(&mut pair);
    let committed = pair.commit_home();
    assert_eq!(committed.deleted, 1);
    committed.keep();
    let expected = [
        ("a".to_owned(), Was::Replaced),
        ("data/b".to_owned(), Was::Deleted),
    ];
    assert_eq!(kept(&pair), expected);
    for kept in pair.trash().kept().unwrap() {
        kept.restore(&pair.home, &pair.trash()).unwrap();
    }
    assert_eq!(text(pair.home.join("a")), "before");
    assert_eq!(text(pair.home.join("data/b")), "deleted");
    // The file that was replaced by restoring can be restored in turn.
    let [Kept { .. }] = &pair.trash().kept().unwrap()[..] else {
        panic!("{:?}", kept(&pair));
    };
    pair.trash().kept().unwrap()[0]
        .restore(&pair.home, &pair.trash())
        .unwrap();
    assert_eq!(text(pair.home.join("a")), "after");
}

#[test]
fn what_is_undone_leaves_nothing_in_the_trash() {
    let mut pair = Pair::new();
    pair.spoil_state_folder();
    used(&mut pair);
    let before = tree(&pair.home);
    assert_eq!(pair.commit_home().undo(), [""; 0]);
    assert_eq!(tree(&pair.home), before);
    assert_eq!(kept(&pair), []);
    let trash = pair.home.join(".baton/trash");
    assert_eq!(fs::read_dir(trash).unwrap().count(), 0);
}

#[test]
fn a_trash_beside_the_notebook_never_travels() {
    let mut pair = Pair::new();
    pair.spoil_state_folder();
    used(&mut pair);
    pair.commit_home().keep();
    pair.sync();
    assert!(pair.home.join(".baton/trash").is_dir());
    assert!(!pair.at(".baton").exists());
    fs::create_dir(pair.at(".baton")).unwrap();
    fs::write(pair.at(".baton/mine"), "x").unwrap();
    assert!(pair.commit_home().keep().is_empty());
    assert!(!pair.home.join(".baton/mine").exists());
}

#[test]
fn nothing_appears_beside_the_notebook_where_the_state_folder_is_near() {
    let mut pair = Pair::new();
    fs::write(pair.home.join(".baton"), "a file of the student's").unwrap();
    used(&mut pair);
    pair.commit_home().keep();
    assert_eq!(kept(&pair).len(), 2);
    for kept in pair.trash().kept().unwrap() {
        kept.restore(&pair.home, &pair.trash()).unwrap();
    }
    assert_eq!(text(pair.home.join("data/b")), "deleted");
    assert_eq!(text(pair.home.join(".baton")), "a file of the student's");
}

#[test]
fn the_trash_is_bounded_in_size_and_age() {
    let mut pair = Pair::new();
    for round in 0..4 {
        fs::write(pair.home.join("a"), "x".repeat(1000 + round)).unwrap();
        pair.cell(|pair| fs::remove_file(pair.removing("a")).unwrap());
        until_the_next_millisecond();
    }
    let sizes = |pair: &Pair| {
        let kept = pair.trash().kept().unwrap();
        kept.iter().map(|kept| kept.bytes).collect::<Vec<_>>()
    };
    pair.trash().tidy(PLENTY).unwrap();
    assert_eq!(sizes(&pair).len(), 4);
    let bytes = 2500;
    pair.trash().tidy(TrashLimits { bytes, ..PLENTY }).unwrap();
    // What the last cell took away does not count.
    assert_eq!(sizes(&pair).len(), 3);
    // What the last cell took away stays, even if it is larger than the limit.
    pair.trash()
        .tidy(TrashLimits { bytes: 0, ..PLENTY })
        .unwrap();
    assert_eq!(sizes(&pair), [1003]);
    // Files that a cell may still restore are not removed.
    fs::write(pair.home.join("b"), "y").unwrap();
    pair.sync();
    fs::remove_file(pair.removing("b")).unwrap();
    let committed = pair.commit_home();
    let age = Duration::ZERO;
    pair.trash().tidy(TrashLimits { bytes: 0, age }).unwrap();
    assert_eq!(sizes(&pair), [1]);
    assert_eq!(committed.undo(), [""; 0]);
    assert_eq!(text(pair.home.join("b")), "y");
    assert!(sizes(&pair).is_empty());
}

#[test]
fn a_large_cell_does_not_empty_the_trash_of_what_others_deleted() {
    let mut pair = Pair::new();
    for (name, bytes) in [("oldest", 900), ("old", 100), ("large", 5000)] {
        fs::write(pair.home.join(name), "x".repeat(bytes)).unwrap();
        pair.cell(|pair| fs::remove_file(pair.removing(name)).unwrap());
        until_the_next_millisecond();
    }
    let bytes = 500;
    pair.trash().tidy(TrashLimits { bytes, ..PLENTY }).unwrap();
    let expected = [
        ("large".to_owned(), Was::Deleted),
        ("old".to_owned(), Was::Deleted),
    ];
    assert_eq!(kept(&pair), expected);
}
