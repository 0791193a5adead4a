//! A session's processes: how much memory they use, and how to end all of them.
//!
//! In: the process id of a session's kernel. Out: facts from `/proc`, and signals.
//!
//! A process whose parent has ended is no longer a descendant of the kernel. So every process of a session also
//! inherits a [`MARK`] in its environment, and most are in the session's process group.

use baton_jupyter_wire::process::{kill_tree, kill_tree_but, stat_field, stat_of};
use baton_protocol::NotebookId;
use nix::{
    errno::Errno,
    sys::{
        signal::{Signal, kill, killpg},
        wait::waitpid,
    },
    unistd::{Pid, SysconfVar, sysconf},
};
use std::{
    collections::HashSet,
    fs,
    io::ErrorKind,
    thread,
    time::{Duration, Instant},
};

/// The variable that identifies the session to which a process belongs.
pub(crate) const MARK: &str = "BATON_SESSION";

/// A unique mark for a session. It begins with the notebook's id.
pub(crate) fn new_mark(notebook: NotebookId) -> String {
    format!("{notebook}-{}", uuid::Uuid::new_v4().simple())
}

/// The notebook whose session started this process.
pub(crate) fn notebook_of(process: u32) -> Option<NotebookId> {
    let mark = variable_of(Pid::from_raw(process.cast_signed()), MARK)?;
    let (notebook, _) = mark.split_once('-')?;
    notebook.parse().ok()
}

/// A variable in the environment with which a process was started.
pub(crate) fn variable_of(process: Pid, name: &str) -> Option<String> {
    let environment = fs::read(format!("/proc/{process}/environ")).ok()?;
    let mut entries = environment.split(|byte| *byte == 0);
    let prefix = format!("{name}=");
    let value = entries.find_map(|entry| entry.strip_prefix(prefix.as_bytes()))?;
    String::from_utf8(value.to_vec()).ok()
}

/// Sends the signal to the session's process group, as a terminal's Ctrl-C would.
pub(crate) fn interrupt(kernel: Pid) {
    signalled(killpg(kernel, Signal::SIGINT));
}

/// How long to wait for processes that are being replaced by other programs.
const PATIENCE: Duration = Duration::from_secs(1);

/// Kills the kernel and all processes that it has started, except those in `spared`. Returns when the signals are sent.
pub(crate) fn end_all(kernel: Pid, mark: &str, spared: &[Pid]) {
    kill_tree(kernel.as_raw().cast_unsigned());
    signalled(killpg(kernel, Signal::SIGKILL));
    let mut left_alone = HashSet::from([kernel]);
    left_alone.extend(spared);
    let until = Instant::now() + PATIENCE;
    for look in 1.. {
        let (marked, is_complete) = marked(mark);
        let others: Vec<_> = marked.difference(&left_alone).copied().collect();
        let is_last = look > 1 && is_complete && others.is_empty();
        left_alone.extend(&others);
        end_children(others);
        if is_last || Instant::now() > until {
            return;
        }
        if !is_complete {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Kills a process and all of its descendants, except those in `spared`.
pub(crate) fn end_below(root: Pid, spared: &[Pid]) {
    let spared: Vec<_> = spared
        .iter()
        .map(|process| process.as_raw().cast_unsigned())
        .collect();
    kill_tree_but(root.as_raw().cast_unsigned(), &spared);
}

/// Kills processes, and waits in the background for those that are children of this process. Without waiting, these
/// would remain as zombies.
pub(crate) fn end_children(processes: Vec<Pid>) {
    for process in &processes {
        signalled(kill(*process, Signal::SIGKILL));
    }
    // The end of a large process takes some time. Waiting for other processes' children fails at once.
    let wait = move || {
        for process in processes {
            while waitpid(process, None) == Err(Errno::EINTR) {}
        }
    };
    if let Err(error) = std::thread::Builder::new().spawn(wait) {
        tracing::warn!(%error, "Ended processes remain as zombies");
    }
}

/// Logs a signal that could not be sent, unless the process no longer exists.
fn signalled(result: nix::Result<()>) {
    if let Err(error) = result
        && error != Errno::ESRCH
    {
        tracing::warn!(%error, "A signal could not be sent to a session's process");
    }
}

/// The highest value of `oom_score_adj`: if memory runs out, the system ends such processes first.
const FIRST: &str = "1000";

/// If memory runs out, on the machine or in a control group, the system ends this process before others. Processes that
/// it starts inherit this.
pub(crate) fn end_first(process: Pid) {
    set_end(process, FIRST);
}

/// If memory runs out, the system treats `process` like `other`.
pub(crate) fn end_as_late_as(other: Pid, process: Pid) {
    if let Ok(number) = fs::read_to_string(format!("/proc/{other}/oom_score_adj")) {
        set_end(process, number.trim());
    }
}

fn set_end(process: Pid, number: &str) {
    if let Err(error) = fs::write(format!("/proc/{process}/oom_score_adj"), number) {
        tracing::debug!(%process, %error, "Failed to set the order in which the system ends processes when memory runs out");
    }
}

/// Resident bytes of the kernel and its descendants.
///
/// Pages that several processes share are counted once for each of them. So if this sum is above `limit_bytes`, the
/// result is the proportional sum, which counts them once but takes longer to read.
pub(crate) fn resident_bytes(kernel: Pid, limit_bytes: Option<u64>) -> u64 {
    let processes = with_descendants(kernel);
    let sum = processes.iter().copied().map(resident_of).sum();
    let alone = processes.len() < 2;
    if alone || limit_bytes.is_none_or(|limit| sum <= limit) {
        return sum;
    }
    let proportional: Option<u64> = processes.iter().copied().map(proportional_of).sum();
    proportional.unwrap_or(sum)
}

/// Resident bytes of one process.
pub(crate) fn resident_of(process: Pid) -> u64 {
    pages_of(process, 1).unwrap_or(0) * page_bytes()
}

/// How many pages of its address space one process has mapped.
pub(crate) fn mapped_pages(process: Pid) -> Option<u64> {
    pages_of(process, 0)
}

/// The inodes of files that the kernel and its descendants have mapped so that they can write to them through memory.
pub(crate) fn mapped_for_writing(kernel: Pid) -> HashSet<u64> {
    let maps = with_descendants(kernel)
        .into_iter()
        .filter_map(|process| fs::read(format!("/proc/{process}/maps")).ok());
    maps.flat_map(|maps| {
        let maps = String::from_utf8_lossy(&maps);
        maps.lines().filter_map(written_through).collect::<Vec<_>>()
    })
    .collect()
}

/// The inode in a line of `/proc/PID/maps`, if writes to these addresses reach a file.
fn written_through(line: &str) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace();
    let permissions = fields.nth(1)?.as_bytes();
    let inode = fields.nth(2)?.parse().ok()?;
    (permissions.get(1) == Some(&b'w') && permissions.get(3) == Some(&b's')).then_some(inode)
}

/// A number of the process's `statm`.
fn pages_of(process: Pid, index: usize) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{process}/statm")).ok()?;
    text.split_whitespace().nth(index)?.parse().ok()
}

fn proportional_of(process: Pid) -> Option<u64> {
    let text = match fs::read_to_string(format!("/proc/{process}/smaps_rollup")) {
        // A process that has ended since it was listed holds nothing.
        Err(error) if error.kind() == ErrorKind::NotFound => return Some(0),
        Err(error) if error.raw_os_error() == Some(Errno::ESRCH as i32) => return Some(0),
        text => text.ok()?,
    };
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

fn page_bytes() -> u64 {
    let bytes = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    bytes
        .and_then(|bytes| u64::try_from(bytes).ok())
        .unwrap_or(4096)
}

/// All descendants of a process.
pub(crate) fn below(process: Pid) -> Vec<Pid> {
    let mut found = with_descendants(process);
    found.remove(0);
    found
}

pub(crate) fn parent_of(process: Pid) -> Option<Pid> {
    pid(status_of(process, "PPid:")?.trim())
}

/// The process id in the process's own namespace.
pub(crate) fn innermost_number(process: Pid) -> Option<Pid> {
    pid(status_of(process, "NSpid:")?.split_whitespace().last()?)
}

/// The process to which a thread belongs.
pub(crate) fn process_of(thread: i32) -> Option<Pid> {
    pid(status_of(Pid::from_raw(thread), "Tgid:")?.trim())
}

const CALLING_CARD: &str = "baton-caller-";

/// The name for a socket of this process that the worker connects on its behalf. The system reports the worker as the
/// peer, so the name says which process it is.
pub(crate) fn calling_card(process: Pid) -> Vec<u8> {
    let unique = uuid::Uuid::new_v4().simple();
    format!("{CALLING_CARD}{process}-{unique}").into_bytes()
}

/// The process at the other end of a connection. `peer`: the process that the system reports. `card`: the abstract name
/// of its socket. The name is used only if the peer is this process, because other processes could choose any name.
pub(crate) fn caller(peer: Pid, card: Option<&[u8]>) -> Pid {
    let named = || {
        let card = str::from_utf8(card?).ok()?.strip_prefix(CALLING_CARD)?;
        pid(card.split_once('-')?.0)
    };
    match peer == Pid::this() {
        true => named().unwrap_or(peer),
        false => peer,
    }
}

fn status_of(process: Pid, field: &str) -> Option<String> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(field))?;
    Some(value.to_owned())
}

/// The process, followed by all of its descendants.
pub(crate) fn with_descendants(process: Pid) -> Vec<Pid> {
    let mut found = vec![process];
    let mut seen = HashSet::from([process]);
    let mut next = 0;
    while let Some(parent) = found.get(next).copied() {
        next += 1;
        found.extend(
            children(parent)
                .into_iter()
                .filter(|child| seen.insert(*child)),
        );
    }
    found
}

fn children(parent: Pid) -> Vec<Pid> {
    let Ok(threads) = fs::read_dir(format!("/proc/{parent}/task")) else {
        return Vec::new();
    };
    threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|text| text.split_whitespace().filter_map(pid).collect::<Vec<_>>())
        .collect()
}

/// Whether the process was started by the session with this mark.
pub(crate) fn is_marked(process: Pid, mark: &str) -> bool {
    let environment = fs::read(format!("/proc/{process}/environ"));
    environment.is_ok_and(|environment| has_mark(&environment, mark))
}

/// Every process of this user with the mark in the environment that it was started with, and whether these are all:
/// while a process is replaced by another program, it has no environment.
fn marked(mark: &str) -> (HashSet<Pid>, bool) {
    let (mut found, mut is_complete) = (HashSet::new(), true);
    for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(number) = process.file_name().to_str().and_then(pid) else {
            continue;
        };
        let environment = fs::read(process.path().join("environ"));
        let Ok(environment) = environment else {
            continue;
        };
        if has_mark(&environment, mark) {
            found.insert(number);
        } else if environment.is_empty() && is_being_replaced(number) {
            is_complete = false;
        }
    }
    (found, is_complete)
}

fn has_mark(environment: &[u8], mark: &str) -> bool {
    let entry = format!("{MARK}={mark}");
    let mut entries = environment.split(|byte| *byte == 0);
    entries.any(|found| found == entry.as_bytes())
}

/// Whether a process that had no environment is being replaced by another program. A program that was started without
/// one is not, nor is a process that has ended, nor a thread of the system.
fn is_being_replaced(process: Pid) -> bool {
    let stat = stat_of(process.as_raw().cast_unsigned()).unwrap_or_default();
    let field = |number| stat_field(&stat, number).unwrap_or("0");
    let (address_space, start, end) = (field(23), field(50), field(51));
    address_space != "0" && (end == "0" || start != end)
}

fn pid(text: &str) -> Option<Pid> {
    text.parse().ok().map(Pid::from_raw)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};

    /// Starts a shell, and returns when the script has printed a line.
    fn shell(script: &str, mark: &str) -> Child {
        let mut child = Command::new("sh")
            .args(["-c", script])
            .env(MARK, mark)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        child
    }

    /// The mark contains the process id, so that two test runs do not end each other's processes.
    fn mark(name: &str) -> String {
        format!("{name}-{}", std::process::id())
    }

    fn pid_of(child: &Child) -> Pid {
        Pid::from_raw(child.id().try_into().unwrap())
    }

    fn await_none_marked(mark: &str) {
        eventually(|| marked(mark).0.is_empty());
    }

    fn eventually(mut condition: impl FnMut() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !condition() {
            assert!(Instant::now() < deadline, "it does not happen");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_file_is_written_through_a_shared_mapping_only() {
        let check = |line: &str, expected: Option<u64>| {
            assert_eq!(written_through(line), expected, "{line}");
        };
        check(
            "7f0000-7f1000 rw-s 00001000 08:01 42    /course/a b",
            Some(42),
        );
        check("7f0000-7f1000 -w-s 00000000 00:2d 7 /a (deleted)", Some(7));
        check("7f0000-7f1000 r--s 00000000 08:01 42 /course/a", None);
        check("7f0000-7f1000 rw-p 00000000 08:01 42 /course/a", None);
        check("", None);
    }

    #[test]
    fn descendants_are_counted() {
        let mut child = shell(
            "sleep 60 & (sleep 60; :) & echo ready; read line",
            &mark("count"),
        );
        let kernel = pid_of(&child);
        assert!(with_descendants(kernel).len() >= 3);
        let sum = resident_bytes(kernel, None);
        assert!(sum > resident_of(kernel));
        assert!(resident_bytes(kernel, Some(sum - 1)) <= sum);
        end_all(kernel, &mark("count"), &[]);
        child.wait().unwrap();
        await_none_marked(&mark("count"));
    }

    #[test]
    fn orphans_in_sessions_of_their_own_end_too() {
        let script = "setsid sh -c 'setsid sleep 60 & echo ready; sleep 60' & read line";
        let mut child = shell(script, &mark("orphan"));
        let kernel = pid_of(&child);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!marked(&mark("orphan")).0.is_empty());
        end_all(kernel, &mark("orphan"), &[]);
        await_none_marked(&mark("orphan"));
    }

    /// A script that replaces its process again and again, for as long as this process lives. It needs itself in the
    /// variable `again`.
    fn again() -> String {
        format!("kill -0 {} && exec sh -c \"$again\"", std::process::id())
    }

    #[test]
    fn orphans_that_are_replaced_again_and_again_end_too() {
        let orphans = "setsid sh -c \"$again\" & ".repeat(8);
        let script = format!(
            "export again='{}'; {orphans} echo ready; read line",
            again()
        );
        let mut child = shell(&script, &mark("again"));
        let kernel = pid_of(&child);
        child.kill().unwrap();
        child.wait().unwrap();
        end_all(kernel, &mark("again"), &[]);
        await_none_marked(&mark("again"));
    }

    #[test]
    fn a_process_is_waited_for_only_while_it_is_being_replaced() {
        let start = |script: &str| {
            let mut command = Command::new("/bin/sh");
            command.args(["-c", script]).env_clear();
            command
        };
        let mut replaced = start(&again()).env("again", again()).spawn().unwrap();
        let mut without = start("exec /bin/sleep 60").spawn().unwrap();
        let mut ended = start("exit").spawn().unwrap();
        let is_waited_for = |child: &Child| {
            let environment = fs::read(format!("/proc/{}/environ", child.id()));
            environment.is_ok_and(|environment| environment.is_empty())
                && is_being_replaced(pid_of(child))
        };
        eventually(|| is_waited_for(&replaced));
        eventually(|| !is_waited_for(&without) && !is_waited_for(&ended));
        for child in [&mut replaced, &mut without] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        ended.wait().unwrap();
    }

    #[test]
    fn a_process_says_whose_session_it_is() {
        let notebook = NotebookId::random();
        let mark = new_mark(notebook);
        let mut child = shell("sh -c 'echo ready; read line'; true", &mark);
        let descendant = with_descendants(pid_of(&child)).pop().unwrap();
        assert_eq!(
            notebook_of(descendant.as_raw().cast_unsigned()),
            Some(notebook)
        );
        end_all(pid_of(&child), &mark, &[]);
        child.wait().unwrap();
        assert_eq!(notebook_of(std::process::id()), None);
    }

    #[test]
    fn only_the_worker_names_another_caller() {
        let (own, other) = (Pid::this(), Pid::from_raw(1));
        let card = calling_card(Pid::from_raw(42));
        let check = |peer: Pid, card: Option<&[u8]>, expected: i32| {
            assert_eq!(caller(peer, card), Pid::from_raw(expected));
        };
        check(own, Some(&card), 42);
        check(own, None, own.as_raw());
        check(own, Some(b"another name"), own.as_raw());
        check(other, Some(&card), 1);
    }

    #[test]
    fn a_process_that_is_gone_does_no_harm() {
        let mut child = Command::new("true").spawn().unwrap();
        let kernel = pid_of(&child);
        child.wait().unwrap();
        assert_eq!(resident_bytes(kernel, Some(1)), 0);
        end_all(kernel, "nobody", &[]);
        interrupt(kernel);
    }
}
