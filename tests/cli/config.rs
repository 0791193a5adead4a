//! Where settings come from, and what is refused.

use crate::home::{Home, said};

/// The line of one setting: its value and its origin.
fn shown(text: &str, key: &str) -> (String, String) {
    let line = text
        .lines()
        .find(|line| line.split_whitespace().next() == Some(key))
        .unwrap();
    let mut parts = line.split("  ").filter(|part| !part.is_empty()).skip(1);
    let mut next = || parts.next().unwrap().trim().to_owned();
    (next(), next())
}

#[test]
fn environment_goes_before_file_and_file_before_default() {
    let home = Home::new();
    let file = home.write(
        ".config/baton/config.toml",
        "autostart = false\n[worker]\nslots = 5\nname = \"from-file\"\n",
    );
    let said = said(
        home.command(&["config", "show"])
            .env("BATON_WORKER_SLOTS", "7")
            .env("BATON_WORKER_CACHE_LIMIT", ""),
    );
    assert!(said.status.success(), "{}", said.stderr);
    let check = |key: &str, value: &str, origin: &str| {
        assert_eq!(
            shown(&said.stdout, key),
            (value.to_owned(), origin.to_owned())
        );
    };
    let file = file.display().to_string();
    check("worker.slots", "7", "BATON_WORKER_SLOTS");
    check("worker.name", "from-file", &file);
    check("autostart", "false", &file);
    check("worker.cache_limit", "32GiB", "default");
    let runtime = home.runtime("").display().to_string();
    check("runtime_folder", runtime.trim_end_matches('/'), "default");
}

#[test]
fn a_worker_offers_the_environments_of_its_file() {
    let home = Home::new();
    let text = "[environment.ml101]\nlock = \"/srv/uv.lock\"\n[environment.old]\npython = \"/opt/old/bin/python\"\n";
    let file = home.write(".config/baton/config.toml", text);
    let said = home.run(&["config", "show"]);
    let (value, origin) = shown(&said.stdout, "environment");
    assert!(
        value.contains("ml101 = { lock = \"/srv/uv.lock\" }"),
        "{value}"
    );
    assert_eq!(origin, file.display().to_string());
}

#[test]
fn a_named_file_is_the_only_one() {
    let home = Home::new();
    home.write(".config/baton/config.toml", "[worker]\nslots = 5\n");
    let named = home.write("named.toml", "autostart = false\n");
    let said = said(
        home.command(&["config", "show"])
            .env("BATON_CONFIG", &named),
    );
    assert_eq!(shown(&said.stdout, "worker.slots").1, "default");
    assert_eq!(shown(&said.stdout, "autostart").0, "false");
}

#[test]
fn secrets_are_not_shown() {
    let home = Home::new();
    let said = said(
        home.command(&["config", "show"])
            .env("BATON_TOKEN", "open sesame"),
    );
    assert!(!said.stdout.contains("sesame"));
    assert_eq!(
        shown(&said.stdout, "token"),
        ("hidden".to_owned(), "BATON_TOKEN".to_owned())
    );
}

#[test]
fn what_is_wrong_in_a_file_is_named() {
    #[track_caller]
    fn check(text: &str, expected: &[&str]) {
        let home = Home::new();
        let file = home.write(".config/baton/config.toml", text);
        let said = home.run(&["config", "show"]);
        assert_eq!(said.status.code(), Some(1), "{text}");
        let file = file.display().to_string();
        for expected in expected.iter().chain([&file.as_str()]) {
            assert!(said.stderr.contains(expected), "{}", said.stderr);
        }
    }
    check(
        "[worker]\nslotz = 1\n",
        &["Unknown key worker.slotz", "worker.slots"],
    );
    check("wrong = 1\n", &["Unknown key wrong", "token_file"]);
    check("[work]\nslots = 1\n", &["Unknown key work.slots"]);
    check(
        "[worker]\nslots = \"many\"\n",
        &["worker.slots", "whole number", "many"],
    );
    check("[worker]\nslots = [1]\n", &["worker.slots"]);
    check(
        "[worker.name]\nfirst = \"gpu\"\n",
        &["Wrong value for worker.name"],
    );
    check(
        "course = { name = \"ml101\" }\n",
        &["Wrong value for course", "some text"],
    );
    check("course = [\"ml101\"]\n", &["Wrong value for course"]);
    check(
        "[worker.labels]\na100 = 1\n",
        &["Wrong value for worker.labels", "a list of names"],
    );
    check(
        "[worker]\nsession_idle = 10\n",
        &["worker.session_idle", "duration such as"],
    );
    for section in [
        "image = \"/images/ml101\"\nlock = \"/a/uv.lock\"",
        "image = \"images/ml101\"",
        "lock = \"/a/uv.lock\"\npython = \"/b/python\"",
        "lock = \"uv.lock\"",
        "",
    ] {
        check(
            &format!("[environment.ml101]\n{section}\n"),
            &[
                "Wrong value for environment",
                "each with lock, python or image",
            ],
        );
    }
    check(
        "[environment.\"a/b\"]\npython = \"/b/python\"\n",
        &["Wrong value for environment"],
    );
    for limit in ["session_memory", "session_disk", "gpu_memory"] {
        check(
            &format!("[worker]\n{limit} = \"0B\"\n"),
            &[&format!("worker.{limit}"), "a size above 0"],
        );
    }
    check("token = \"x\"\n", &["token is a secret", "token_file"]);
    check("[worker\n", &["not valid TOML"]);
}

#[test]
fn what_is_wrong_in_the_environment_or_on_the_command_line_is_named() {
    let home = Home::new();
    let environment = said(home.command(&["status"]).env("BATON_WORKER_SLOTS", "0"));
    assert!(
        environment
            .stderr
            .contains("worker.slots from BATON_WORKER_SLOTS")
    );
    let flag = home.run(&["worker", "--broker", "ftp://somewhere"]);
    assert!(
        flag.stderr.contains("broker_address from the command line"),
        "{}",
        flag.stderr
    );
    let file = said(
        home.command(&["config", "show"])
            .env("BATON_CONFIG", "/nowhere.toml"),
    );
    assert!(file.stderr.contains("/nowhere.toml"), "{}", file.stderr);
    let token = home.run(&["status", "--token-file", "/nowhere"]);
    assert!(
        token
            .stderr
            .contains("Failed to read the token from /nowhere"),
        "{}",
        token.stderr
    );
}

#[test]
fn a_check_finds_what_other_commands_do_not_see() {
    let home = Home::new();
    let file = home.write(".config/baton/config.toml", "[worker]\nslots = 0\n");
    let variable = ("BATON_WORKER_SLOTS", "2");
    let check = |arguments: &[&str], (name, value): (&str, &str)| {
        let arguments = [&["config", "check"], arguments].concat();
        said(home.command(&arguments).env(name, value))
    };
    let file = file.display().to_string();
    for arguments in [&[][..], &[file.as_str()]] {
        let hidden = check(arguments, variable);
        assert!(hidden.stderr.contains("worker.slots"), "{}", hidden.stderr);
    }
    home.write(
        ".config/baton/config.toml",
        "[[pool]]\nname = \"a\"\nprovider = \"nobody\"\nmax = 1\n",
    );
    let hidden = check(&[], ("BATON_POOL", "[]"));
    assert!(hidden.stderr.contains("nobody"), "{}", hidden.stderr);
    for (wrong, why) in [
        (
            "[worker]\nleaves_at = 3600\n",
            "worker.leaves_at is in the past: 1970-01-01 01:00:00 UTC",
        ),
        (
            "[broker.hub]\nstudent_groups = \"{course}\"\nstaff_groups = \"{course}\"\n",
            "every student would be staff",
        ),
    ] {
        home.write(".config/baton/config.toml", wrong);
        let said = check(&[&file], variable);
        assert!(!said.status.success());
        assert!(said.stderr.contains(why), "{}", said.stderr);
    }
    home.write(".config/baton/config.toml", "[worker]\nslots = 1\n");
    assert!(check(&[], variable).status.success());
    assert!(
        check(&[&file], ("BATON_WORKER_SLOTS", "0"))
            .status
            .success()
    );
    let wrong = check(&[], ("BATON_WORKER_SLOTS", "0"));
    assert!(
        wrong.stderr.contains("BATON_WORKER_SLOTS"),
        "{}",
        wrong.stderr
    );
}

#[test]
fn a_way_to_share_that_the_machine_does_not_have_is_refused() {
    let home = Home::new();
    let start = |mode: &str| {
        let mut command = home.command(&[
            "worker",
            "--broker",
            "http://127.0.0.1:9",
            "--gpu-mode",
            mode,
        ]);
        said(command.env("CUDA_MPS_PIPE_DIRECTORY", "/nowhere")).stderr
    };
    for (mode, reason) in [
        (
            "mps",
            "no MPS server listens in /nowhere: start it with `nvidia-cuda-mps-control -d`",
        ),
        (
            "mig",
            "there is no slice: create some with `nvidia-smi mig`",
        ),
        (
            "exclusive",
            "no GPU was found: see the output of `nvidia-smi -L`",
        ),
        ("fair", "timeshare, mps, mig, exclusive or open"),
    ] {
        let stderr = start(mode);
        assert!(stderr.contains(reason), "{stderr}");
    }
}

/// Make it current with `baton config reference > docs/reference/configuration.md`.
#[test]
fn the_reference_is_current() {
    let said = Home::new().run(&["config", "reference"]);
    assert!(
        said.stdout == include_str!("../../docs/reference/configuration.md"),
        "docs/reference/configuration.md is not what `baton config reference` says"
    );
}

#[test]
fn help_says_default_and_environment_of_every_flag() {
    let said = Home::new().run(&["worker", "--help"]);
    assert!(said.stdout.contains("--slots"));
    assert!(said.stdout.contains("BATON_WORKER_SLOTS"));
    assert!(said.stdout.contains("[default: 2 for each time-shared GPU"));
    assert!(said.stdout.contains("[default: 32GiB]"));
}
