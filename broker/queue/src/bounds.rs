//! Limits for what workers report: impossible numbers are refused.
//!
//! In: reports of a worker. Out: whether the broker believes them.
//!
//! **Invariant:** pure.

use baton_humanize::one_line;
use baton_protocol::{
    Environment, FencingNumber, JobId, LARGEST_LOCK_BYTES, Lock, Machine, NotebookId, Refusal,
    Usage, WorkerId, encode, is_environment_name,
    worker::{Acknowledged, Device, GpuLoad},
};
use baton_scheduling::queue::Offer;

const MOST_DEVICES: usize = 64;
const MOST_LABELS: usize = 100;
const MOST_ENVIRONMENTS: usize = 100;
const LONGEST_NAME: usize = 200;
const MOST_MEMORY_BYTES: u64 = 1 << 50;
/// The longest reason that is kept, in characters.
const LONGEST_REASON: usize = 500;
/// In bytes.
const LONGEST_PROMPT: usize = 64 << 10;
/// Sessions or assignments of one worker.
const MOST_NOTEBOOKS: usize = 10_000;

/// A worker's hello without the protocol version, which has already been checked.
#[derive(Debug)]
pub struct WorkerHello {
    pub worker: WorkerId,
    /// The id of its process.
    pub life: WorkerId,
    /// Empty if the broker chooses it.
    pub name: String,
    pub offer: Offer,
    pub slots: u32,
    pub sessions: Vec<NotebookId>,
    pub keeping: Vec<NotebookId>,
    pub assignments: Vec<(JobId, FencingNumber)>,
    pub acknowledged: Vec<Acknowledged>,
    pub failing: Option<String>,
}

pub fn check_hello(hello: &WorkerHello, most_slots: u32) -> Result<(), Refusal> {
    let out_of_bounds = |reason: String| Err(Refusal::OutOfBounds { reason });
    if hello.slots > most_slots {
        return out_of_bounds(format!(
            "The worker offers {} slots; this broker accepts at most {most_slots} from one worker\nhint: lower worker.slots, or raise broker.worker_slots",
            hello.slots
        ));
    }
    let Offer { devices, machine } = &hello.offer;
    if devices.len() > MOST_DEVICES || !devices.iter().all(is_possible) {
        return out_of_bounds(format!(
            "The worker reports devices that no machine has ({} in all)",
            devices.len()
        ));
    }
    if !is_possible_machine(machine) {
        return out_of_bounds(format!(
            "The worker reports a machine that does not exist, or more than {MOST_LABELS} labels or {MOST_ENVIRONMENTS} environments"
        ));
    }
    if !is_name(&hello.name) {
        return out_of_bounds(format!(
            "The name of the worker is longer than {LONGEST_NAME} bytes, or not one line of text"
        ));
    }
    let lists = [
        hello.sessions.len(),
        hello.keeping.len(),
        hello.assignments.len(),
        hello.acknowledged.len(),
    ];
    if lists.iter().any(|length| *length > MOST_NOTEBOOKS) {
        return out_of_bounds(format!(
            "The worker reports more than {MOST_NOTEBOOKS} sessions or cells"
        ));
    }
    Ok(())
}

/// Whether people can read it in a table.
fn is_name(text: &str) -> bool {
    text.len() <= LONGEST_NAME && one_line(text) == text
}

fn is_possible(device: &Device) -> bool {
    is_name(&device.model) && device.memory_bytes <= MOST_MEMORY_BYTES
}

fn is_possible_machine(machine: &Machine) -> bool {
    let texts = machine.labels.iter().chain(&machine.driver);
    machine.memory_bytes <= MOST_MEMORY_BYTES
        && machine.labels.len() <= MOST_LABELS
        && are_possible(&machine.environments)
        && texts.into_iter().all(|text| is_name(text))
}

/// Whether this can be the list of one worker's environments.
pub(crate) fn are_possible(environments: &[Environment]) -> bool {
    let is_short = |text: &Option<String>| text.as_ref().is_none_or(|text| is_name(text));
    environments.len() <= MOST_ENVIRONMENTS
        && environments.iter().all(|environment| {
            is_environment_name(&environment.name)
                && is_short(&environment.lock)
                && is_short(&environment.python_version)
        })
}

/// Whether the lock has this hash.
pub(crate) fn is_possible_lock(lock: &Lock, digest: &str) -> bool {
    lock.bytes() <= LARGEST_LOCK_BYTES && blake3::hash(&encode(lock)).to_hex().as_str() == digest
}

/// `memory`: used and total bytes.
pub(crate) fn is_possible_load(memory: (u64, u64), gpus: &[GpuLoad]) -> bool {
    let (used_bytes, total_bytes) = memory;
    let is_percent = |percent: Option<u32>| percent.is_none_or(|percent| percent <= 100);
    let is_possible_gpu = |gpu: &GpuLoad| {
        is_name(&gpu.name)
            && is_percent(gpu.utilisation_percent)
            && gpu.memory_used_bytes <= gpu.memory_total_bytes
            && gpu.memory_total_bytes <= MOST_MEMORY_BYTES
            && gpu.sessions.len() <= MOST_NOTEBOOKS
            && gpu.sessions.iter().all(|session| {
                is_percent(session.utilisation_percent) && session.memory_bytes <= MOST_MEMORY_BYTES
            })
    };
    used_bytes <= total_bytes
        && total_bytes <= MOST_MEMORY_BYTES
        && gpus.len() <= MOST_DEVICES
        && gpus.iter().all(is_possible_gpu)
}

pub(crate) fn is_possible_sessions(count: usize) -> bool {
    count <= MOST_NOTEBOOKS
}

/// Shortens the reason why no session starts on a worker, for pages and the status line. The result
/// is one line. A long reason, such as a traceback, keeps its beginning and its end.
pub(crate) fn cut_reason(why: impl AsRef<str>) -> String {
    let lines: Vec<&str> = why.as_ref().lines().map(str::trim).collect();
    let characters: Vec<char> = one_line(&lines.join(" ")).chars().collect();
    if characters.len() <= LONGEST_REASON {
        return characters.into_iter().collect();
    }
    let (first, _) = characters.split_at(LONGEST_REASON / 2);
    let (_, last) = characters.split_at(characters.len() - LONGEST_REASON / 2);
    first.iter().chain(&[' ', '…', ' ']).chain(last).collect()
}

/// Shortens the prompt of `input()`, which is stored.
pub(crate) fn cut_prompt(prompt: &mut String) {
    if prompt.len() > LONGEST_PROMPT {
        prompt.truncate(prompt.floor_char_boundary(LONGEST_PROMPT));
        prompt.push('…');
    }
}

/// Limits the usage to the wall time that the broker measured, on each of the worker's devices.
/// Returns `None` if the usage is possible.
pub(crate) fn cut_usage(usage: Usage, wall_ms: u64, devices: usize) -> Option<Usage> {
    let most_ms = wall_ms.saturating_mul(devices.max(1) as u64);
    let gpu = usage.gpu.map(|gpu| baton_protocol::GpuUsage {
        held_ms: gpu.held_ms.min(most_ms),
        waited_ms: gpu.waited_ms.min(most_ms),
        ..gpu
    });
    let cut = Usage {
        run_ms: usage.run_ms.min(most_ms),
        gpu,
        ..usage
    };
    (cut != usage).then_some(cut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_protocol::GpuUsage;

    #[test]
    fn no_cell_computes_for_longer_than_it_runs() {
        let usage = |run_ms, held_ms| Usage {
            run_ms,
            peak_memory_bytes: 1,
            gpu: Some(GpuUsage {
                held_ms,
                ..GpuUsage::default()
            }),
        };
        for (reported, devices, believed) in [
            (usage(1000, 1000), 1, None),
            (usage(1001, 1), 1, Some(usage(1000, 1))),
            (usage(1, 5000), 0, Some(usage(1, 1000))),
            (usage(2000, 2000), 2, None),
            (usage(u64::MAX, u64::MAX), 2, Some(usage(2000, 2000))),
        ] {
            assert_eq!(cut_usage(reported, 1000, devices), believed);
        }
    }
}
