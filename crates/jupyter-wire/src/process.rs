//! Kernels as child processes: starting one, watching the parent of this process, ending a whole tree.
//!
//! **Invariant:** a child started here never outlives this process, however this process ends (Linux).

mod sys;

use nix::{
    sys::signal::{Signal, kill},
    unistd::{Pid, getppid},
};
use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::process::{Child, Command};

const PARENT_POLL: Duration = Duration::from_millis(500);

#[derive(Debug, thiserror::Error)]
#[error("Failed to start {}", program.display())]
pub struct StartError {
    program: PathBuf,
    #[source]
    source: std::io::Error,
}

/// `PYTHON -m MODULE -f CONNECTION_FILE ARGUMENTS…`
#[derive(Debug)]
pub struct KernelCommand<'a> {
    pub python: &'a Path,
    pub module: &'a str,
    pub connection_file: &'a Path,
    pub arguments: &'a [OsString],
    /// Variables to add to this process's environment.
    pub environment: &'a [(&'a str, &'a OsStr)],
}

/// Starts a kernel in this process's group, so that signals to the group reach it.
///
/// The operating system ends the kernel together with the *thread* that started it
/// (`PR_SET_PDEATHSIG`). So call this from a thread that lives as long as the process: the main
/// thread or a worker of the runtime, never a thread for blocking calls.
pub fn start_kernel(kernel: &KernelCommand) -> Result<Child, StartError> {
    let mut command = Command::new(kernel.python);
    command
        .args(["-m", kernel.module, "-f"])
        .arg(kernel.connection_file)
        .args(kernel.arguments)
        // ipykernel watches this process id, also on systems without that signal.
        .env("JPY_PARENT_PID", std::process::id().to_string())
        .envs(kernel.environment.iter().copied());
    sys::end_with_this_thread(&mut command);
    command.spawn().map_err(|source| StartError {
        program: kernel.python.to_owned(),
        source,
    })
}

/// The process that started this one, if it is still alive.
#[must_use]
pub fn parent() -> Pid {
    getppid()
}

/// Returns when the process that started this one has ended. Call [`parent`] at the very beginning
/// to get `parent`: later it may return the process that inherited this one.
pub async fn parent_gone(parent: Pid) {
    let mut poll = tokio::time::interval(PARENT_POLL);
    while getppid() == parent {
        poll.tick().await;
    }
}

/// Ends a process and all its descendants at once.
///
/// Every process found is stopped first, so that it cannot start another meanwhile.
pub fn kill_tree(root: u32) {
    kill_tree_but(root, &[]);
}

/// The same, except for the processes in `spared`.
pub fn kill_tree_but(root: u32, spared: &[u32]) {
    let mut stopped = Vec::new();
    loop {
        let found: Vec<u32> = tree(root)
            .into_iter()
            .filter(|pid| !stopped.contains(pid) && !spared.contains(pid))
            .collect();
        if found.is_empty() {
            break;
        }
        found.iter().for_each(|pid| send(*pid, Signal::SIGSTOP));
        stopped.extend(found);
    }
    stopped.iter().for_each(|pid| send(*pid, Signal::SIGKILL));
}

/// Asks one process to end.
pub fn terminate(pid: u32) {
    send(pid, Signal::SIGTERM);
}

/// Does nothing if the process has already ended.
fn send(pid: u32, signal: Signal) {
    if let Ok(pid) = i32::try_from(pid)
        && pid > 1
    {
        let _ = kill(Pid::from_raw(pid), signal);
    }
}

/// `root`, if it exists, and all of its descendants.
#[must_use]
pub fn tree(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let mut found = Vec::new();
    for pid in processes() {
        if pid == root {
            found.push(pid);
        } else if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(children.remove(pid).unwrap_or_default());
        next += 1;
    }
    found
}

fn processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

fn parent_of(pid: u32) -> Option<u32> {
    stat_field(&stat_of(pid)?, 4)?.parse().ok()
}

/// The `stat` of a process from its third field on. The second one, its name, may be any bytes.
#[must_use]
pub fn stat_of(pid: u32) -> Option<String> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    String::from_utf8(stat[name_end + 1..].to_vec()).ok()
}

/// A field of [`stat_of`] with the number that it has in proc_pid_stat(5).
#[must_use]
pub fn stat_field(stat: &str, number: usize) -> Option<&str> {
    stat.split_whitespace().nth(number.checked_sub(3)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::ffi::OsStr;
    use std::io::BufRead as _;
    use std::os::unix::ffi::OsStrExt as _;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Stdio;

    #[test]
    fn a_whole_tree_ends() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sh -c 'sleep 1000 & echo $!; wait' & wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        std::io::BufReader::new(shell.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let grandchild: u32 = line.trim().parse().unwrap();
        assert!(tree(shell.id()).contains(&grandchild));
        kill_tree(shell.id());
        assert_eq!(shell.wait().unwrap().signal(), Some(9));
        let end = std::time::Instant::now() + Duration::from_secs(60);
        while is_running(grandchild) {
            assert!(std::time::Instant::now() < end, "{grandchild} lives on");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_process_may_have_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join(OsStr::from_bytes(b"\xff) 1"));
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut child = std::process::Command::new(program)
            .arg("1000")
            .spawn()
            .unwrap();
        assert_eq!(parent_of(child.id()), Some(std::process::id()));
        kill_tree(child.id());
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    fn is_running(pid: u32) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[tokio::test]
    async fn a_missing_program_is_named() {
        let error = start_kernel(&KernelCommand {
            python: Path::new("/no/such/python"),
            module: "ipykernel_launcher",
            connection_file: Path::new("x"),
            arguments: &[],
            environment: &[],
        })
        .unwrap_err();
        assert_eq!(error.to_string(), "Failed to start /no/such/python");
    }
}
