//! Messages between a Python shim and the process that started its kernel.

use super::{
    golden,
    samples::{about_state, error, job, output},
};
use baton_protocol::{
    JobKind, Outcome, api,
    shim::{
        Attach, Delta, Extent, FromNotebook, FromSession, Hello, Patch, Ran, Run, SegmentDelta,
        SegmentView, Snapshot, Stream, StreamPart, ToNotebook, ToSession,
    },
};
use serde_bytes::ByteBuf;

fn hello() -> Hello {
    Hello {
        version: "0.1.0".to_owned(),
        pid: 4242,
        python: "/usr/bin/python3".to_owned(),
        python_version: "3.13".to_owned(),
        gpu_error: None,
    }
}

fn snapshot() -> Snapshot {
    Snapshot {
        messages: 6,
        stream: Stream(vec![
            StreamPart::Here(ByteBuf::from("pickle")),
            StreamPart::At {
                address: 0x7f00_0000_1000,
                bytes: 70_000,
            },
        ]),
        segments: vec![SegmentView {
            number: 1,
            address: 0x7f00_dead_b000,
            bytes: 800,
            fresh: true,
            digests: Some(0x7f00_dead_f000),
        }],
        dropped_segments: vec![3],
    }
}

pub(crate) fn delta() -> Delta {
    Delta {
        messages: 6,
        stream: Extent {
            offset: 0,
            bytes: 6,
        },
        segments: vec![SegmentDelta {
            number: 1,
            bytes: 800,
            fresh: true,
            patches: vec![Patch {
                offset: 0,
                source: Extent {
                    offset: 4096,
                    bytes: 800,
                },
            }],
        }],
        dropped_segments: vec![3],
    }
}

fn state_entry() -> api::SavedState {
    api::SavedState {
        name: "friday".to_owned(),
        notebook: Some("lab.ipynb".to_owned()),
        saved_ms: 1_795_000_000_000,
        bytes: 3 << 20,
        variables: 2,
    }
}

fn attachable() -> api::AttachableJob {
    api::AttachableJob {
        job: job(),
        kind: JobKind::Background,
        notebook: "lab.ipynb".to_owned(),
        execution_count: Some(12),
        submitted_ms: 1_795_000_000_000,
        outcome: None,
    }
}

fn message_id() -> String {
    "5c1e_7".to_owned()
}

golden!(messages_of_notebooks_are_read, "from_notebook", FromNotebook, [
    FromNotebook::Hello(hello()),
    FromNotebook::Run(Run {
        call: 9,
        code: "x += 1".to_owned(),
        parent_header: ByteBuf::from("{}"),
        message_id: message_id(),
        kernel_session: "b1f2".to_owned(),
        after: None,
        execution_count: 12,
        silent: false,
        allow_stdin: true,
        captured: false,
        kind: JobKind::Cell,
        quiet: false,
        folder: "/home/ada".to_owned(),
        timeout_ms: Some(300_000),
        gpu_memory_bytes: Some(8 << 30),
        gpu: Some("a100".to_owned()),
        environment: None,
        priority: baton_protocol::Priority::Low,
        state: snapshot(),
    }),
    FromNotebook::State { call: 9, state: snapshot() },
    FromNotebook::Names { call: 9, state: snapshot() },
    FromNotebook::Cancel { call: 9 },
    FromNotebook::Withdraw { call: 9 },
    FromNotebook::GiveUp { call: 9 },
    FromNotebook::Input { call: 9, value: Some("Ada".to_owned()) },
    FromNotebook::OutputWanted { call: 9 },
    FromNotebook::Applied { call: 9, error: None },
    FromNotebook::SaveState { call: 9, name: "friday".to_owned(), about: about_state(), state: snapshot() },
    FromNotebook::LoadState { call: 9, name: "friday".to_owned() },
    FromNotebook::ListStates { call: 9 },
    FromNotebook::DeleteState { call: 9, name: "friday".to_owned() },
    FromNotebook::Attach(Attach {
        call: 9,
        job: job(),
        parent_header: ByteBuf::from("{}"),
        message_id: message_id(),
        kernel_session: "b1f2".to_owned(),
        captured: false,
    }),
    FromNotebook::Ending { call: 9 },
    FromNotebook::ListJobs { call: 9 },
    FromNotebook::DiscardJob { call: 9, job: job() },
], {
    FromNotebook::Hello(_) => "hello",
    FromNotebook::Run(_) => "run",
    FromNotebook::State { .. } => "state",
    FromNotebook::Names { .. } => "names",
    FromNotebook::Cancel { .. } => "cancel",
    FromNotebook::Withdraw { .. } => "withdraw",
    FromNotebook::GiveUp { .. } => "give_up",
    FromNotebook::Input { .. } => "input",
    FromNotebook::OutputWanted { .. } => "output_wanted",
    FromNotebook::Applied { .. } => "applied",
    FromNotebook::SaveState { .. } => "save_state",
    FromNotebook::LoadState { .. } => "load_state",
    FromNotebook::ListStates { .. } => "list_states",
    FromNotebook::DeleteState { .. } => "delete_state",
    FromNotebook::Attach(_) => "attach",
    FromNotebook::Ending { .. } => "ending",
    FromNotebook::ListJobs { .. } => "list_jobs",
    FromNotebook::DiscardJob { .. } => "discard_job",
});

golden!(messages_to_notebooks_are_read, "to_notebook", ToNotebook, [
    ToNotebook::Released { call: 9 },
    ToNotebook::StateWanted { call: 9 },
    ToNotebook::NamesWanted { call: 9, names: vec!["scale".to_owned()] },
    ToNotebook::Publish { call: 9, output: output() },
    ToNotebook::OutputGiven { call: 9, missing: 3 },
    ToNotebook::InputWanted { call: 9, prompt: "Name: ".to_owned(), password: false },
    ToNotebook::Finished { call: 9, outcome: Outcome::Ok, error: None, delta: Some(delta()), table_kept: false, ran: None, summary: Some(output()) },
    ToNotebook::Undone { call: 9 },
    ToNotebook::DeferredState { call: 9, delta: delta() },
    ToNotebook::StateSaved { call: 9, saved: state_entry() },
    ToNotebook::StateLoaded { call: 9, about: about_state(), delta: delta() },
    ToNotebook::States { call: 9, states: vec![state_entry()] },
    ToNotebook::Autosave { call: 9, name: Some("auto-lab".to_owned()) },
    ToNotebook::Jobs { call: 9, jobs: vec![attachable()] },
    ToNotebook::Attached {
        call: 9, outcome: Outcome::Ok, error: None, about: Some(about_state()), delta: Some(delta()), summary: Some(output()),
    },
    ToNotebook::StateFailed { call: 9, error: Some(error()) },
    ToNotebook::SessionEnded { worker: "gpu-2".to_owned() },
    ToNotebook::Ready { folder: "/run/user/1000/baton-program-1".to_owned(), scanner: "/run/user/1000/baton-program-1/scanner.so".to_owned() },
    ToNotebook::Status { call: 9, line: output() },
    ToNotebook::Started { call: 9 },
    ToNotebook::DeferredLost { call: 9, error: error() },
    ToNotebook::Failed { call: 9, outcome: Outcome::WorkerLost, error: error(), table_kept: false, ran: None },
    ToNotebook::Failed { call: 9, outcome: Outcome::Refused, error: error(), table_kept: true, ran: Some(Ran { job: "8a0891e8".to_owned(), worker: None, gpu_time: None }) },
], {
    ToNotebook::Released { .. } => "released",
    ToNotebook::StateWanted { .. } => "state_wanted",
    ToNotebook::NamesWanted { .. } => "names_wanted",
    ToNotebook::Publish { .. } => "publish",
    ToNotebook::OutputGiven { .. } => "output_given",
    ToNotebook::InputWanted { .. } => "input_wanted",
    ToNotebook::Finished { .. } => "finished",
    ToNotebook::Undone { .. } => "undone",
    ToNotebook::DeferredState { .. } => "deferred_state",
    ToNotebook::StateSaved { .. } => "state_saved",
    ToNotebook::StateLoaded { .. } => "state_loaded",
    ToNotebook::States { .. } => "states",
    ToNotebook::Autosave { .. } => "autosave",
    ToNotebook::Jobs { .. } => "jobs",
    ToNotebook::Attached { .. } => "attached",
    ToNotebook::StateFailed { .. } => "state_failed",
    ToNotebook::SessionEnded { .. } => "session_ended",
    ToNotebook::Ready { .. } => "ready",
    ToNotebook::Status { .. } => "status",
    ToNotebook::Started { .. } => "started",
    ToNotebook::DeferredLost { .. } => "deferred_lost",
    ToNotebook::Failed { table_kept: true, .. } => "refused",
    ToNotebook::Failed { .. } => "failed",
});

golden!(messages_of_sessions_are_read, "from_session", FromSession, [
    FromSession::Hello(hello()),
    FromSession::Hello(Hello { gpu_error: Some("cuInit answered 304".to_owned()), ..hello() }),
    FromSession::Started { message_id: message_id() },
    FromSession::Ended { message_id: message_id() },
    FromSession::Refused { message_id: message_id(), error: error() },
    FromSession::InputWanted { message_id: message_id(), question: 2, prompt: "Name: ".to_owned(), password: false },
    FromSession::NamesWanted { message_id: message_id(), names: vec!["scale".to_owned()] },
    FromSession::Finished { message_id: message_id(), outcome: Outcome::Error, error: Some(error()), state: snapshot(), deferred_bytes: 500 << 20, keeps: true },
    FromSession::DeferredReady { message_id: message_id(), state: snapshot(), keeper: None },
    FromSession::DeferredReady { message_id: message_id(), state: snapshot(), keeper: Some(4711) },
    FromSession::Published { output: output() },
    FromSession::Salvaged {
        message_id: message_id(), about: Box::new(about_state()), state: Some(snapshot()), error: Some(error()),
    },
], {
    FromSession::Hello(Hello { gpu_error: Some(_), .. }) => "hello_without_gpu",
    FromSession::Hello(_) => "hello",
    FromSession::Started { .. } => "started",
    FromSession::Ended { .. } => "ended",
    FromSession::Refused { .. } => "refused",
    FromSession::InputWanted { .. } => "input_wanted",
    FromSession::NamesWanted { .. } => "names_wanted",
    FromSession::Finished { .. } => "finished",
    FromSession::DeferredReady { keeper: None, .. } => "deferred_ready",
    FromSession::DeferredReady { .. } => "deferred_ready_with_keeper",
    FromSession::Published { .. } => "published",
    FromSession::Salvaged { .. } => "salvaged",
});

golden!(messages_to_sessions_are_read, "to_session", ToSession, [
    ToSession::Run { message_id: message_id(), code: "1 + 1".into(), silent: false, allow_stdin: true, execution_count: 12, delta: delta() },
    ToSession::Begin { message_id: message_id() },
    ToSession::Input { question: 2, value: None },
    ToSession::Names { message_id: message_id(), delta: delta() },
    ToSession::Released { message_id: message_id() },
    ToSession::NoNames { message_id: message_id() },
    ToSession::Salvage { message_id: message_id() },
], {
    ToSession::Run { .. } => "run",
    ToSession::Begin { .. } => "begin",
    ToSession::Input { .. } => "input",
    ToSession::Names { .. } => "names",
    ToSession::Released { .. } => "released",
    ToSession::NoNames { .. } => "no_names",
    ToSession::Salvage { .. } => "salvage",
});
