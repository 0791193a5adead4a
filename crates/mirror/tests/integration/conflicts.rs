//! Files that something else changes at home, links that lead outside, and failures.

use crate::pair::{Pair, tree};
use baton_protocol::{
    JobKind,
    files::{Base, Change, RelativePath},
};
use serde_bytes::ByteBuf;
use std::{
    fs::{self, File, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

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
    let committed = pair.commit_home();
    assert!(committed.notes.is_empty(), "{:?}", committed.notes);
    let after = tree(&home);
    let names: Vec<&str> = after.keys().map(|path| path.to_str().unwrap()).collect();
    assert_eq!(names, ["a", "folder", "link", "made", "made/e", "x"]);
    assert_eq!(committed.undo(), [""; 0]);
    assert_eq!(tree(&home), before);
}

#[test]
fn what_others_wrote_before_an_undo_stays() {
    const OTHERS: &str = "of somebody else";
    let mut pair = Pair::new();
    let home = pair.home.clone();
    for name in ["a", "b", "c", "d"] {
        fs::write(home.join(name), name).unwrap();
    }
    pair.sync();
    for name in ["a", "new"] {
        fs::write(pair.at(name), "of the cell").unwrap();
    }
    fs::remove_file(pair.removing("b")).unwrap();
    for (from, to) in [("c", "x"), ("d", "y")] {
        fs::rename(pair.removing(from), pair.at(to)).unwrap();
    }
    let committed = pair.commit_home();
    for name in ["a", "new", "b", "c"] {
        fs::write(home.join(name), OTHERS).unwrap();
    }
    let mut notes = committed.undo();
    notes.sort();
    let stays = |path: &str| {
        format!("'{path}' stays here as it is, because something else changed it after the cell")
    };
    let kept = |path: &str| {
        format!(
            "the version of '{path}' from before the cell is in the trash; `baton files restore '{path}'` restores it"
        )
    };
    assert_eq!(
        notes,
        [stays("a"), stays("new"), kept("a"), kept("b"), kept("c")]
    );
    for name in ["a", "new", "b", "c"] {
        assert_eq!(text(home.join(name)), OTHERS, "{name}");
    }
    assert_eq!(text(home.join("d")), "d");
    assert!(!home.join("x").exists() && !home.join("y").exists());
    for kept in pair.trash().kept().unwrap() {
        kept.restore(&home, &pair.trash()).unwrap();
        assert_eq!(text(home.join(kept.path.as_path())), kept.path.to_string());
    }
}

#[test]
fn permissions_that_others_gave_before_an_undo_stay() {
    let mut pair = Pair::new();
    let home = pair.home.clone();
    for name in ["a", "b"] {
        fs::write(home.join(name), name).unwrap();
    }
    let before = tree(&home);
    pair.sync();
    for name in ["a", "b"] {
        fs::set_permissions(pair.at(name), Permissions::from_mode(0o600)).unwrap();
    }
    let committed = pair.commit_home();
    fs::write(home.join("new"), "of somebody else").unwrap();
    fs::set_permissions(home.join("new"), Permissions::from_mode(0o400)).unwrap();
    fs::rename(home.join("new"), home.join("a")).unwrap();
    let note = "'a' stays here as it is, because something else changed it after the cell";
    assert_eq!(committed.undo(), [note]);
    let after = tree(&home);
    assert_eq!(after[Path::new("a")].1, 0o400);
    assert_eq!(after[Path::new("b")], before[Path::new("b")]);
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
        // A file outside that a link leads to can be read, but not written.
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
    let borrowed = "'borrowed' was written by the cell, and it is a link here to a file outside the \
                    folder, which cannot be changed from a GPU machine; the cell's version is 'borrowed (from the GPU)' beside it";
    assert!(notes.iter().any(|note| note == borrowed), "{notes:?}");
    let notes = pair.cell(|pair| fs::remove_file(pair.removing("borrowed")).unwrap());
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].contains("by the cell, but it is a link here to a file outside"));
    assert!(fs::symlink_metadata(home.join("borrowed")).is_ok());
}

#[test]
fn no_links_lead_out_together() {
    for names in [["d", "z"], ["z", "d"], ["b", "a"]] {
        let mut pair = Pair::new();
        let home = pair.home.clone();
        fs::write(home.with_file_name("outside"), "theirs").unwrap();
        let [dot, out] = names;
        let notes = pair.cell(|pair| {
            symlink(".", pair.at(dot)).unwrap();
            symlink(format!("{dot}/../outside"), pair.at(out)).unwrap();
        });
        assert!(home.join(dot).join(dot).exists());
        assert!(fs::symlink_metadata(home.join(out)).is_err());
        assert_eq!(notes.len(), 1, "{notes:?}");
        assert!(notes[0].contains("may lead out of the folder"));
    }
}

#[test]
fn a_moved_link_is_a_new_one() {
    let pair = Pair::new();
    fs::create_dir_all(pair.home.join("deep/er")).unwrap();
    let [there, path] = ["deep/er/link", "link"].map(|path| RelativePath::new(path).unwrap());
    symlink("../../a", pair.home.join(there.as_path())).unwrap();
    let target = ByteBuf::from("../../a");
    let moved = Change::Moved {
        from: there.clone(),
        base: Base::Link { target },
        path,
        over: None,
        mode: 0o644,
    };
    let mut staging = pair.stage().unwrap();
    assert!(staging.add(moved).unwrap().is_none());
    let committed = baton_mirror::commit(staging, JobKind::Cell);
    assert_eq!(committed.notes.len(), 1, "{:?}", committed.notes);
    committed.keep();
    assert!(fs::symlink_metadata(pair.home.join("link")).is_err());
    // In its old place the link still had the same target.
    assert!(fs::symlink_metadata(pair.home.join(there.as_path())).is_ok());
}

#[test]
fn what_never_travels_is_not_written_by_a_worker() {
    let pair = Pair::new();
    fs::create_dir_all(pair.home.join(".git/hooks")).unwrap();
    let before = tree(&pair.home);
    let mut staging = pair.stage().unwrap();
    for name in [".git/hooks/post-checkout", ".baton", "a/__pycache__"] {
        let path = RelativePath::new(name).unwrap();
        let target = ByteBuf::from("x");
        let over = None;
        let linked = Change::Linked { path, over, target };
        assert!(staging.add(linked).unwrap().is_none());
    }
    let committed = baton_mirror::commit(staging, JobKind::Cell);
    assert_eq!(committed.notes.len(), 3, "{:?}", committed.notes);
    committed.keep();
    assert_eq!(tree(&pair.home), before);
}

#[test]
fn what_killed_programs_left_beside_the_notebook_goes() {
    let pair = Pair::new();
    let random = "0123456789abcdef0123456789abcdef";
    let [folder, file, fresh, other] = [
        format!(".baton-{random}"),
        format!(".baton-{}", random.replace('0', "1")),
        format!(".baton-{}", random.replace('0', "2")),
        ".baton-notes".to_owned(),
    ]
    .map(|name| pair.home.join(name));
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("new-0"), "arrived").unwrap();
    for path in [&file, &fresh, &other] {
        fs::write(path, "").unwrap();
    }
    // Its owner is running.
    let _in_use = pair.stage().unwrap();
    let is_in_use = |path: &PathBuf| ![&folder, &file, &fresh, &other].contains(&path);
    let mut all = fs::read_dir(&pair.home).unwrap();
    let in_use = all.find_map(|entry| Some(entry.unwrap().path()).filter(is_in_use));
    let in_use = in_use.unwrap();
    let before = SystemTime::now() - Duration::from_hours(2);
    for path in [&folder, &file, &other, &in_use] {
        File::open(path).unwrap().set_modified(before).unwrap();
    }
    drop(pair.stage().unwrap());
    assert!(!folder.exists() && !file.exists());
    assert!(fresh.exists() && other.exists() && in_use.exists());
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
