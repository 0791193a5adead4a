//! What `baton kernel` says before there is a kernel.

use crate::home::Home;

#[test]
fn a_kernel_needs_a_connection_file() {
    let home = Home::new();
    let said = home.run(&["kernel", "--python", "/usr/bin/python3"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(
        said.stderr.contains("The connection file is missing"),
        "{}",
        said.stderr
    );
    let said = home.run(&["kernel", "-f", "/nowhere.json"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(said.stderr.contains("/nowhere.json"), "{}", said.stderr);
}

/// It is logged, and `%%gpu` cells do not run; ordinary ones do.
#[test]
fn a_wrong_configuration_is_no_reason_not_to_start() {
    let home = Home::new();
    home.write(".config/baton/config.toml", "wrong = 1\n");
    let said = home.run(&["kernel", "-f", "/nowhere.json"]);
    assert!(said.stderr.contains("Unknown key wrong"), "{}", said.stderr);
    assert!(said.stderr.contains("/nowhere.json"), "{}", said.stderr);
}

#[test]
fn help_is_ours() {
    let said = Home::new().run(&["kernel", "--help"]);
    assert!(said.status.success());
    assert!(
        said.stdout.contains("to the notebook kernel unchanged"),
        "{}",
        said.stdout
    );
}

#[test]
fn the_version_is_said() {
    let said = Home::new().run(&["--version"]);
    assert_eq!(
        said.stdout,
        format!("baton {}\n", env!("CARGO_PKG_VERSION"))
    );
}
