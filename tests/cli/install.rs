//! The kernelspec lands where Jupyter looks.

use crate::home::{Home, python, said};
use serde_json::Value;
use std::{fs, path::Path};

fn specification(folder: &Path) -> Value {
    for logo in ["logo-32x32.png", "logo-64x64.png", "logo-svg.svg"] {
        assert!(folder.join(logo).metadata().unwrap().len() > 0, "{logo}");
    }
    serde_json::from_slice(&fs::read(folder.join("kernel.json")).unwrap()).unwrap()
}

#[test]
fn for_this_user() {
    let home = Home::new();
    let said = home.run(&["install", "--python", &python()]);
    assert!(said.status.success(), "{}", said.stderr);
    let specification = specification(&home.path(".local/share/jupyter/kernels/baton"));
    assert_eq!(specification["display_name"], "Python (shared GPU)");
    assert_eq!(specification["interrupt_mode"], "message");
    let arguments = specification["argv"].as_array().unwrap();
    assert!(Path::new(arguments[0].as_str().unwrap()).is_absolute());
    assert_eq!(
        arguments[1..],
        ["-m", "baton_shim", "-f", "{connection_file}"]
    );
    // The test's program does not lie beside that Python.
    let program = specification["env"]["BATON_BINARY"].as_str().unwrap();
    assert_eq!(
        Path::new(program),
        fs::canonicalize(env!("CARGO_BIN_EXE_baton")).unwrap()
    );
}

#[test]
fn below_a_prefix_and_where_jupyter_is_told_to_look() {
    let home = Home::new();
    let prefix = home.path("prefix");
    let prefix_argument = prefix.display().to_string();
    let python = python();
    let prefixed = home.run(&["install", "--prefix", &prefix_argument, "--python", &python]);
    assert!(prefixed.status.success(), "{}", prefixed.stderr);
    specification(&prefix.join("share/jupyter/kernels/baton"));

    let data = home.path("data");
    let user = said(
        home.command(&["install", "--user", "--python", &python])
            .env("JUPYTER_DATA_DIR", &data),
    );
    assert!(
        user.stdout.contains(data.to_str().unwrap()),
        "{}",
        user.stdout
    );
    specification(&data.join("kernels/baton"));
}

#[test]
fn nothing_is_installed_for_a_python_that_does_not_work() {
    let home = Home::new();
    for (python, expected) in [
        ("/nowhere/python", "Failed to start /nowhere/python"),
        ("false", "does not work as a Python"),
    ] {
        let said = home.run(&["install", "--python", python]);
        assert_eq!(said.status.code(), Some(1));
        assert!(said.stderr.contains(expected), "{}", said.stderr);
    }
    assert!(!home.path(".local").exists());
}

#[test]
fn one_place_at_a_time() {
    let said = Home::new().run(&["install", "--user", "--system"]);
    assert_eq!(said.status.code(), Some(2));
}
