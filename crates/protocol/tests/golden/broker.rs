//! Messages between proxy, broker and worker, and what the broker stores of them.

use super::{golden, memory::bundle, samples::*};
use baton_protocol::{
    Answer, ChunkHash, ComputeCapability, Finished, Grant, Grants, HeldState, JobEvent, Machine,
    NumberedEvent, Outcome, PROTOCOL_VERSION, Refusal, Requirement, SavedState, State, Submission,
    api::{AheadBecause, MovedBack},
    memory::Enclosed,
    proxy::{Estimate, FromProxy, ToProxy, WaitingReason},
    worker::{Device, DeviceKind, FromWorker, GpuLoad, SessionLoad, ToWorker},
};
use serde_bytes::ByteBuf;

/// A held state that is small enough to be enclosed.
fn enclosed() -> State {
    let State::Memory(held) = held() else {
        unreachable!()
    };
    State::Memory(HeldState {
        enclosed: Some(Box::new(Enclosed {
            bundle: bundle(),
            file: ByteBuf::from([0xcd; 5]),
        })),
        ..held
    })
}

/// The golden files belong to this version.
#[test]
fn the_version_is_the_one_of_the_files() {
    assert_eq!(PROTOCOL_VERSION, 6);
}

golden!(events_are_read, "event", JobEvent, [events(), orphan_events()].concat(), {
    JobEvent::Assigned { .. } => "assigned",
    JobEvent::StateWanted { .. } => "state_wanted",
    JobEvent::BytesWanted { .. } => "bytes_wanted",
    JobEvent::Started { .. } => "started",
    JobEvent::NotStarted { .. } => "not_started",
    JobEvent::Output(_) => "output",
    JobEvent::InputWanted { .. } => "input_wanted",
    JobEvent::Charged(_) => "charged",
    JobEvent::FilesWanted { .. } => "files_wanted",
    JobEvent::NamesWanted { .. } => "names_wanted",
    JobEvent::Finished(Finished { salvageable: true, .. }) => "salvageable",
    JobEvent::Finished(_) => "finished",
    JobEvent::DeferredState { .. } => "deferred_state",
    JobEvent::Salvaged { .. } => "salvaged",
});

golden!(answers_are_read, "answer", Answer, [
    Answer::State(held()),
    Answer::Input(Some("Ada".to_owned())),
    Answer::Files(payload()),
    Answer::Names(held()),
    Answer::Preparing {},
], {
    Answer::State(_) => "state",
    Answer::Input(_) => "input",
    Answer::Files(_) => "files",
    Answer::Names(_) => "names",
    Answer::Preparing {} => "preparing",
});

golden!(outcomes_are_read, "outcome", Outcome, [
    Outcome::Ok, Outcome::Error, Outcome::Cancelled, Outcome::TimedOut, Outcome::OutOfMemory, Outcome::Refused,
    Outcome::WorkerLost,
], {
    Outcome::Ok => "ok",
    Outcome::Error => "error",
    Outcome::Cancelled => "cancelled",
    Outcome::TimedOut => "timed_out",
    Outcome::OutOfMemory => "out_of_memory",
    Outcome::Refused => "refused",
    Outcome::WorkerLost => "worker_lost",
});

golden!(refusals_are_read, "refusal", Refusal, [
    Refusal::ProtocolVersion { broker: 1, peer: 2 },
    Refusal::NoHello {},
    Refusal::NotInCourse { course: "ml101".to_owned(), courses: vec!["vision".to_owned()] },
    Refusal::WhichCourse { courses: vec!["ml101".to_owned(), "vision".to_owned()] },
    Refusal::NotYours {},
    Refusal::NotYourName { token: "gpu-1".to_owned(), said: "gpu-2".to_owned() },
    Refusal::WorkerConnected { name: "gpu-1".to_owned() },
    Refusal::Replaced { name: "gpu-1".to_owned() },
    Refusal::OutOfBounds { reason: "The worker offers 1000 slots".to_owned() },
    Refusal::Unable { reason: "The broker's disk is full".to_owned() },
], {
    Refusal::ProtocolVersion { .. } => "protocol_version",
    Refusal::NoHello {} => "no_hello",
    Refusal::NotInCourse { .. } => "not_in_course",
    Refusal::WhichCourse { .. } => "which_course",
    Refusal::NotYours {} => "not_yours",
    Refusal::NotYourName { .. } => "not_your_name",
    Refusal::WorkerConnected { .. } => "worker_connected",
    Refusal::Replaced { .. } => "replaced",
    Refusal::OutOfBounds { .. } => "out_of_bounds",
    Refusal::Unable { .. } => "unable",
});

golden!(reasons_are_read, "waiting", WaitingReason, [
    WaitingReason::JobsAhead,
    WaitingReason::BehindDeadline { course: "ml101".to_owned() },
    WaitingReason::OwnJobRuns { notebook: "lesson.ipynb".to_owned() },
    WaitingReason::NoWorker,
    WaitingReason::WorkersPaused { why: Some("maintenance".to_owned()) },
    WaitingReason::WorkersFail { worker: "gpu-1".to_owned(), why: "no disk".to_owned() },
    WaitingReason::CoursePaused { why: "back on Monday".to_owned() },
    WaitingReason::Held { why: "come to room 5".to_owned() },
    WaitingReason::BehindMoved {},
    WaitingReason::OwnSession { worker: "gpu-2".to_owned() },
    WaitingReason::FittingWorkersBusy { requirement: Requirement::GpuMemory { bytes: 20 << 30 } },
    WaitingReason::MachineStarting {
        usual: Some(Estimate { lower_ms: 20_000, middle_ms: 40_000, upper_ms: 120_000 }),
        expected_in_ms: Some(720_000),
    },
    WaitingReason::NoWorkerFits {
        requirement: Requirement::Gpu { model: "a100".to_owned() },
        connected: vec!["NVIDIA H200, 141 GiB".to_owned()],
    },
], {
    WaitingReason::JobsAhead => "jobs_ahead",
    WaitingReason::BehindDeadline { .. } => "behind_deadline",
    WaitingReason::OwnJobRuns { .. } => "own_job_runs",
    WaitingReason::NoWorker => "no_worker",
    WaitingReason::WorkersPaused { .. } => "workers_paused",
    WaitingReason::WorkersFail { .. } => "workers_fail",
    WaitingReason::CoursePaused { .. } => "course_paused",
    WaitingReason::Held { .. } => "held",
    WaitingReason::BehindMoved {} => "behind_moved",
    WaitingReason::OwnSession { .. } => "own_session",
    WaitingReason::FittingWorkersBusy { .. } => "fitting_workers_busy",
    WaitingReason::MachineStarting { .. } => "machine_starting",
    WaitingReason::NoWorkerFits { .. } => "no_worker_fits",
});

golden!(requirements_are_read, "requirement", Requirement, [
    Requirement::Gpu { model: "a100".to_owned() },
    Requirement::GpuMemory { bytes: 20 << 30 },
    Requirement::ComputeCapability { at_least: ComputeCapability { major: 8, minor: 0 } },
    Requirement::Memory { bytes: 64 << 30 },
    Requirement::Label { label: "room-3".to_owned() },
    Requirement::Environment { name: "ml101".to_owned() },
    Requirement::Time { ms: 600_000 },
], {
    Requirement::Gpu { .. } => "gpu",
    Requirement::GpuMemory { .. } => "gpu_memory",
    Requirement::ComputeCapability { .. } => "compute_capability",
    Requirement::Memory { .. } => "memory",
    Requirement::Label { .. } => "label",
    Requirement::Environment { .. } => "environment",
    Requirement::Time { .. } => "time",
});

golden!(submissions_of_groups_are_read, "stored", Submission, [Submission { group: Some(group()), ..submission() }], { _ => "submission_of_group" });
golden!(submissions_are_read, "stored", Submission, [submission()], { _ => "submission" });

golden!(saved_states_are_read, "saved_state", SavedState, [
    SavedState { about: about_state(), manifest: manifest() },
], { _ => "saved_state" });

golden!(grants_are_read, "grants", Grants, [
    Grants::Broker {},
    Grants::Store { grants: vec![Grant {
        chunk: ChunkHash([0xab; 32]),
        bytes: 5,
        url: "https://store.example/class/ab?signature=x".to_owned(),
        headers: vec![("if-none-match".to_owned(), "*".to_owned())],
    }] },
], {
    Grants::Broker {} => "broker",
    Grants::Store { .. } => "store",
});

golden!(messages_of_proxies_are_read, "from_proxy", FromProxy, [
    FromProxy::Hello { protocol_version: 1, notebook: notebook(), owner: "ada".to_owned(), course: Some("ml101".to_owned()) },
    FromProxy::Submit(submission()),
    FromProxy::Resume { job: job(), after: 41 },
    FromProxy::Attach { job: job(), after: 41 },
    FromProxy::Detach { job: job() },
    FromProxy::Cancel { job: job() },
    FromProxy::Answer { job: job(), question: 2, answer: Answer::State(held()) },
    FromProxy::DeferredWanted { job: job() },
    FromProxy::Applied { job: job() },
    FromProxy::GivenUp { job: job(), outcome: Some(Outcome::Cancelled) },
    FromProxy::Goodbye {},
], {
    FromProxy::Hello { .. } => "hello",
    FromProxy::Submit(_) => "submit",
    FromProxy::Resume { .. } => "resume",
    FromProxy::Attach { .. } => "attach",
    FromProxy::Detach { .. } => "detach",
    FromProxy::Cancel { .. } => "cancel",
    FromProxy::Answer { .. } => "answer",
    FromProxy::DeferredWanted { .. } => "deferred_wanted",
    FromProxy::Applied { .. } => "applied",
    FromProxy::GivenUp { .. } => "given_up",
    FromProxy::Goodbye {} => "goodbye",
});

golden!(messages_to_proxies_are_read, "to_proxy", ToProxy, [
    ToProxy::Welcome { broker_version: "0.1.0".to_owned(), autosave: false, course: None },
    ToProxy::Welcome { broker_version: "0.1.0".to_owned(), autosave: true, course: None },
    ToProxy::Welcome { broker_version: "0.1.0".to_owned(), autosave: false, course: Some("ml101".to_owned()) },
    ToProxy::Refused(Refusal::ProtocolVersion { broker: 1, peer: 2 }),
    ToProxy::QueuePosition {
        job: job(),
        position: 3,
        last_position: 5,
        moved_back: Some(MovedBack { people: 2, because: AheadBecause::UsedLess }),
        waiting: WaitingReason::JobsAhead,
        gpu: true,
        estimate: Some(Estimate { lower_ms: 25_000, middle_ms: 40_000, upper_ms: 90_000 }),
        message: Some("The lab closes at six".to_owned()),
    },
    ToProxy::Events {
        job: job(),
        events: (1..).zip(events()).map(|(number, event)| NumberedEvent { number, event }).collect(),
    },
    ToProxy::Cancelling { job: job() },
    ToProxy::SessionEnded { worker: "gpu-2".to_owned() },
    ToProxy::Closed { job: job() },
    ToProxy::UnknownJob { job: job() },
], {
    ToProxy::Welcome { autosave: true, .. } => "welcome_autosave",
    ToProxy::Welcome { course: Some(_), .. } => "welcome_course",
    ToProxy::Welcome { .. } => "welcome",
    ToProxy::Refused(_) => "refused",
    ToProxy::QueuePosition { .. } => "queue_position",
    ToProxy::Events { .. } => "events",
    ToProxy::Cancelling { .. } => "cancelling",
    ToProxy::SessionEnded { .. } => "session_ended",
    ToProxy::Closed { .. } => "closed",
    ToProxy::UnknownJob { .. } => "unknown_job",
});

golden!(messages_of_workers_are_read, "from_worker", FromWorker, [
    FromWorker::Hello {
        protocol_version: 1,
        worker: worker(),
        name: "gpu-2".to_owned(),
        devices: vec![
            Device { kind: DeviceKind::Cuda, model: "NVIDIA H200".to_owned(), memory_bytes: 141 << 30, compute_capability: Some(ComputeCapability { major: 9, minor: 0 }) },
            Device { kind: DeviceKind::Cpu, model: "CPU".to_owned(), memory_bytes: 1 << 40, compute_capability: None },
        ],
        machine: Machine {
            driver: Some("570.86.15".to_owned()),
            memory_bytes: 1 << 40,
            session_gpu_memory_bytes: Some(70 << 30),
            labels: vec!["room-3".to_owned()],
            environments: vec![],
            leaves_at_ms: Some(1_764_000_000_000),
        },
        slots: 4,
        sessions: vec![notebook()],
        keeping: vec![notebook()],
        assignments: vec![(job(), 7)],
        acknowledged: vec![],
        failing: None,
    },
    FromWorker::Events { job: job(), fencing: 7, first: 1, events: events().split_off(1) },
    FromWorker::Sessions { warm: vec![notebook()], keeping: vec![notebook()] },
    FromWorker::Load {
        memory_bytes: 5 << 30,
        memory_total_bytes: 64 << 30,
        jobs: vec![(job(), 3 << 30)],
        gpus: vec![GpuLoad {
            index: 0,
            name: "NVIDIA H200".to_owned(),
            utilisation_percent: Some(87),
            memory_used_bytes: 90 << 30,
            memory_total_bytes: 141 << 30,
            sessions: vec![SessionLoad {
                notebook: notebook(),
                memory_bytes: 40 << 30,
                utilisation_percent: Some(80),
            }],
        }],
    },
    FromWorker::Failing { why: "no disk".to_owned() },
    FromWorker::Recovered {},
    FromWorker::Environments { environments: environments() },
    FromWorker::Lock { environment: "ml101".to_owned(), lock: lock() },
    FromWorker::Drain {},
], {
    FromWorker::Hello { .. } => "hello",
    FromWorker::Events { .. } => "events",
    FromWorker::Sessions { .. } => "sessions",
    FromWorker::Load { .. } => "load",
    FromWorker::Failing { .. } => "failing",
    FromWorker::Recovered {} => "recovered",
    FromWorker::Environments { .. } => "environments",
    FromWorker::Lock { .. } => "lock",
    FromWorker::Drain {} => "drain",
});

golden!(messages_to_workers_are_read, "to_worker", ToWorker, [
    ToWorker::Welcome { broker_version: "0.1.0".to_owned(), name: String::new() },
    ToWorker::Refused(Refusal::NoHello {}),
    ToWorker::Assign { fencing: 7, account: 9, environment: None, submission: submission() },
    ToWorker::Assign { fencing: 7, account: 9, environment: Some("ml101".to_owned()), submission: submission() },
    ToWorker::Answer { job: job(), question: 2, answer: Answer::State(enclosed()) },
    ToWorker::Cancel { job: job() },
    ToWorker::DeferredWanted { job: job() },
    ToWorker::Salvage { job: job() },
    ToWorker::Adopted { job: job() },
    ToWorker::Acknowledge { job: job(), fencing: 7, number: 12 },
    ToWorker::Revoke { job: job(), fencing: 7 },
    ToWorker::LockWanted { environment: "ml101".to_owned() },
    ToWorker::StayUntil { at_ms: Some(1_764_000_000_000) },
    ToWorker::StayUntil { at_ms: None },
    ToWorker::EndSession { notebook: notebook() },
], {
    ToWorker::Welcome { .. } => "welcome",
    ToWorker::Refused(_) => "refused",
    ToWorker::Assign { environment: Some(_), .. } => "assign_environment",
    ToWorker::Assign { .. } => "assign",
    ToWorker::Answer { .. } => "answer",
    ToWorker::Cancel { .. } => "cancel",
    ToWorker::DeferredWanted { .. } => "deferred_wanted",
    ToWorker::Salvage { .. } => "salvage",
    ToWorker::Adopted { .. } => "adopted",
    ToWorker::Acknowledge { .. } => "acknowledge",
    ToWorker::Revoke { .. } => "revoke",
    ToWorker::LockWanted { .. } => "lock_wanted",
    ToWorker::StayUntil { at_ms: Some(_) } => "stay_until",
    ToWorker::StayUntil { .. } => "stay_no_longer",
    ToWorker::EndSession { .. } => "end_session",
});
