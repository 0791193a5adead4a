//! `baton jobs`, `workers`, `courses`, `usage` and `explain` on a broker where nothing has run.

use nix::sys::signal::Signal;

use crate::home::{Home, Said};

const COURSES: &str =
    "[course.ml101]\ntime_limit = \"5m\"\nbudget = { gpu_time = \"2h\", reset = \"04:00\" }\n";

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
    fails(
        ask(&["explain", "train"]),
        "`ends_with` must be the last hexadecimal digits of a job\nhint: ",
    );
    fails(
        ask(&["states", "--delete", "friday"]),
        "You have no saved state friday",
    );
    fails(
        home.run(&["jobs", "--broker", &address]),
        "does not accept this token",
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
    let options = ["--deadline", "2026-11-20T23:59", "--unpause", "--json"];
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
