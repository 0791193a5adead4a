//! What the machine must permit and provide.

use super::Finding;
use crate::settings::Settings;
use baton_chunks::{StateError, memory};
use baton_transport::own_service::check_private;
use nix::sys::statvfs::statvfs;
use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
};

/// With less free space than this, data sets of ordinary size do not fit.
const LEAST_FREE_BYTES: u64 = 2 << 30;

/// Reads a byte of a child process, as the proxy does with the notebook kernel's memory.
pub(super) fn memory() -> Finding {
    match read_child() {
        Ok(()) => Finding::Good("A program may read the memory of its children".to_owned()),
        Err(error) => Finding::wrong(
            error,
            "as root: sysctl kernel.yama.ptrace_scope=1; in a container: allow process_vm_readv",
        ),
    }
}

fn read_child() -> Result<(), String> {
    let mut child = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .map_err(|error| format!("Failed to start a child: {error}"))?;
    let result = read_byte(&child);
    let _ = child.kill();
    let _ = child.wait();
    result
}

fn read_byte(child: &Child) -> Result<(), String> {
    let maps = fs::read_to_string(format!("/proc/{}/maps", child.id()))
        .map_err(|error| format!("Failed to read the memory map of a child: {error}"))?;
    let address = maps.lines().find_map(readable_address);
    let address = address.ok_or("The memory map of a child lists no readable memory")?;
    let pid = i32::try_from(child.id()).map_err(|error| error.to_string())?;
    memory::read(pid, address, &mut [0]).map_err(|error: StateError| error.to_string())
}

/// `5581e0000000-5581e0002000 r--p …`
fn readable_address(line: &str) -> Option<u64> {
    let (range, rights) = line.split_once(' ')?;
    let (begin, _) = range.split_once('-')?;
    let address = u64::from_str_radix(begin, 16).ok()?;
    rights.starts_with('r').then_some(address)
}

pub(super) fn runtime_folder(settings: &Settings) -> Finding {
    let path = &settings.runtime_folder;
    let shown = path.display();
    if !path.exists() {
        return Finding::Good(format!(
            "The runtime folder {shown} will be created when needed"
        ));
    }
    match check_private(path) {
        Ok(()) => Finding::Good(format!("Only this user may enter {shown}")),
        Err(problem) => Finding::wrong(problem.to_string(), problem.hint()),
    }
}

/// The disks for chunks, mirrors and environments.
pub(super) fn disks(settings: &Settings) -> Vec<Finding> {
    let folders = [
        (Some(&settings.state_folder), "BATON_STATE_FOLDER"),
        (settings.broker_chunks.as_ref(), "BATON_BROKER_CHUNKS"),
        (Some(&settings.worker_cache), "BATON_WORKER_CACHE"),
        (settings.worker_mirrors.as_ref(), "BATON_WORKER_MIRRORS"),
        (
            Some(&settings.worker_environments),
            "BATON_WORKER_ENVIRONMENTS",
        ),
    ];
    let folders = folders.into_iter();
    let folders = folders.filter_map(|(folder, variable)| Some((folder?, variable)));
    folders
        .map(|(folder, variable)| disk(folder, variable))
        .collect()
}

fn disk(folder: &Path, variable: &str) -> Finding {
    let shown = folder.display();
    let elsewhere = format!("free some, or name another folder with {variable}");
    let existing = folder.ancestors().find(|ancestor| ancestor.exists());
    match statvfs(existing.unwrap_or(folder)) {
        Ok(disk) => {
            let bytes = disk.blocks_available() * disk.fragment_size();
            let what = format!("{:.1} GiB are free for {shown}", in_gib(bytes));
            if bytes < LEAST_FREE_BYTES {
                return Finding::wrong(format!("Only {what}"), elsewhere);
            }
            Finding::Good(what)
        }
        Err(error) => Finding::wrong(
            format!("Failed to determine the free space of {shown}: {error}"),
            elsewhere,
        ),
    }
}

#[expect(clippy::cast_precision_loss, reason = "it is shown with one digit")]
fn in_gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
