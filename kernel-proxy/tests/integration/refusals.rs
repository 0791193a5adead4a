//! A kernel that cannot be served is not started.

use crate::proxy::Settings;
use std::{net::TcpListener, path::PathBuf};

/// The proxy exits with an error that contains `expected`, and has started nothing.
fn check_refused(mut settings: Settings, expected: &str) {
    let marker = tempfile::tempdir().unwrap();
    std::fs::write(
        marker.path().join("marking_kernel.py"),
        format!("open({:?}, 'w')", marker.path().join("started")),
    )
    .unwrap();
    settings.launcher = "marking_kernel".to_owned();
    settings.python_path = marker.path().to_owned();
    check_ends(settings, expected);
    assert!(!marker.path().join("started").exists());
}

fn check_ends(settings: Settings, expected: &str) {
    let mut proxy = settings.start();
    let status = proxy.wait();
    let said = proxy.stderr();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains(expected), "{said}");
    assert_eq!(proxy.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn a_busy_port_is_named() {
    let settings = Settings::tcp();
    let port = settings.connection["stdin_port"].as_u64().unwrap();
    let _busy = TcpListener::bind(("127.0.0.1", u16::try_from(port).unwrap())).unwrap();
    let expected = format!("Failed to listen on tcp://127.0.0.1:{port} for the channel stdin");
    check_refused(settings, &expected);
}

#[test]
fn encryption_keys_are_refused() {
    let mut settings = Settings::tcp();
    settings.connection["curve_publickey"] = "x".into();
    check_refused(settings, "CurveZMQ");
}

#[test]
fn a_connection_file_without_a_port_is_refused() {
    let mut settings = Settings::tcp();
    settings.connection["control_port"] = serde_json::Value::Null;
    check_refused(settings, "control_port");
}

#[test]
fn a_missing_python_is_named() {
    let mut settings = Settings::tcp();
    settings.python = "/no/such/python".into();
    check_ends(settings, "Failed to start /no/such/python");
}

#[test]
fn a_python_without_ipykernel_is_told() {
    let mut settings = Settings::tcp();
    settings.launcher = "no_such_module".to_owned();
    check_ends(settings, "before it was ready");
}
