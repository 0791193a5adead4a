//! `baton up`: one for each user, private, and gone when nobody needs it.

use crate::home::{Home, Service, mode, wait_until};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::fs::PermissionsExt,
};

fn get(url: &str) -> String {
    let rest = url.strip_prefix("http://").unwrap();
    let (address, path) = rest.split_once('/').unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET /{path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn broker_and_worker_are_there_for_this_user_only() {
    let home = Home::new();
    let mut up = home.start(&["up"]);
    let dashboard = up.line("Dashboard: ");
    up.line("Ready: unix:");
    assert_eq!(mode(&home.runtime("")), 0o700);
    for file in ["broker.sock", "token", "lock", "dashboard.url"] {
        assert_eq!(mode(&home.runtime(file)), 0o600, "{file}");
    }
    let status = home.status(&[]);
    assert!(status.stdout.contains(&format!("Dashboard: {dashboard}")));

    assert!(
        status.stdout.contains("no cell runs or waits"),
        "{}",
        status.stdout
    );
    wait_until("the worker is shown", || {
        let said = home.run(&["status"]).stdout;
        said.contains(": connected, 0 of 2 slots busy, no warm session")
            .then_some(())
    });

    let (open, _) = dashboard.split_once("?token=").unwrap();
    assert!(get(open).starts_with("HTTP/1.1 401"));
    assert!(
        get(&dashboard).starts_with("HTTP/1.1 303"),
        "the token becomes a cookie"
    );

    up.signal(Signal::SIGTERM);
    assert!(up.ended().success());
    assert!(!home.runtime("broker.sock").exists());
}

#[test]
fn only_one_lives_however_many_start() {
    let home = Home::new();
    let mut all: Vec<Service> = (0..4)
        .map(|_| home.start(&["up", "--dashboard", "off"]))
        .collect();
    let mut others = 0;
    wait_until("three found the first one", || {
        others = 0;
        for service in &mut all {
            others += usize::from(service.has_ended());
        }
        (others == 3).then_some(())
    });
    home.status(&[]);
    assert!(!home.runtime("dashboard.url").exists());
    for service in &mut all {
        if service.has_ended() {
            assert!(service.ended().success());
            assert!(service.rest().starts_with("Already running: unix:"));
        } else {
            service.signal(Signal::SIGINT);
            assert!(service.ended().success());
        }
    }
}

#[test]
fn it_ends_by_itself_when_nobody_needs_it() {
    let home = Home::new();
    let mut up = home.start(&["up", "--in-background", "--idle-exit", "200ms"]);
    assert!(up.ended().success());
    let log = fs::read_to_string(home.runtime("up.log")).unwrap();
    assert!(log.contains("Ready: unix:"), "{log}");
    assert!(
        log.contains("the service was idle for a long time"),
        "{log}"
    );
    assert!(!log.contains("token="), "{log}");
    assert_eq!(mode(&home.runtime("up.log")), 0o600);
}

#[test]
fn a_killed_one_is_followed_by_the_next() {
    let home = Home::new();
    let mut first = home.start(&["up"]);
    first.line("Ready: unix:");
    let token = fs::read_to_string(home.runtime("token")).unwrap();
    first.signal(Signal::SIGKILL);
    assert!(!first.ended().success());
    let mut second = home.start(&["up"]);
    second.line("Ready: unix:");
    assert_eq!(fs::read_to_string(home.runtime("token")).unwrap(), token);
    second.signal(Signal::SIGTERM);
    assert!(second.ended().success());
}

#[test]
fn a_detached_one_that_cannot_start_says_why() {
    let home = Home::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let said = home.run(&["up", "--detached", "--dashboard", &address]);
    assert_eq!(said.status.code(), Some(1));
    let why = format!("The service could not start: Failed to show the dashboard on {address}\n");
    assert!(said.stderr.contains(&why), "{}", said.stderr);
    assert!(
        said.stderr.contains("Address already in use"),
        "{}",
        said.stderr
    );
}

/// A process that no test is the parent of.
struct Detached(Pid);

impl Detached {
    /// The command returns, and nothing holds its output open.
    fn start(home: &Home) -> (Self, String) {
        let said = home.run(&["up", "--detached"]);
        assert!(said.status.success(), "{}", said.stderr);
        let (_, process) = said.stdout.trim().rsplit_once(" kill ").unwrap();
        let process = Pid::from_raw(process.parse().unwrap());
        (Self(process), said.stdout)
    }

    fn signal(&self, signal: Signal) {
        kill(self.0, signal).unwrap();
    }
}

impl Drop for Detached {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGKILL);
    }
}

/// Whether `process` is a child of `ancestor`, or a later descendant. False for a process that has ended.
fn descends_from(process: Pid, ancestor: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let parent = status
        .lines()
        .find_map(|line| line.strip_prefix("PPid:"))
        .and_then(|parent| parent.trim().parse::<i32>().ok())
        .filter(|parent| *parent > 0)
        .map(Pid::from_raw);
    parent.is_some_and(|parent| parent == ancestor || descends_from(parent, ancestor))
}

#[test]
fn a_detached_one_returns_and_says_how_to_stop_it() {
    let home = Home::new();
    let (up, said) = Detached::start(&home);
    let socket = home.runtime("broker.sock");
    let first = format!("Running in the background: unix:{}\n", socket.display());
    assert!(said.starts_with(&first), "{said}");
    assert!(said.contains("\nDashboard: http://"), "{said}");
    assert!(said.contains("/up.log\n"), "{said}");
    home.status(&[]);

    let (same, said) = Detached::start(&home);
    assert_eq!(same.0, up.0);
    assert!(said.starts_with("Already running: unix:"), "{said}");
    // One that starts late would take its place once it has ended.
    let mut all = home.processes();
    // A session may end meanwhile.
    all.retain(|process| !descends_from(*process, up.0));
    all.retain(|process| process.as_raw() == up.0.as_raw() || kill(*process, None).is_ok());
    assert_eq!(all, [up.0]);

    up.signal(Signal::SIGTERM);
    wait_until("it ended", || (!socket.exists()).then_some(()));
}

#[test]
fn a_detached_one_does_not_mind_the_end_of_the_terminal() {
    let home = Home::new();
    let (up, _) = Detached::start(&home);
    up.signal(Signal::SIGHUP);
    assert!(home.run(&["status"]).status.success());
    up.signal(Signal::SIGTERM);
    let socket = home.runtime("broker.sock");
    wait_until("it ended", || (!socket.exists()).then_some(()));
}

#[test]
fn a_folder_that_others_may_enter_is_refused() {
    let home = Home::new();
    fs::create_dir_all(home.runtime("")).unwrap();
    fs::set_permissions(home.runtime(""), fs::Permissions::from_mode(0o755)).unwrap();
    let said = home.run(&["up"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(
        said.stderr.contains("Other users can enter"),
        "{}",
        said.stderr
    );
    assert!(said.stderr.contains("(`chmod 700`)"), "{}", said.stderr);
}
