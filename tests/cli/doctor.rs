//! Each check is a sentence, and what is wrong comes with a fix.

use crate::home::{Home, Said, python, said};
use std::{fs, os::unix::fs::PermissionsExt, path::Path};

/// The fix that follows a sentence.
fn fix(said: &Said, what: &str) -> String {
    let mut lines = said
        .stdout
        .lines()
        .skip_while(|line| !line.starts_with("wrong") || !line.contains(what));
    assert!(lines.next().is_some(), "{what}: {}", said.stdout);
    let fix = lines.find_map(|line| line.trim().strip_prefix("fix: "));
    fix.unwrap().to_owned()
}

#[test]
fn a_good_machine_has_nothing_to_mend_but_packages() {
    let home = Home::new();
    let python = python();
    assert!(home.run(&["install", "--python", &python]).status.success());
    let said = home.run(&["doctor", "--python", &python]);
    for expected in [
        "is Python 3.",
        "A program may read the memory of its children",
        "The configuration is valid",
        "kernels/baton/kernel.json starts and runs a cell",
        "The runtime folder",
        "This machine has ",
        "A session of a worker here starts and runs a cell",
        "the first %%gpu cell starts one",
    ] {
        assert!(
            said.stdout.contains(expected),
            "{expected}: {}",
            said.stdout
        );
    }
}

#[test]
fn each_fault_has_a_fix_and_fails_the_command() {
    let home = Home::new();
    let runtime = home.runtime("");
    fs::create_dir_all(&runtime).unwrap();
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755)).unwrap();
    // A Python without any packages.
    let said = said(
        home.command(&["doctor", "--python", "/nowhere/python"])
            .env("BATON_BROKER_ADDRESS", "http://127.0.0.1:1")
            .env("BATON_BROKER_CHUNKS", home.path("chunks"))
            .env("BATON_WORKER_MIRRORS", home.path("mirrors"))
            .env("BATON_WORKER_ENVIRONMENTS", home.path("environments")),
    );
    assert_eq!(said.status.code(), Some(1));
    for folder in ["chunks", "mirrors", "environments"] {
        let free = format!("free for {}", home.path(folder).display());
        assert!(said.stdout.contains(&free), "{free}: {}", said.stdout);
    }
    assert!(fix(&said, "Failed to start /nowhere/python").contains("--python"));
    assert!(fix(&said, "Other users can enter").contains("`chmod 700`"));
    assert!(fix(&said, "cannot be reached").contains("baton broker"));
}

#[test]
fn a_worker_of_another_python_is_tried_and_compared() {
    let home = Home::new();
    let python = python();
    // Without any packages.
    let bare = home.write("bare", &format!("#!/bin/sh\nexec {python} -S \"$@\"\n"));
    fs::set_permissions(&bare, fs::Permissions::from_mode(0o755)).unwrap();
    let doctor = |worker: &str| {
        let text = format!("[worker]\npython = \"{worker}\"\n");
        home.write(".config/baton/config.toml", &text);
        home.run(&["doctor", "--python", &python])
    };
    let good = doctor(&python);
    for expected in [
        "ok     The worker's ",
        "ok     A session of a worker here starts and runs a cell",
    ] {
        assert!(
            good.stdout.contains(expected),
            "{expected}: {}",
            good.stdout
        );
    }
    let bad = doctor(bare.to_str().unwrap());
    assert_eq!(bad.status.code(), Some(1));
    let missing = fix(&bad, "The worker does not have cloudpickle");
    assert!(
        missing.contains(" -m pip install cloudpickle=="),
        "{missing}"
    );
    let failed = fix(
        &bad,
        "A worker here cannot run cells. The session could not start",
    );
    assert!(failed.ends_with(" -m pip install ."), "{failed}");
    assert!(bad.stdout.contains("No module named"), "{}", bad.stdout);
    let none = doctor("/nowhere/python");
    assert!(fix(&none, "Failed to start /nowhere/python").contains("worker.python"));
}

#[test]
fn programs_read_the_same_as_json() {
    let home = Home::new();
    let said = home.run(&["doctor", "--json", "--python", "/nowhere/python"]);
    assert_eq!(said.status.code(), Some(1));
    let checks: Vec<serde_json::Value> = serde_json::from_str(&said.stdout).unwrap();
    let check = |what: &str| {
        let named = |check: &&serde_json::Value| check["what"].as_str().unwrap().contains(what);
        checks
            .iter()
            .find(named)
            .unwrap_or_else(|| panic!("{what}: {checks:?}"))
    };
    let python = check("Failed to start /nowhere/python");
    assert_eq!(python["ok"], false);
    assert!(python["fix"].as_str().unwrap().contains("--python"));
    let valid = check("The configuration is valid");
    assert_eq!(
        (&valid["ok"], &valid["fix"]),
        (&true.into(), &serde_json::Value::Null)
    );
}

#[test]
fn a_kernelspec_that_starts_nothing_is_found() {
    let home = Home::new();
    let python = python();
    let check = |text: &str, expected: &str| {
        home.write(".local/share/jupyter/kernels/baton/kernel.json", text);
        let said = home.run(&["doctor", "--python", &python]);
        assert_eq!(fix(&said, expected), "baton install");
    };
    check(
        r#"{"argv": ["/nowhere/python", "-m", "baton_shim", "-f", "{connection_file}"],
            "display_name": "Baton", "language": "python"}"#,
        "names a Python that does not exist",
    );
    check(r#"{"argv": ["python", "-m", "ipykernel"]}"#, "is not valid");
    check("", "is not valid");
}

#[test]
fn a_kernel_that_does_not_start_is_found_with_its_last_words() {
    let home = Home::new();
    let python = python();
    let fails = "import sys; sys.exit('no memory for a kernel')";
    let argv = [&python, "-c", fails, "baton_shim", "{connection_file}"];
    let text = serde_json::json!({"argv": argv, "display_name": "Baton", "language": "python"});
    home.write(
        ".local/share/jupyter/kernels/baton/kernel.json",
        &text.to_string(),
    );
    let said = home.run(&["doctor", "--python", &python]);
    let fix = fix(&said, "cannot run a cell");
    assert!(fix.contains("--force-reinstall"), "{fix}");
    assert!(
        said.stdout.contains("no memory for a kernel"),
        "{}",
        said.stdout
    );
}

#[test]
fn a_wrong_configuration_is_one_of_the_findings() {
    let home = Home::new();
    home.write(".config/baton/config.toml", "wrong = 1\n");
    let said = home.run(&["doctor", "--python", "python3"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stdout.contains("Unknown key wrong"), "{}", said.stdout);
    assert!(said.stdout.contains("is Python 3."), "{}", said.stdout);
}

#[test]
fn environments_of_a_worker_are_looked_at() {
    let home = Home::new();
    home.write("good.txt", "a==1 --hash=sha256:0\n");
    home.write("bad.txt", "a==1\n");
    let path = |name: &str| home.path(name).display().to_string();
    let text = format!(
        "[worker]\nsandbox = \"none\"\n[environment.good]\nlock = {:?}\n[environment.bad]\nlock = {:?}\n\
         [environment.gone]\npython = \"/nowhere/python\"\n",
        path("good.txt"),
        path("bad.txt"),
    );
    home.write(".config/baton/config.toml", &text);
    let python = python();
    let uv = Path::new(&python).parent().unwrap().display().to_string();
    let mut command = home.command(&["doctor", "--python", &python]);
    let said = said(command.env("PATH", format!("{uv}:/usr/bin:/bin")));
    let good = "ok     The environment good: a worker here can build it from its lock";
    assert!(said.stdout.contains(good), "{}", said.stdout);
    let fix = fix(&said, "The environment bad: ");
    assert!(fix.contains("uv pip compile --generate-hashes"), "{fix}");
    let gone = "The environment gone: The session could not start: Failed to start /nowhere/python";
    assert!(said.stdout.contains(gone), "{}", said.stdout);
}

#[test]
fn the_sandbox_is_tried() {
    let home = Home::new();
    let python = python();
    let doctor = |sandbox: &str| {
        let mut command = home.command(&["doctor", "--python", &python]);
        said(command.env("BATON_WORKER_SANDBOX", sandbox))
    };
    let none = doctor("none");
    let expected = "ok     Sessions have no sandbox, because worker.sandbox is \"none\"";
    assert!(none.stdout.contains(expected), "{}", none.stdout);
    let tried = doctor("bubblewrap");
    if fs::exists("/usr/bin/bwrap").unwrap() {
        let expected =
            "ok     A sandbox for sessions starts here, and a probe inside reaches nothing outside";
        assert!(tried.stdout.contains(expected), "{}", tried.stdout);
    } else {
        let fix = fix(&tried, "the program bwrap is missing");
        assert!(fix.contains("apt-get install bubblewrap"), "{fix}");
    }
    let tried = doctor("landlock");
    let expected = "a probe inside reaches nothing outside; Landlock protects less than bubblewrap";
    if !tried.stdout.contains(expected) {
        // An older system.
        let fix = fix(
            &tried,
            "cannot keep sessions apart with it: it does not restrict",
        );
        assert!(fix.contains("use a newer kernel"), "{fix}");
    }
}
