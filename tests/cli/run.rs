//! `baton run`: what is refused before anything is submitted, and with which exit code.

use crate::home::Home;
use std::fs;

const NOTEBOOK: &str = r#"{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}"#;
const WRONG_COMMAND_LINE: i32 = 2;
const NOT_RUN: i32 = 3;

#[track_caller]
fn check_refused(home: &Home, arguments: &str, code: i32, told: &str) {
    let words: Vec<&str> = arguments.split(' ').collect();
    let said = home.run(&[&["run"], &words[..]].concat());
    assert_eq!(
        said.status.code(),
        Some(code),
        "{arguments}: {}",
        said.stderr
    );
    assert!(said.stderr.contains(told), "{arguments}: {}", said.stderr);
}

fn home() -> Home {
    let home = Home::new();
    home.write("n.ipynb", NOTEBOOK);
    home.write("text.ipynb", "no notebook");
    home.write("script.py", "");
    home
}

#[test]
fn a_wrong_command_line() {
    let home = home();
    for (arguments, told) in [
        (
            "n.ipynb --keep 1h",
            "--keep is for one notebook in the background",
        ),
        ("-o x script.py", "-p, --each and -o are for notebooks"),
        ("n.ipynb --timeout banana", "that is not a duration"),
        ("n.ipynb --mem banana", "that is not a size"),
        ("n.ipynb --at-once 2", "--at-once is for several jobs"),
        ("n.ipynb -p x=1..2 -p x=3", "x is given more than once"),
        ("n.ipynb -p x=1..10..0", "`x=1..10..0` is not a range"),
        (
            "n.ipynb -p x=1..2 -o out.ipynb",
            "would both write out.ipynb",
        ),
        ("n.ipynb another", "A notebook takes no arguments"),
    ] {
        check_refused(&home, arguments, WRONG_COMMAND_LINE, told);
    }
    assert!(!home.path("out.ipynb").exists());
}

#[test]
fn what_cannot_be_read_or_written() {
    let home = home();
    fs::create_dir(home.path("folder")).unwrap();
    for (arguments, told) in [
        ("missing.ipynb", "Failed to read missing.ipynb"),
        ("text.ipynb", "text.ipynb is not a notebook"),
        ("missing.py --json", "There is no script missing.py"),
        (
            "n.ipynb -o no/such/folder.ipynb",
            "no/such/folder.ipynb cannot be written",
        ),
        ("n.ipynb --detach -o folder", "folder cannot be written"),
        ("--resume ab12", "ab12"),
    ] {
        check_refused(&home, arguments, NOT_RUN, told);
    }
    check_refused(
        &home,
        "--python /no/python n.ipynb",
        NOT_RUN,
        "Failed to start /no/python: No",
    );
}
