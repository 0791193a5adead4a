//! Which worker meets which requirement, and the reason that is shown for a job that none meets.

use crate::{
    estimate::certain,
    order::{job, worker, worker_id},
};
use baton_protocol::{
    ComputeCapability, Environment, EnvironmentState, Machine, Requirement,
    worker::{Device, DeviceKind},
};
use baton_scheduling::queue::{
    Declared, Job, NO_GPU, Offer, Reason, Worker, estimate_starts, plan,
};
use std::sync::Arc;

fn gpu(model: &str, gibibytes: u64, capability: &str) -> Device {
    Device {
        kind: DeviceKind::Cuda,
        model: model.to_owned(),
        memory_bytes: gibibytes << 30,
        compute_capability: capability.parse().ok(),
    }
}

fn offer(devices: &[Device]) -> Offer {
    Offer {
        devices: devices.to_vec(),
        machine: Machine {
            memory_bytes: 64 << 30,
            labels: vec!["Room-3".to_owned()],
            environments: vec![
                environment("ready", EnvironmentState::Ready {}),
                environment("soon", EnvironmentState::Preparing {}),
                environment(
                    "broken",
                    EnvironmentState::Failed {
                        reason: "no disk".to_owned(),
                    },
                ),
            ],
            ..Machine::default()
        },
    }
}

fn environment(name: &str, state: EnvironmentState) -> Environment {
    Environment {
        name: name.to_owned(),
        lock: None,
        python_version: None,
        state,
    }
}

fn model(text: &str) -> Requirement {
    Requirement::Gpu {
        model: text.to_owned(),
    }
}

fn capability(text: &str) -> Requirement {
    Requirement::ComputeCapability {
        at_least: text.parse::<ComputeCapability>().unwrap(),
    }
}

const GPU_MEMORY: Requirement = Requirement::GpuMemory { bytes: 40 << 30 };

#[test]
fn a_gpu_has_a_model_memory_and_a_capability() {
    let offer = offer(&[gpu("NVIDIA A100-SXM4-40GB", 40, "8.0")]);
    for (requirement, expected) in [
        (model("a100"), true),
        (model("A100 SXM4"), true),
        (model("a10"), false),
        (model("h100"), false),
        (model(""), false),
        (model("room-3"), true),
        (GPU_MEMORY, true),
        (Requirement::GpuMemory { bytes: 41 << 30 }, false),
        (capability("8.0"), true),
        (capability("8.6"), false),
        (Requirement::Memory { bytes: 64 << 30 }, true),
        (Requirement::Memory { bytes: 65 << 30 }, false),
    ] {
        assert_eq!(offer.meets(&requirement), expected, "{requirement}");
    }
}

#[test]
fn an_environment_is_offered_when_it_is_ready_and_expected_until_it_fails() {
    let offer = offer(&[]);
    for (name, is_ready, will_be) in [
        ("ready", true, true),
        ("soon", false, true),
        ("broken", false, false),
        ("other", false, false),
    ] {
        let name = name.to_owned();
        let requirement = Requirement::Environment { name };
        let found = (offer.meets(&requirement), offer.will_meet(&requirement));
        assert_eq!(found, (is_ready, will_be), "{requirement}");
    }
}

#[test]
fn only_what_is_declared_excludes() {
    let label = |label: &str| Requirement::Label {
        label: label.to_owned(),
    };
    let environment = |name: &str| Requirement::Environment {
        name: name.to_owned(),
    };
    let declared = Declared {
        gpu: Some("H100 SXM".to_owned()),
        gpu_memory_bytes: Some(80 << 30),
        labels: Some(vec!["Room-2".to_owned()]),
        ..Declared::default()
    };
    let without = Declared {
        gpu: Some(NO_GPU.to_owned()),
        environments: Some(vec!["ml101".to_owned()]),
        ..Declared::default()
    };
    for (requirement, of_declared, of_without) in [
        (model("h100"), true, false),
        (model("a100"), false, false),
        (model("room-2"), true, false),
        (GPU_MEMORY, true, false),
        (Requirement::GpuMemory { bytes: 81 << 30 }, false, false),
        (capability("9.0"), true, false),
        (Requirement::Memory { bytes: 1 << 50 }, true, true),
        (label("room-2"), true, true),
        (label("room-3"), false, true),
        (environment("ml101"), true, true),
        (environment("ml102"), true, false),
        (Requirement::Time { ms: 1 }, true, true),
    ] {
        let found = (
            declared.may_meet(&requirement),
            without.may_meet(&requirement),
        );
        assert_eq!(found, (of_declared, of_without), "{requirement}");
        assert!(Declared::default().may_meet(&requirement), "{requirement}");
    }
}

#[test]
fn unlike_gpus_offer_what_all_of_them_have() {
    let offer = offer(&[gpu("NVIDIA A100", 40, "8.0"), gpu("NVIDIA H100", 80, "9.0")]);
    assert!(offer.meets(&GPU_MEMORY) && offer.meets(&capability("8.0")));
    assert!(!offer.meets(&model("h100")) && !offer.meets(&capability("9.0")));
}

#[test]
fn a_processor_meets_no_requirement_of_a_gpu() {
    let processor = Device {
        kind: DeviceKind::Cpu,
        ..gpu("A100", 640, "9.0")
    };
    let offer = offer(&[processor]);
    for requirement in [
        model("a100"),
        model("room-3"),
        GPU_MEMORY,
        capability("8.0"),
    ] {
        assert!(!offer.meets(&requirement), "{requirement}");
    }
}

#[test]
fn what_one_session_may_have_limits_the_memory() {
    let mut offer = offer(&[gpu("NVIDIA H100", 80, "9.0")]);
    offer.machine.session_gpu_memory_bytes = Some(20 << 30);
    assert!(!offer.meets(&GPU_MEMORY));
}

fn needing(needs: &[Requirement]) -> Job {
    Job {
        needs: needs.into(),
        ..job(1, None)
    }
}

fn with(number: u8, slots: u32, devices: &[Device], leaves_in_ms: Option<u64>) -> Worker {
    Worker {
        offer: Arc::new(offer(devices)),
        leaves_in_ms,
        ..worker(number, slots)
    }
}

#[test]
fn need_goes_before_warmth_and_warmth_before_load() {
    let a100 = [gpu("NVIDIA A100", 40, "8.0")];
    let mut small = with(1, 4, &[gpu("NVIDIA T4", 16, "7.5")], None);
    let wanted = needing(&[model("a100")]);
    small.warm.insert(wanted.notebook);
    let (idle, mut warm) = (with(2, 4, &a100, None), with(3, 4, &a100, None));
    let workers = [small.clone(), idle.clone()];
    assert_eq!(
        plan(std::slice::from_ref(&wanted), &workers, 1).assignments,
        [(wanted.job, worker_id(2))]
    );
    warm.warm.insert(wanted.notebook);
    let jobs = [job(7, Some(3)), wanted.clone()];
    assert_eq!(
        plan(&jobs, &[small, idle, warm], 1).assignments,
        [(wanted.job, worker_id(3))]
    );
}

#[test]
fn the_requirement_is_named_that_no_worker_meets_beside_those_before_it() {
    let workers = [
        with(1, 1, &[gpu("NVIDIA A100", 40, "8.0")], None),
        with(2, 1, &[gpu("NVIDIA H100", 80, "9.0")], Some(60_000)),
    ];
    let time = Requirement::Time { ms: 60_001 };
    let large = Requirement::GpuMemory { bytes: 60 << 30 };
    for (needs, expected) in [
        (vec![model("b200")], Some(model("b200"))),
        (vec![model("a100"), large.clone()], Some(large.clone())),
        (vec![large.clone(), time.clone()], Some(time.clone())),
        (vec![large, Requirement::Time { ms: 60_000 }], None),
        (vec![time], None),
    ] {
        let plan = plan(&[needing(&needs)], &workers, 1);
        let reason = plan
            .positions
            .into_iter()
            .map(|(_, position)| position.reason);
        let expected = expected.map(Reason::NoWorkerFits);
        assert_eq!(
            reason.collect::<Vec<_>>(),
            Vec::from_iter(expected),
            "{needs:?}"
        );
    }
}

#[test]
fn a_job_waits_for_the_worker_it_needs_while_another_is_free() {
    let workers = [
        with(1, 1, &[gpu("NVIDIA A100", 40, "8.0")], None),
        with(2, 1, &[gpu("NVIDIA T4", 16, "7.5")], None),
    ];
    let jobs = [job(7, Some(1)), needing(&[model("a100")])];
    let positions = plan(&jobs, &workers, 1).positions;
    assert_eq!(
        positions[0].1.reason,
        Reason::FittingWorkersBusy(model("a100"))
    );
}

#[test]
fn an_estimate_counts_only_workers_that_fit() {
    let a100 = [gpu("NVIDIA A100", 40, "8.0")];
    let t4 = [gpu("NVIDIA T4", 16, "7.5")];
    let runs = [job(7, Some(1)), needing(&[model("a100")])];
    let starts = |workers: &[Worker]| {
        let outlook = certain(&[Some(30_000), Some(30_000)]);
        estimate_starts(&runs, workers, 1, outlook)[0]
            .1
            .map(|estimate| estimate.starts.middle)
    };
    let waits = starts(&[with(1, 1, &a100, None), with(2, 1, &t4, None)]);
    assert_eq!(waits, Some(30_000));
    assert_eq!(
        starts(&[with(1, 1, &a100, None), with(2, 1, &a100, None)]),
        Some(0)
    );
    // The worker leaves before the job ahead has ended.
    let leaves = with(1, 1, &a100, Some(20_000));
    assert_eq!(starts(&[leaves, with(2, 1, &t4, None)]), None);
}
