//! However proxy, kernel or parent end, nothing is left behind.

use crate::proxy::{Proxy, Settings, eventually, is_running, leftovers};
use baton_jupyter_wire::process::tree;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::json;
use std::{path::PathBuf, process::Stdio};

fn signal(pid: u32, signal: Signal) {
    kill(Pid::from_raw(pid.cast_signed()), signal).unwrap();
}

fn kernel_of(proxy: &Proxy) -> u32 {
    let processes = tree(proxy.pid());
    assert_eq!(processes.len(), 2, "the proxy and its kernel");
    processes[1]
}

/// Runs the cell, which ends the kernel, and checks how the proxy ends.
fn check_end(code: &str, expected: i32) {
    let mut proxy = Settings::tcp().start();
    let mut client = proxy.client();
    client.execute(code);
    assert_eq!(proxy.wait().code(), Some(expected), "{code}");
    assert_eq!(proxy.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn the_kernels_exit_code_is_ours() {
    check_end("import os; os._exit(3)", 3);
}

#[test]
fn the_kernels_signal_is_told() {
    check_end("import os; os.kill(os.getpid(), 9)", 137);
}

#[test]
fn the_last_words_arrive_before_the_end() {
    let mut proxy = Settings::tcp().start();
    let mut client = proxy.client();
    client.ask_control("shutdown_request", &json!({"restart": false}));
    let reply = crate::client::read(client.control.receive().unwrap());
    assert_eq!(reply.kind, "shutdown_reply");
    let mut told = Vec::new();
    while let Some(frames) = client.iopub.receive() {
        told.push(crate::client::read(frames).kind);
    }
    assert!(told.contains(&"shutdown_reply".to_owned()), "{told:?}");
    assert_eq!(proxy.wait().code(), Some(0));
    assert_eq!(proxy.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn a_killed_proxy_takes_its_kernel_along_and_the_next_one_tidies_up() {
    let mut proxy = Settings::tcp().start();
    let mut client = proxy.client();
    let marker = proxy.folder.path().join("marker");
    // This C loop holds the GIL, so the kernel's thread that watches the parent cannot run.
    let code = format!(
        "open('{}', 'w')\nimport re; re.match('(a+)+b', 'a' * 60)",
        marker.display()
    );
    client.execute(&code);
    eventually(|| marker.exists());
    let kernel = kernel_of(&proxy);
    signal(proxy.pid(), Signal::SIGKILL);
    proxy.wait();
    eventually(|| !is_running(kernel));
    let left = proxy.leftovers();
    assert_eq!(left.len(), 1, "{left:?}");

    let mut next = Settings::tcp();
    next.python = "/no/such/python".into();
    let mut command = next.command(proxy.folder.path());
    assert!(!command.stderr(Stdio::null()).status().unwrap().success());
    assert_eq!(proxy.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn a_proxy_that_is_told_to_end_ends_its_kernel() {
    let mut proxy = Settings::tcp().start();
    drop(proxy.client());
    let kernel = kernel_of(&proxy);
    signal(proxy.pid(), Signal::SIGTERM);
    assert_eq!(proxy.wait().code(), Some(143));
    assert!(!is_running(kernel));
    assert_eq!(proxy.leftovers(), Vec::<PathBuf>::new());
}

#[test]
fn a_kernel_that_does_not_want_to_end_is_ended() {
    let mut proxy = Settings::tcp().start();
    let mut client = proxy.client();
    client.run("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)");
    let kernel = kernel_of(&proxy);
    signal(proxy.pid(), Signal::SIGTERM);
    assert_eq!(proxy.wait().code(), Some(137));
    assert!(!is_running(kernel));
}

#[test]
fn proxy_and_kernel_end_with_the_one_that_started_them() {
    let settings = Settings::tcp();
    let folder = tempfile::tempdir().unwrap();
    let command = settings.command(folder.path());
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "\"$@\" & wait", "sh"]);
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        shell.env(name, value.unwrap());
    }
    let mut shell = shell
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    eventually(|| tree(shell.id()).len() == 3 && !leftovers(folder.path()).is_empty());
    let family = tree(shell.id());
    shell.kill().unwrap();
    shell.wait().unwrap();
    eventually(|| !family.iter().any(|pid| is_running(*pid)));
    assert_eq!(leftovers(folder.path()), Vec::<PathBuf>::new());
}
