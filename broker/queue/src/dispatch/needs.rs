//! What jobs require of workers, and the messages if no worker meets it.

use super::{
    Batch, Dispatch, Job, Now, Phase, Worker,
    environments::{self, instead_of},
    transitions::end_by_broker,
};
use crate::pools::PoolState;
use baton_humanize::bytes as bytes_of;
use baton_protocol::{
    JobKind, Outcome, RemoteError, Requirement,
    proxy::WaitingReason,
    wording::{option, with_safety},
    worker::{Device, DeviceKind},
};
use baton_scheduling::queue::{Declared, Offer};
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// How many kinds of workers a message lists.
const MOST_KINDS: usize = 6;

/// The requirements of the cell and its course, and its time limit. If no worker has a GPU, a
/// requirement of GPU memory alone is ignored, so the cell runs on a processor.
pub(super) fn of_job(dispatch: &Dispatch, job: &Job) -> Arc<[Requirement]> {
    let course = &dispatch.accounts.courses().of(&job.account.course).needs;
    let environment = environments::of_job(dispatch, job);
    let environment = environment.map(|name| Requirement::Environment { name });
    let is_memory = |need: &&Requirement| matches!(need, Requirement::GpuMemory { .. });
    let any_gpu = job.needs.iter().any(|need| is_memory(&need)) && dispatch.peers.knows_a_gpu();
    let is_environment = |need: &&Requirement| matches!(need, Requirement::Environment { .. });
    let own = job.needs.iter().filter(|need| any_gpu || !is_memory(need));
    let own = own.filter(|need| !is_environment(need));
    let mut workers = dispatch.peers.workers.values();
    let ends = workers.any(|worker| worker.offer.machine.leaves_at_ms.is_some());
    let time = job.timeout_ms().filter(|_| ends);
    let time = time.map(|ms| Requirement::Time { ms });
    let cell_and_course = course.iter().chain(own).cloned();
    cell_and_course.chain(environment).chain(time).collect()
}

/// Refuses cells that ask for a GPU model if the workers have no GPU and none is to be expected.
pub(super) fn refuse_without_gpu(dispatch: &mut Dispatch, batch: &mut Batch) {
    let connected = |worker: &Worker| worker.connection.is_some();
    if dispatch.peers.knows_a_gpu()
        || a_gpu_may_come(dispatch)
        || !dispatch.peers.workers.values().any(connected)
    {
        return;
    }
    let asks = |job: &Job| job.phase() == Phase::Queued && model(job).is_some();
    let asking = dispatch.jobs.ids(asks);
    if asking.is_empty() {
        return;
    }
    // Workers from before this broker's start may still reconnect.
    if batch.now.instant < dispatch.restart_grace_ends {
        return dispatch.recheck_at(dispatch.restart_grace_ends);
    }
    for id in asking {
        let job = dispatch.jobs.get(id);
        let error = job.and_then(|job| Some(no_gpu(model(job)?, job.kind)));
        end_by_broker(dispatch, id, Outcome::Refused, error, batch);
    }
}

/// Whether a pool may start a worker with a GPU.
fn a_gpu_may_come(dispatch: &Dispatch) -> bool {
    let mut pools = dispatch.pools.iter();
    pools.any(|pool| pool.can_start && pool.may_have_gpu())
}

pub(super) fn no_worker_fits(
    dispatch: &Dispatch,
    requirement: Requirement,
    now: Now,
) -> WaitingReason {
    let connected = dispatch.peers.workers.values();
    let connected = connected.filter(|worker| worker.connection.is_some());
    let names: BTreeSet<&String> = connected.clone().map(|worker| &worker.name).collect();
    let is_empty = |pool: &&PoolState| !pool.workers.iter().any(|name| names.contains(name));
    let pools = dispatch.pools.iter().filter(is_empty);
    let kinds: BTreeSet<String> = connected
        .map(|worker| kind_of_worker(worker, &requirement, now))
        .chain(pools.map(|pool| kind_of_pool(pool, &requirement)))
        .collect();
    WaitingReason::NoWorkerFits {
        requirement,
        connected: kinds.into_iter().take(MOST_KINDS).collect(),
    }
}

/// What a worker offers instead, in the terms of a requirement that it may not meet.
fn kind_of_worker(worker: &Worker, requirement: &Requirement, now: Now) -> String {
    match requirement {
        Requirement::Time { .. } => match worker.leaves_in_ms(now) {
            Some(left) => format!(
                "{} for another {}",
                worker.name,
                baton_humanize::whole_seconds(Duration::from_millis(left))
            ),
            None => worker.name.clone(),
        },
        _ => kind(&worker.name, &worker.offer, requirement),
    }
}

fn kind_of_pool(pool: &PoolState, requirement: &Requirement) -> String {
    let name = format!("pool {}", pool.name);
    match &pool.offer {
        Some(offer) => kind(&name, offer, requirement),
        None => format!("{name} ({})", declared(&pool.declared)),
    }
}

fn declared(declared: &Declared) -> String {
    let gpu = match declared.may_have_gpu() {
        true => declared.gpu.clone(),
        false => Some("no GPU".to_owned()),
    };
    let gpu_memory = declared.gpu_memory_bytes;
    let gpu_memory = gpu_memory.map(|has| format!("{} of GPU memory", bytes_of(has)));
    let capability = declared.compute_capability;
    let capability = capability.map(|has| format!("compute capability {has}"));
    let memory = declared.memory_bytes;
    let memory = memory.map(|has| format!("{} of main memory", bytes_of(has)));
    let list = |kind: &str, names: &Option<Vec<String>>| match names.as_deref() {
        None => None,
        Some([]) => Some(format!("no {kind}")),
        Some(names) => Some(format!("{kind}: {}", names.join(", "))),
    };
    let labels = list("labels", &declared.labels);
    let environments = list("environments", &declared.environments);
    let all = [gpu, gpu_memory, capability, memory, labels, environments];
    let known: Vec<String> = all.into_iter().flatten().collect();
    match known.is_empty() {
        true => "unknown until its first worker starts".to_owned(),
        false => known.join("; "),
    }
}

fn kind(name: &str, offer: &Offer, requirement: &Requirement) -> String {
    let machine = &offer.machine;
    match requirement {
        Requirement::Memory { .. } => format!("{name} with {}", bytes_of(machine.memory_bytes)),
        Requirement::Label { .. } if machine.labels.is_empty() => format!("{name} without labels"),
        Requirement::Label { .. } => format!("{name} with {}", machine.labels.join(", ")),
        Requirement::Environment { name: required } => {
            format!("{name} {}", instead_of(&machine.environments, required))
        }
        _ => {
            let devices = offer.devices.iter();
            let most = machine.session_gpu_memory_bytes;
            let kinds: BTreeSet<String> = devices.map(|gpu| device(name, gpu, most)).collect();
            kinds.into_iter().collect::<Vec<_>>().join(" and ")
        }
    }
}

fn device(name: &str, device: &Device, most_bytes: Option<u64>) -> String {
    if device.kind == DeviceKind::Cpu {
        return format!("{name} without a GPU");
    }
    let bytes = device.memory_bytes.min(most_bytes.unwrap_or(u64::MAX));
    let capability = device.compute_capability;
    let capability = capability.map_or_else(String::new, |has| format!(", {has}"));
    format!("{} ({}{capability})", device.model, bytes_of(bytes))
}

fn model(job: &Job) -> Option<&str> {
    job.needs.iter().find_map(|need| match need {
        Requirement::Gpu { model } => Some(model.as_str()),
        _ => None,
    })
}

fn no_gpu(model: &str, kind: JobKind) -> RemoteError {
    let noun = kind.noun();
    let what =
        format!("This {noun} asks for the GPU {model}, but the connected workers have no GPU");
    RemoteError::of_baton(
        "NoGpu",
        with_safety(&what, kind),
        format!("leave {} out to run it on a processor", option("gpu", kind)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_without_a_worker_has_what_its_settings_say() {
        let mut settings = Declared::default();
        assert_eq!(declared(&settings), "unknown until its first worker starts");
        settings.labels = Some(vec!["room-3".to_owned()]);
        assert_eq!(declared(&settings), "labels: room-3");
    }

    #[test]
    fn a_refusal_has_the_words_of_its_job() {
        let refused = |kind| {
            let error = no_gpu("a100", kind);
            format!("{}; {}", error.value, error.hint.unwrap_or_default())
        };
        assert_eq!(
            refused(JobKind::Block),
            "This block asks for the GPU a100, but the connected workers have no GPU. \
             Your variables are as they were before the block; \
             leave gpu= out to run it on a processor"
        );
        assert_eq!(
            refused(JobKind::Script),
            "This run asks for the GPU a100, but the connected workers have no GPU; \
             leave --gpu out to run it on a processor"
        );
    }
}
