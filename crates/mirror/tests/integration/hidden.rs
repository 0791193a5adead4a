//! Hidden files, and the rules in `.batonignore`.

use crate::pair::{NOTHING, Pair, tree};
use baton_mirror::{Root, list};
use std::fs;

fn check(rules: &str, expected: &[&str]) {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    for folder in [".ssh", ".config/app/.deep", "raw/deep", "week/.venv"] {
        fs::create_dir_all(home.join(folder)).unwrap();
    }
    for name in [
        ".bashrc",
        ".ssh/id",
        ".config/app/a",
        ".config/app/.deep/b",
        "week/.env",
        "week/.venv/c",
        "raw/deep/d",
        "e.csv",
    ] {
        fs::write(home.join(name), "x").unwrap();
    }
    fs::write(home.join(".batonignore"), rules).unwrap();
    let seen = list(&Root::open(home).unwrap(), 100, &NOTHING);
    let files: Vec<String> = seen
        .entries
        .keys()
        .filter(|path| home.join(path.as_path()).is_file())
        .map(ToString::to_string)
        .collect();
    assert_eq!(files, expected, "{rules:?}");
    assert!(seen.errors.is_empty() && seen.broken_rules.is_empty());
}

#[test]
fn only_what_the_rules_let_in_travels() {
    check("", &["e.csv", "raw/deep/d"]);
    check("!.env\n", &["e.csv", "raw/deep/d", "week/.env"]);
    check("# a comment\nraw/\n*.csv", &[]);
    check("!.config\n", &[".config/app/a", "e.csv", "raw/deep/d"]);
    check(
        "!.*\nraw\n.ssh",
        &[
            ".bashrc",
            ".batonignore",
            ".config/app/.deep/b",
            ".config/app/a",
            "e.csv",
            "week/.env",
        ],
    );
}

#[test]
fn a_line_that_says_nothing_is_named() {
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join(".batonignore"), "{a\n!.env\n").unwrap();
    fs::write(home.path().join(".env"), "x").unwrap();
    let seen = list(&Root::open(home.path()).unwrap(), 100, &NOTHING);
    assert_eq!(seen.broken_rules, ["{a"]);
    assert_eq!(seen.entries.len(), 1);
}

#[test]
fn what_a_cell_made_comes_home_and_stays_with_the_session() {
    let mut pair = Pair::new();
    fs::create_dir(pair.home.join(".cache")).unwrap();
    fs::write(pair.home.join(".cache/secret"), "x").unwrap();
    let notes = pair.cell(|pair| {
        fs::create_dir_all(pair.at(".cache/deep")).unwrap();
        fs::write(pair.at(".cache/deep/made"), "of the cell").unwrap();
        fs::write(pair.at(".made"), "of the cell").unwrap();
        fs::create_dir(pair.at(".ipynb_checkpoints")).unwrap();
        fs::write(pair.at(".ipynb_checkpoints/a"), "of the cell").unwrap();
    });
    assert!(notes.is_empty(), "{notes:?}");
    assert!(!pair.home.join(".ipynb_checkpoints").exists());
    for _ in 0..3 {
        let notes = pair.cell(|pair| {
            for name in [".cache/deep/made", ".made"] {
                assert_eq!(fs::read_to_string(pair.at(name)).unwrap(), "of the cell");
                assert_eq!(
                    fs::read_to_string(pair.home.join(name)).unwrap(),
                    "of the cell"
                );
            }
            assert!(!pair.at(".cache/secret").exists());
        });
        assert!(notes.is_empty(), "{notes:?}");
    }
    // A later session gets the change, too.
    pair.begin_again();
    pair.sync();
    assert!(!pair.at(".cache/secret").exists());
}

#[test]
fn a_hidden_file_that_did_not_travel_is_not_replaced() {
    let mut pair = Pair::new();
    fs::create_dir(pair.home.join(".ssh")).unwrap();
    for name in [".env", ".ssh/id"] {
        fs::write(pair.home.join(name), "the student's").unwrap();
    }
    let before = tree(&pair.home);
    let notes = pair.cell(|pair| {
        fs::write(pair.at(".env"), "of the cell").unwrap();
        fs::create_dir(pair.at(".ssh")).unwrap();
        fs::write(pair.at(".ssh/id"), "of the cell").unwrap();
    });
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(
        notes[0].contains("which did not know about the file here"),
        "{notes:?}"
    );
    let after = tree(&pair.home);
    for (path, what) in &before {
        assert_eq!(after.get(path), Some(what), "{path:?}");
    }
    for name in [".env (from the GPU)", ".ssh/id (from the GPU)"] {
        assert_eq!(
            fs::read_to_string(pair.home.join(name)).unwrap(),
            "of the cell"
        );
    }
}
