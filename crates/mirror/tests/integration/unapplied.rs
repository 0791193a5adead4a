//! Cells whose changes cannot be applied at home, for example because its disk is full.

use crate::pair::{Pair, tree};
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap()
}

/// A cell of every kind of change.
fn change_everything(pair: &mut Pair) {
    fs::write(pair.at("new"), "new").unwrap();
    let old = pair.at("old");
    pair.fill(&old);
    fs::write(old, "changed").unwrap();
    fs::remove_file(pair.removing("gone")).unwrap();
    fs::rename(pair.removing("before"), pair.removing("after")).unwrap();
    fs::create_dir(pair.at("made")).unwrap();
    fs::write(pair.at("made/inside"), "inside").unwrap();
    fs::remove_dir_all(pair.removing("emptied")).unwrap();
    let closed = fs::Permissions::from_mode(0o600);
    fs::set_permissions(pair.at("mode"), closed).unwrap();
}

fn pair() -> Pair {
    let pair = Pair::new();
    fs::create_dir(pair.home.join("emptied")).unwrap();
    for name in ["old", "gone", "before", "mode", "emptied/file"] {
        fs::write(pair.home.join(name), name).unwrap();
    }
    pair
}

#[test]
fn they_arrive_with_those_of_the_next_cell() {
    let mut pair = pair();
    pair.sync();
    let before = tree(&pair.home);
    for _ in 0..2 {
        pair.unapplied_cell(|_| ());
    }
    pair.unapplied_cell(change_everything);
    pair.unapplied_cell(|pair| fs::write(pair.at("second"), "second").unwrap());
    assert_eq!(tree(&pair.home), before);
    let notes = pair.cell(|pair| {
        assert_eq!(text(pair.at("old")), "changed");
        let after = pair.at("after");
        pair.fill(&after);
        assert_eq!(text(after), "before");
        let mode = pair.at("mode");
        pair.fill(&mode);
        fs::write(pair.at("old"), "changed again").unwrap();
    });
    assert!(notes.is_empty(), "{notes:?}");
    assert_eq!(text(pair.home.join("old")), "changed again");
    assert_eq!(text(pair.home.join("second")), "second");
    assert_eq!(tree(&pair.home), tree(pair.mirror.root()));
    for name in ["gone", "before", "emptied"] {
        assert!(!pair.home.join(name).exists(), "{name}");
    }
    // From here on both sides agree.
    let listing = pair.sync();
    assert!(!listing.not_applied);
    assert!(pair.cell(|_| ()).is_empty());
}

#[test]
fn a_cell_may_take_them_back() {
    let mut pair = pair();
    let before = tree(&pair.home);
    pair.unapplied_cell(|pair| {
        fs::write(pair.at("new"), "new").unwrap();
        fs::write(pair.at("later"), "later").unwrap();
    });
    fs::write(pair.home.join("new"), "of somebody else").unwrap();
    let notes = pair.cell(|pair| {
        assert_eq!(text(pair.at("new")), "new");
        for name in ["new", "later"] {
            fs::remove_file(pair.removing(name)).unwrap();
        }
    });
    assert!(notes.is_empty(), "{notes:?}");
    assert_eq!(tree(&pair.home).len(), before.len() + 1);
    pair.sync();
    let new = pair.at("new");
    pair.fill(&new);
    assert_eq!(text(new), "of somebody else");
}

#[test]
fn both_versions_of_a_file_stay() {
    let mut pair = pair();
    let home = pair.home.clone();
    fs::create_dir(home.join("folder")).unwrap();
    pair.unapplied_cell(|pair| {
        change_everything(pair);
        fs::write(pair.at("folder/new"), "new").unwrap();
    });
    fs::write(home.join("old"), "of somebody else").unwrap();
    fs::write(home.join("gone"), "of somebody else").unwrap();
    fs::write(home.join("emptied/other"), "of somebody else").unwrap();
    fs::write(home.join("made"), "of somebody else").unwrap();
    fs::remove_dir(home.join("folder")).unwrap();
    let notes = pair.cell(|_| ());
    assert_eq!(text(home.join("old")), "of somebody else");
    assert_eq!(text(home.join("old (from the GPU)")), "changed");
    assert_eq!(text(home.join("gone")), "of somebody else");
    assert_eq!(text(home.join("emptied/other")), "of somebody else");
    assert_eq!(text(home.join("made")), "of somebody else");
    assert_eq!(text(home.join("folder/new")), "new");
    let inside = tree(&home).into_keys().filter(|path| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("inside")
    });
    assert_eq!(inside.count(), 1);
    assert!(!notes.is_empty());
    // From here on both sides agree again.
    pair.sync();
    for name in ["old", "gone", "emptied/other", "made"] {
        let place = pair.at(name);
        pair.fill(&place);
        assert_eq!(text(place), "of somebody else", "{name}");
    }
    assert!(pair.cell(|_| ()).is_empty());
}
