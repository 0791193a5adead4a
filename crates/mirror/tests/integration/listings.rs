//! What listings tell the mirror about home.

use crate::pair::{NOTHING, Pair};
use baton_mirror::{FilesError, HomeListing, Mirror, Root, list};
use baton_protocol::files::{Entry, Listing, RelativePath};
use std::{ffi::OsStr, fs, os::unix::fs::symlink, path::Path};

fn names(paths: &[RelativePath]) -> Vec<String> {
    paths.iter().map(ToString::to_string).collect()
}

fn changed(listing: &Listing) -> Vec<String> {
    listing
        .changed
        .iter()
        .map(|(path, _)| path.to_string())
        .collect()
}

fn look(listing: &mut HomeListing, home: &Path) -> Listing {
    listing.next(list(&Root::open(home).unwrap(), 100, &NOTHING), false)
}

#[test]
fn only_what_changed_is_said_again() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    fs::create_dir(home.join("data")).unwrap();
    fs::write(home.join("data/a"), "a").unwrap();
    fs::write(home.join("b"), "b").unwrap();
    let mut listing = HomeListing::default();
    let first = look(&mut listing, home);
    assert_eq!(
        (first.base, changed(&first)),
        (None, vec!["b".into(), "data".into(), "data/a".into()])
    );
    let second = look(&mut listing, home);
    assert_eq!(
        (second.base, changed(&second)),
        (Some(first.number), vec![])
    );
    fs::write(home.join("data/a"), "longer").unwrap();
    fs::remove_file(home.join("b")).unwrap();
    let third = look(&mut listing, home);
    assert_eq!(changed(&third), ["data/a"]);
    assert_eq!(names(&third.gone), ["b"]);

    let folder = tempfile::tempdir().unwrap();
    let mut mirror = Mirror::create(folder.path(), OsStr::new("home")).unwrap();
    assert!(matches!(mirror.sync(&third), Err(FilesError::OutOfStep)));
    mirror.sync(&first).unwrap();
    assert!(matches!(mirror.sync(&third), Err(FilesError::OutOfStep)));
    mirror.sync(&second).unwrap();
    mirror.sync(&third).unwrap();
    assert!(!mirror.root().join("b").exists());
    assert_eq!(fs::metadata(mirror.root().join("data/a")).unwrap().len(), 6);
}

#[test]
fn a_folder_with_too_much_is_cut_from_the_depths() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir_all(home.path().join("a/b")).unwrap();
    for number in 0..20 {
        fs::write(home.path().join(format!("a/b/{number}")), "").unwrap();
    }
    fs::write(home.path().join("z"), "").unwrap();
    let root = Root::open(home.path()).unwrap();
    let seen = list(&root, 10, &NOTHING);
    assert!(seen.cut && seen.entries.len() == 10);
    assert!(seen.entries.contains_key(&RelativePath::new("z").unwrap()));
    assert!(!list(&root, 23, &NOTHING).cut);
}

#[test]
fn what_a_cell_made_and_home_deleted_is_gone() {
    let mut pair = Pair::new();
    fs::create_dir(pair.home.join("there")).unwrap();
    pair.cell(|pair| {
        fs::write(pair.at("there/file"), "x").unwrap();
        fs::create_dir(pair.at("made")).unwrap();
    });
    for name in ["there", "made"] {
        fs::remove_dir_all(pair.home.join(name)).unwrap();
    }
    assert!(pair.cell(|_| ()).is_empty());
    for folder in [pair.mirror.root(), &pair.home] {
        assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    }
}

#[test]
fn links_caches_sockets_and_hidden_files() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    fs::create_dir_all(home.join("week/__pycache__")).unwrap();
    fs::create_dir(home.join(".git")).unwrap();
    fs::write(home.join(".env"), "KEY=1").unwrap();
    fs::write(home.join("data"), "12345").unwrap();
    symlink(home.join("data"), home.join("week/absolute")).unwrap();
    symlink("../data", home.join("week/relative")).unwrap();
    symlink("/etc", home.join("folder-elsewhere")).unwrap();
    symlink("/etc/hostname", home.join("file-elsewhere")).unwrap();
    symlink("nowhere", home.join("dangling")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(home.join("socket")).unwrap());
    let said: Vec<String> = list(&Root::open(home).unwrap(), 100, &NOTHING)
        .entries
        .iter()
        .map(|(path, entry)| match entry {
            Entry::File { .. } => path.to_string(),
            Entry::Folder { .. } => format!("{path}/"),
            Entry::Link { target } => format!("{path} -> {}", String::from_utf8_lossy(target)),
        })
        .collect();
    assert_eq!(
        said,
        [
            "dangling -> nowhere",
            "data",
            "file-elsewhere",
            "week/",
            "week/absolute -> ../data",
            "week/relative -> ../data",
        ]
    );
}

#[test]
fn what_the_code_names_is_known_before_it_runs() {
    let mut pair = Pair::new();
    fs::create_dir(pair.home.join("data")).unwrap();
    for name in [
        "data/train.csv",
        "data/test set.csv",
        "notes.txt",
        "weights.pt",
        "größe.csv",
    ] {
        fs::write(pair.home.join(name), "x").unwrap();
    }
    pair.sync();
    let check = |code: &str, expected: &[&str]| {
        assert_eq!(
            names(&pair.mirror.named_in(code, u64::MAX)),
            expected,
            "{code}"
        )
    };
    check("pd.read_csv('data/train.csv')", &["data/train.csv"]);
    check(
        "pd.read_csv(folder / \"test set.csv\")",
        &["data/test set.csv"],
    );
    check("!cat ./notes.txt | head", &["notes.txt"]);
    check("%run weights.pt", &["weights.pt"]);
    check("open('größe.csv')", &["größe.csv"]);
    check("open('other.txt'); weights = 1", &[]);
}
