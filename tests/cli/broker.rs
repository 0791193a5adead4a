//! `baton broker` and who may speak to it.

use crate::home::{Home, mode, said};
use nix::sys::signal::Signal;
use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
};

/// The command line of a broker on a port that is free.
fn broker_in(state: &str) -> [&str; 5] {
    ["broker", "--listen", "127.0.0.1:0", "--state-folder", state]
}

#[test]
fn a_broker_without_configuration_has_a_token_and_says_where() {
    let home = Home::new();
    let state = home.path("state").display().to_string();
    let arguments = broker_in(&state);
    let mut broker = home.start(&arguments);
    let address = broker.line("The broker listens on ");
    let token_file = broker.line("They need the token in ");
    assert_eq!(mode(token_file.as_ref()), 0o600);
    let token = fs::read_to_string(&token_file).unwrap();

    let ask = |arguments: &[&str]| {
        let arguments: Vec<&str> = arguments
            .iter()
            .copied()
            .chain(["--broker", &address])
            .collect();
        home.run(&arguments)
    };
    home.status(&["--broker", &address, "--token-file", &token_file]);
    let doctor = ask(&["doctor", "--token-file", &token_file]);
    assert!(
        doctor.stdout.contains("answers, version"),
        "{}",
        doctor.stdout
    );
    let stranger = ask(&["doctor"]);
    assert!(
        stranger
            .stdout
            .contains("needs a token, and none was given"),
        "{}",
        stranger.stdout
    );

    broker.signal(Signal::SIGTERM);
    assert!(broker.ended().success());
    // The next one keeps the token.
    let mut broker = home.start(&arguments);
    broker.line("The broker listens on ");
    assert_eq!(fs::read_to_string(&token_file).unwrap(), token);
    broker.signal(Signal::SIGINT);
    assert!(broker.ended().success());
}

#[test]
fn the_token_of_a_broker_is_for_its_user_only() {
    let home = Home::new();
    let state = home.path("state").display().to_string();
    let arguments = broker_in(&state);
    let token_file = home.write("state/token", "\n");
    let allow_all = || fs::set_permissions(&token_file, Permissions::from_mode(0o644)).unwrap();
    allow_all();
    let mut broker = home.start(&arguments);
    broker.line("The broker listens on ");
    assert_eq!(mode(&token_file), 0o600);
    assert_eq!(fs::read_to_string(&token_file).unwrap().trim().len(), 64);
    broker.signal(Signal::SIGTERM);
    assert!(broker.ended().success());
    allow_all();
    let refused = home.run(&arguments);
    let hint = format!("hint: chmod 600 {}", token_file.display());
    assert!(refused.stderr.contains(&hint), "{}", refused.stderr);
}

#[test]
fn a_wrong_token_is_explained() {
    let home = Home::new();
    let people = ["--people-file", "people.toml"];
    let add = |arguments: &[&str]| {
        let said = home.run(&[&["people", "add"], arguments, &people].concat());
        assert!(said.status.success(), "{}", said.stderr);
        said
    };
    home.write("person", &add(&["ada"]).stdout);
    let worker = add(&["gpu-1", "--worker"]);
    home.write("two-lines", &(worker.stdout.clone() + &worker.stderr));
    home.write("empty", "\n");
    let mut broker = home.start(&[&["broker", "--listen", "127.0.0.1:0"], &people[..]].concat());
    let address = broker.line("The broker listens on ");
    for command in ["worker", "jobs"] {
        for (file, why) in [
            ("two-lines", "/two-lines is not valid: it has several lines"),
            ("empty", "/empty\nhint: `baton people add NAME`"),
        ] {
            let said = home.run(&[command, "--broker", &address, "--token-file", file]);
            assert!(said.stderr.contains(why), "{command}: {}", said.stderr);
        }
    }
    let mut join = home.command(&["worker", "--broker", &address, "--token-file", "person"]);
    let refused = said(join.env("BATON_WORKER_SANDBOX", "none"));
    for part in ["it is not for workers", "baton people add NAME --worker"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    let refused = home.run_with_input(&["login", &address], &worker.stdout);
    for part in ["only workers can use it", "hint: enter the whole token"] {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    broker.signal(Signal::SIGTERM);
    assert!(broker.ended().success());
}

#[test]
fn chunks_have_a_process_of_their_own_beside_a_broker() {
    let home = Home::new();
    let state = home.path("state").display().to_string();
    let listen = ["--listen", "127.0.0.1:0", "--state-folder", &state];
    let mut broker = home.start(&[&["broker"], &listen[..]].concat());
    let address = broker.line("The broker listens on ");
    let token_file = broker.line("They need the token in ");
    let start = [&["chunks", "--broker", &address], &listen[..]].concat();
    let without = home.run(&start);
    assert!(!without.status.success());
    assert!(
        without.stderr.contains("hint: give --token-file"),
        "{}",
        without.stderr
    );
    let mut chunks = home.start(&[&start[..], &["--token-file", &token_file]].concat());
    let door = chunks.line("Serving chunks on ");
    assert!(
        door.starts_with("http://127.0.0.1:") && door != address,
        "{door}"
    );
    for process in [&mut chunks, &mut broker] {
        process.signal(Signal::SIGTERM);
        assert!(process.ended().success());
    }
}

#[test]
fn a_person_gets_a_token_that_opens_what_the_role_allows() {
    let home = Home::new();
    let file = home.path("people.toml").display().to_string();
    let add = |arguments: &[&str]| {
        let start = ["people", "add", "--people-file", &file];
        home.run(&start.iter().chain(arguments).copied().collect::<Vec<_>>())
    };
    let ada = add(&["ada", "--course", "ml101"]);
    assert!(ada.status.success(), "{}", ada.stderr);
    let token_file = home.write("ada", &ada.stdout).display().to_string();
    assert_eq!(mode(file.as_ref()), 0o600);
    assert!(
        !fs::read_to_string(&file)
            .unwrap()
            .contains(ada.stdout.trim())
    );
    let again = add(&["ada", "--admin"]);
    assert!(again.stderr.contains("ada is in"), "{}", again.stderr);
    assert!(add(&["tia", "--staff-of", "ml101"]).status.success());
    let both = add(&["gpu-1", "--worker", "--admin"]);
    assert_eq!(both.status.code(), Some(2));
    let gpu = add(&["gpu-1", "--worker"]);
    let worker_file = home.write("gpu-1", &gpu.stdout).display().to_string();

    let state = home.path("state").display().to_string();
    let listen = ["broker", "--listen", "127.0.0.1:0", "--state-folder"];
    let arguments: Vec<&str> = listen
        .into_iter()
        .chain([&state as &str, "--people-file", &file])
        .collect();
    let mut broker = home.start(&arguments);
    let address = broker.line("The broker listens on ");
    home.status(&["--broker", &address, "--token-file", &token_file]);
    let doctor = home.run(&["doctor", "--broker", &address, "--token-file", &token_file]);
    assert!(
        doctor.stdout.contains("answers, version"),
        "{}",
        doctor.stdout
    );
    let doctor = home.run(&["doctor", "--broker", &address, "--token-file", &worker_file]);
    assert!(doctor.stdout.contains("as a worker's"), "{}", doctor.stdout);
    broker.signal(Signal::SIGTERM);
    assert!(broker.ended().success());
}

#[test]
fn a_pool_whose_commands_do_not_exist_fails_its_test() {
    let home = Home::new();
    let pool = |submit: &str| {
        format!(
            "[[pool]]\nname = \"p2\"\nprovider = \"command\"\nmax = 1\nwalltime = \"2h\"\nidle = \"5m\"\n\
             submit = \"{submit} {{command}}\"\nfind = \"\"\nexpected = \"\"\n\
             status = \"true {{id}}\"\ncancel = \"true {{id}}\"\n"
        )
    };
    for (submit, code) in [("true", 0), ("/nowhere/sbatch", 1)] {
        home.write(".config/baton/config.toml", &pool(submit));
        let state = home.path("state").display().to_string();
        let mut broker = home.start(&broker_in(&state));
        let address = broker.line("The broker listens on ");
        let token_file = broker.line("They need the token in ");
        let said = home.run(&[
            "pools",
            "test",
            "p2",
            "--broker",
            &address,
            "--token-file",
            &token_file,
        ]);
        assert_eq!(said.status.code(), Some(code), "{}", said.stderr);
        assert_eq!(said.stdout.contains("problem: "), code == 1);
        broker.signal(Signal::SIGTERM);
        assert!(broker.ended().success());
    }
}

#[test]
fn a_worker_says_what_it_cannot_use() {
    let home = Home::new();
    home.write("run/baton", "in the way");
    let said = said(
        home.command(&["worker"])
            .env("BATON_BROKER_ADDRESS", "http://127.0.0.1:1"),
    );
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stderr.contains("runtime folder"), "{}", said.stderr);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let home = Home::new();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let state = home.path("state").display().to_string();
    let said = home.run(&["broker", "--listen", &address, "--state-folder", &state]);
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stderr.contains(&address), "{}", said.stderr);
}
