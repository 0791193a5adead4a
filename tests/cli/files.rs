//! `baton files`: what cells deleted or replaced comes back.

use crate::home::{Home, Said, said};
use std::{fs, path::Path};

/// As a proxy keeps it: one cell, at this time.
fn keep(trash: &Path, at_ms: u64, what: &str, text: &str) {
    let path = trash.join(format!("{at_ms}-1a2b3c4d")).join(what);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn run_in(home: &Home, folder: &str, arguments: &[&str]) -> Said {
    let mut command = home.command(&[&["files"], arguments].concat());
    said(command.current_dir(home.path(folder)).env("TZ", "UTC"))
}

#[test]
fn what_cells_deleted_or_replaced_comes_back() {
    let home = Home::new();
    let trash = home.path("course/.baton/trash");
    keep(&trash, 1_732_380_000_000, "deleted/data/a.csv", "old a");
    keep(&trash, 1_732_380_060_000, "deleted/data/a.csv", "new a");
    keep(&trash, 1_732_380_060_000, "deleted/data/b.csv", "b");
    keep(&trash, 1_732_380_120_000, "replaced/results.txt", "before");
    home.write("course/results.txt", "after");

    let listed = run_in(&home, "course", &["list"]);
    let words: Vec<&str> = listed
        .stdout
        .lines()
        .nth(1)
        .unwrap()
        .split_whitespace()
        .collect();
    assert_eq!(
        words,
        ["2024-11-23", "16:42:00", "replaced", "6", "results.txt"]
    );
    assert_eq!(listed.stdout.lines().count(), 5, "{}", listed.stdout);
    let json = run_in(&home, "course", &["list", "--json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["path"], "results.txt");
    assert_eq!(json[0]["was"], "replaced");

    let text = |name: &str| fs::read_to_string(home.path("course").join(name)).unwrap();
    let restored = run_in(&home, "course", &["restore"]);
    assert!(restored.status.success(), "{}", restored.stderr);
    assert!(
        restored
            .stdout
            .contains("Restored 'data/a.csv', deleted 2024-11-23 16:41:00\n")
    );
    assert_eq!(
        (text("data/a.csv"), text("data/b.csv")),
        ("new a".to_owned(), "b".to_owned())
    );
    assert_eq!(text("results.txt"), "after");
    let again = run_in(&home, "course", &["restore"]);
    assert_eq!(
        again.stdout,
        "No file that a %%gpu cell deleted is missing here\n"
    );

    // Paths are as the shell sees them, and what is replaced can come back in turn.
    for expected in ["before", "after"] {
        let restored = run_in(&home, "course/data", &["restore", "../results.txt"]);
        assert!(restored.status.success(), "{}", restored.stderr);
        assert_eq!(text("results.txt"), expected);
    }
    let restored = run_in(&home, "course/data", &["restore", "a.csv"]);
    assert!(restored.status.success(), "{}", restored.stderr);
    assert_eq!(text("data/a.csv"), "old a");
}

#[test]
fn what_is_not_there_is_said() {
    let home = Home::new();
    home.write("course/a.txt", "a");
    let listed = run_in(&home, "course", &["list"]);
    assert_eq!(
        listed.stdout,
        "No %%gpu cell has deleted or replaced files here lately\n"
    );
    let restored = run_in(&home, "course", &["restore", "a.txt"]);
    assert_eq!(restored.status.code(), Some(1));
    let expected =
        "Error: Nothing called 'a.txt' is in the trash\nhint: `baton files list` shows what is\n";
    assert_eq!(restored.stderr, expected);
    let help = run_in(&home, "course", &["restore", "--help"]);
    assert!(
        help.stdout
            .contains("Without PATH, restore every file that was deleted")
    );
    let missing = run_in(&home, "course", &["list", "--folder", "nowhere"]);
    assert!(
        missing.stderr.contains("There is no folder"),
        "{}",
        missing.stderr
    );
}
