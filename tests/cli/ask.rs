//! `baton jobs`, `workers`, `courses`, `usage` and `explain` on a broker where nothing has run.

use crate::home::{Home, Said, said, said_to};
use nix::sys::signal::Signal;
use std::{
    fs::{File, Permissions},
    os::unix::fs::PermissionsExt,
};

const COURSES: &str =
    "[course.ml101]\ntime_limit = \"5m\"\nbudget = { gpu_time = \"2h\", reset = \"04:00\" }\n";

/// From then on, commands need neither the address nor the token.
fn log_in(home: &Home, address: &str, token: &str) {
    let configuration = home.write("dotfiles/baton.toml", "course = \"ml101\"\n");
    let link = home.path(".config/baton/config.toml");
    std::fs::create_dir_all(link.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(&configuration, &link).unwrap();
    let refused = home.run_with_input(&["login", address], "wrong\n");
    assert!(
        refused.stderr.contains("does not accept this token"),
        "{}",
        refused.stderr
    );
    assert!(refused.stderr.contains("enter the whole token"));
    assert!(!refused.stderr.contains("baton config show"));
    let stored = home.path(".config/baton/token");
    assert!(!stored.exists());
    let login = home.run_with_input(&["login", address], token);
    assert!(
        login.stdout.contains("Your courses: ml101"),
        "{}",
        login.stderr
    );
    for file in [&stored, &configuration] {
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    }
    let text = std::fs::read_to_string(configuration).unwrap();
    assert_eq!(
        text,
        format!("course = \"ml101\"\nbroker_address = \"{address}\"\n")
    );
    let said = home.run(&["courses"]);
    assert!(said.stdout.contains("ml101"), "{}", said.stderr);
    names_what_takes_precedence(home, address, token);
    std::fs::set_permissions(&stored, Permissions::from_mode(0o640)).unwrap();
    let open = home.run(&["courses"]);
    assert!(
        open.stderr.contains("Other users can read the token in"),
        "{}",
        open.stderr
    );
    assert!(link.is_symlink());
    std::fs::remove_file(link).unwrap();
    std::fs::remove_file(stored).unwrap();
}

/// A token of JupyterHub, unlike other tokens, gives way to the stored one.
fn names_what_takes_precedence(home: &Home, address: &str, token: &str) {
    let input = home.write("input", token);
    for (variables, why, is_used) in [
        (
            &[("BATON_BROKER_ADDRESS", "http://127.0.0.1:1")][..],
            "another broker is still used, because broker_address is set in BATON_BROKER_ADDRESS",
            false,
        ),
        (
            &[("BATON_TOKEN", "wrong")],
            "another token is still used, because token is set in BATON_TOKEN",
            false,
        ),
        (
            &[
                ("JUPYTERHUB_USER", "ada"),
                ("JUPYTERHUB_API_TOKEN", "wrong"),
            ],
            "Notebooks still use the token of JupyterHub; commands use this one",
            true,
        ),
    ] {
        let variables = variables.iter().copied();
        let mut login = home.command(&["login", address]);
        let login = said_to(
            login.envs(variables.clone()),
            File::open(&input).unwrap().into(),
        );
        assert!(
            login.stdout.contains(why),
            "{}{}",
            login.stdout,
            login.stderr
        );
        let courses = said(home.command(&["courses"]).envs(variables));
        assert_eq!(courses.status.success(), is_used, "{}", courses.stderr);
    }
}

#[test]
fn what_a_broker_says_to_a_person() {
    let home = Home::new();
    let people = home.path("people.toml").display().to_string();
    let add = home.run(&[
        "people",
        "add",
        "ada",
        "--course",
        "ml101",
        "--people-file",
        &people,
    ]);
    let token = home.write("ada", &add.stdout).display().to_string();
    let courses = home.write("courses.toml", COURSES).display().to_string();
    let state = home.path("state").display().to_string();
    let listen = ["broker", "--listen", "127.0.0.1:0"];
    let files = [
        "--state-folder",
        &state,
        "--people-file",
        &people,
        "--courses-file",
        &courses,
    ];
    let mut broker = home.start(&[listen.as_slice(), files.as_slice()].concat());
    let address = broker.line("The broker listens on ");
    broker.line("Each person who is not in a Hub and each worker needs a token of their own: ");
    let all = broker.line("The token in ");
    assert!(
        all.ends_with("state/token opens everything: keep it on this machine"),
        "{all}"
    );
    let ask = |question: &[&str]| {
        let how = ["--broker", &address, "--token-file", &token];
        home.run(&[question, how.as_slice()].concat())
    };
    for (question, answer) in [
        (["jobs"].as_slice(), "No jobs\n"),
        (&["jobs", "--json", "--state", "queued"], "[]\n"),
        (&["workers"], "No worker is connected\n"),
        (&["usage"], "No one has used a GPU in 7 days\n"),
        (&["usage", "--json", "--person", "ada lovelace"], "[]\n"),
        (&["states"], "No saved states\n"),
        (&["states", "--json", "--course", "ml101"], "[]\n"),
        (
            &["courses"],
            "COURSE  WEIGHT  LIMIT  LONGEST  LEFT                 RUNNING  WAITING  NOTE\n\
             ml101   1       5 min  5 min    2 h of 2 h left today  0        0\n",
        ),
    ] {
        let said = ask(question);
        assert!(said.status.success(), "{}", said.stderr);
        assert_eq!(words(&said.stdout), words(answer), "{}", said.stdout);
    }
    let fails = |said: Said, why: &str| {
        assert_eq!(said.status.code(), Some(1));
        assert!(said.stderr.contains(why), "{}", said.stderr);
    };
    fails(
        ask(&["explain", "7f3a"]),
        "There is no cell with an id ending in 7f3a that you can see\nhint: ",
    );
    let wrong = ask(&["explain", "train"]);
    assert_eq!(wrong.status.code(), Some(2));
    let expected = "the last digits of a job are expected, such as 7f3a";
    assert!(wrong.stderr.contains(expected), "{}", wrong.stderr);
    fails(
        ask(&["states", "--delete", "friday"]),
        "You have no saved state friday",
    );
    fails(
        home.run(&["jobs", "--broker", &address]),
        "needs a token, and none was given\nhint: store your token with `baton login`",
    );
    for (act, why) in [
        (
            ["course", "ml101", "--weight", "2"].as_slice(),
            "Only staff of its course may do this\nhint: ",
        ),
        (&["course", "ml101"], "There is nothing to change\nhint: "),
        (&["drain", "gpu-2", "--reason", "a new fan"], "Only admins"),
        (&["audit"], ""),
    ] {
        let said = ask(act);
        match why {
            "" => assert_eq!(said.stdout, "No actions yet\n"),
            why => fails(said, why),
        }
    }
    log_in(&home, &address, &add.stdout);
    let own = home.path("state/token").display().to_string();
    let operate = |act: &[&str]| {
        let how = ["--broker", &address, "--token-file", &own];
        let said = home.run(&[act, how.as_slice()].concat());
        assert!(said.status.success(), "{}", said.stderr);
        said.stdout
    };
    let change = [
        "--weight",
        "2",
        "--limit",
        "none",
        "--longest",
        "10m",
        "--pause",
        "Back at two",
    ];
    let changed = operate(&[["course", "ml101"].as_slice(), &change].concat());
    assert!(changed.contains("paused: Back at two"), "{changed}");
    let options = ["--deadline", "2999-11-20T23:59", "--unpause", "--json"];
    let changed = operate(&[["course", "ml101"].as_slice(), &options].concat());
    let changed: serde_json::Value = serde_json::from_str(&changed).unwrap();
    let course = &changed[0];
    let limits = [&course["timeout_ms"], &course["longest_timeout_ms"]];
    assert_eq!(limits, [&serde_json::Value::Null, &600_000.into()]);
    assert_eq!(course["deadlines"][0]["weight"], 3.0);
    assert_eq!(course["paused"], serde_json::Value::Null);
    let audit = operate(&["audit", "--course", "ml101", "--limit", "1"]);
    assert!(
        audit.contains("(operator)  change_course  ml101"),
        "{audit}"
    );
    broker.signal(Signal::SIGTERM);
    assert!(broker.ended().success());
}

/// However wide the columns are.
fn words(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

#[test]
fn arguments_are_checked_before_the_broker_is_asked() {
    let home = Home::new();
    let course = ["course", "ml101"];
    let grant = ["grant", "ada", "--course", "ml101"];
    let no_time = "a time above 0 is expected, or none";
    let no_text = "one line of text is expected";
    for (command, arguments, why) in [
        (&course[..], &["--limit", "0s"][..], no_time),
        (&course, &["--longest", "0s"], no_time),
        (&course, &["--pause", ""], no_text),
        (&course, &["--message", "two\nlines"], no_text),
        (
            &course,
            &["--deadline", "2999-01-31T23:59", "--before", "0s"],
            "--before must be above 0",
        ),
        (&["drain", "gpu-1"], &["--reason", " "], no_text),
        (&grant, &["0s"], no_time),
    ] {
        let said = home.run(&[command, arguments, &["--broker", "http://127.0.0.1:9"]].concat());
        assert!(!said.status.success());
        assert!(said.stderr.contains(why), "{arguments:?}: {}", said.stderr);
    }
}

#[test]
fn before_the_first_cell_there_is_nobody_to_ask() {
    let home = Home::new();
    for question in ["status", "jobs", "workers"] {
        let said = home.run(&[question]);
        assert_eq!(said.status.code(), Some(1));
        for expected in ["Nothing runs yet", "the first %%gpu cell", "`baton up`"] {
            assert!(said.stderr.contains(expected), "{}", said.stderr);
        }
    }
}
