//! Somebody changes the same files at home; links lead elsewhere; something fails.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::pair::{Pair, tree};

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn both_versions_of_a_file_stay() {
    let mut pair = Pair::new();
    let home = pair.home.clone();
    fs::write(home.join("notes.txt"), "before").unwrap();
    let notes = pair.cell(|pair| {
        fs::write(pair.at("notes.txt"), "of the cell").unwrap();
        fs::write(pair.at("new.txt"), "of the cell").unwrap();
        fs::write(home.join("notes.txt"), "of somebody else").unwrap();
        fs::write(home.join("new.txt"), "of somebody else").unwrap();
    });
    for name in ["notes", "new"] {
        assert_eq!(text(home.join(format!("{name}.txt"))), "of somebody else");
        let other = home.join(format!("{name} (from the GPU).txt"));
        assert_eq!(text(other), "of the cell");
    }
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[1].contains("'notes (from the GPU).txt' beside it"));
    // From here on both sides agree again.
    assert!(pair.cell(|_| ()).is_empty());
    let place = pair.at("notes.txt");
    pair.fill(&place);
    assert_eq!(text(place), "of somebody else");
}

#[test]
fn what_changed_at_home_is_neither_deleted_nor_renamed() {
    let mut pair = Pair::new();
    let home = pair.home.clone();
    for name in ["a", "b", "c"] {
        fs::write(home.join(name), "before").unwrap();
    }
    let notes = pair.cell(|pair| {
        fs::remove_file(pair.removing("a")).unwrap();
        fs::rename(pair.removing("b"), pair.removing("d")).unwrap();
        fs::remove_file(pair.removing("c")).unwrap();
        fs::write(home.join("a"), "of somebody else").unwrap();
        fs::write(home.join("b"), "of somebody else").unwrap();
    });
    assert_eq!(text(home.join("a")), "of somebody else");
    assert_eq!(text(home.join("b")), "of somebody else");
    assert!(!home.join("c").exists() && !home.join("d").exists());
    assert_eq!(notes.len(), 2, "{notes:?}");
    pair.sync();
    assert!(pair.at("a").exists() && pair.at("b").exists() && !pair.at("d").exists());
}

#[test]
fn all_of_it_can_be_undone() {
    let mut pair = Pair::new();
    let home = pair.home.clone();
    fs::create_dir_all(home.join("folder/deep")).unwrap();
    for name in ["a", "b", "folder/c", "folder/deep/d"] {
        fs::write(home.join(name), name).unwrap();
    }
    symlink("a", home.join("link")).unwrap();
    let before = tree(&home);
    pair.sync();
    fs::rename(pair.removing("a"), pair.removing("x")).unwrap();
    fs::rename(pair.removing("b"), pair.removing("a")).unwrap();
    fs::remove_dir_all(pair.removing("folder")).unwrap();
    fs::write(pair.at("folder"), "a file").unwrap();
    fs::create_dir(pair.at("made")).unwrap();
    fs::write(pair.at("made/e"), "new").unwrap();
    fs::remove_file(pair.removing("link")).unwrap();
    symlink("x", pair.at("link")).unwrap();
    let committed = pair.bring_home();
    assert!(committed.notes.is_empty(), "{:?}", committed.notes);
    assert_ne!(tree(&home), before);
    committed.undo();
    assert_eq!(tree(&home), before);
}

#[test]
fn nothing_is_written_through_a_link() {
    let outside = tempfile::tempdir().unwrap();
    let mut pair = Pair::new();
    let home = pair.home.clone();
    fs::create_dir(home.join("data")).unwrap();
    fs::write(outside.path().join("secret"), "theirs").unwrap();
    symlink(outside.path().join("secret"), home.join("borrowed")).unwrap();
    let notes = pair.cell(|pair| {
        // What a link to a file elsewhere says can be read, but not written.
        let place = pair.at("borrowed");
        pair.fill(&place);
        assert_eq!(text(&place), "theirs");
        fs::write(place, "mine").unwrap();
        fs::write(pair.at("data/result"), "mine").unwrap();
        fs::remove_dir(home.join("data")).unwrap();
        symlink(outside.path(), home.join("data")).unwrap();
        symlink("/etc/passwd", pair.at("leak")).unwrap();
    });
    assert_eq!(text(outside.path().join("secret")), "theirs");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    assert_eq!(text(home.join("borrowed (from the GPU)")), "mine");
    assert!(!home.join("leak").exists());
    assert_eq!(notes.len(), 3, "{notes:?}");
}

#[test]
fn a_folder_with_something_that_does_not_travel_stays() {
    let mut pair = Pair::new();
    let home = pair.home.clone();
    fs::create_dir_all(home.join("package/.git")).unwrap();
    fs::write(home.join("package/code.py"), "1").unwrap();
    let notes = pair.cell(|pair| fs::remove_dir_all(pair.removing("package")).unwrap());
    assert!(home.join("package/.git").exists() && !home.join("package/code.py").exists());
    assert_eq!(notes.len(), 1, "{notes:?}");
}
