//! The values used in the messages. They never change.

use baton_protocol::{
    AboutState, BudgetLeft, Cell, CellKey, ChunkHash, Environment, EnvironmentState, Finished,
    GpuUsage, GroupId, HeldKey, HeldState, Holder, JobEvent, JobId, JobKind, Lock, LockFile,
    LockKind, Manifest, NotebookId, Outcome, Output, Payload, Period, Piece, Priority, RemoteError,
    SavedState, SegmentPart, State, StateVersion, Submission, TableId, Usage, WorkerId,
    files::NotebookFolder,
};
use uuid::Uuid;

pub(crate) fn job() -> JobId {
    JobId(Uuid::from_u128(0x0197_0000_0000_7000_8000_0000_0000_0001))
}

pub(crate) fn notebook() -> NotebookId {
    NotebookId(Uuid::from_u128(0x0197_0000_0000_7000_8000_0000_0000_0002))
}

pub(crate) fn worker() -> WorkerId {
    WorkerId(Uuid::from_u128(0x0197_0000_0000_7000_8000_0000_0000_0003))
}

pub(crate) fn group() -> GroupId {
    GroupId(Uuid::from_u128(0x0197_0000_0000_7000_8000_0000_0000_0005))
}

fn table() -> TableId {
    TableId(Uuid::from_u128(0x0197_0000_0000_7000_8000_0000_0000_0004))
}

pub(crate) fn manifest() -> Manifest {
    let stored = |byte: u8, bytes| Piece::Stored {
        hash: ChunkHash([byte; 32]),
        bytes,
    };
    Manifest {
        base: StateVersion {
            table: table(),
            messages: 6,
        },
        stream: vec![Piece::Inline("pickle".into())],
        segments: vec![
            SegmentPart {
                number: 1,
                bytes: 1_048_580,
                fresh: true,
                chunks: vec![
                    (0, stored(0xab, 1_048_576)),
                    (1, Piece::Inline("tail".into())),
                ],
            },
            SegmentPart {
                number: 2,
                bytes: 3 << 20,
                fresh: false,
                chunks: vec![(2, stored(0xcd, 1_048_576))],
            },
        ],
        dropped_segments: vec![3, 300],
    }
}

pub(crate) fn key() -> HeldKey {
    HeldKey(Uuid::from_u128(0x0197_0000_0000_4000_8000_0000_0000_0005))
}

pub(crate) fn result_key() -> HeldKey {
    HeldKey(Uuid::from_u128(0x0197_0000_0000_4000_8000_0000_0000_0006))
}

pub(crate) fn held() -> State {
    State::Memory(HeldState {
        base: StateVersion {
            table: table(),
            messages: 7,
        },
        bytes: 5 << 30,
        holder: Holder {
            host: "0197-boot".to_owned(),
            socket: "/run/user/1000/baton-kernel/state".to_owned(),
        },
        key: key(),
        enclosed: None,
    })
}

pub(crate) fn payload() -> Payload {
    Payload(manifest().stream)
}

pub(crate) fn submission() -> Submission {
    Submission {
        job: job(),
        notebook: notebook(),
        notebook_name: "lesson.ipynb".to_owned(),
        cell_key: Some(CellKey([7; 16])),
        priority: Priority::Low,
        group: None,
        cell: Cell {
            code: "\n\nmodel.fit(x, y)".to_owned(),
            message_id: "5c1e_7".to_owned(),
            execution_count: 12,
            kind: JobKind::Cell,
            silent: false,
            timeout_ms: Some(300_000),
            longest_timeout_ms: Some(1_800_000),
            gpu_memory_bytes: Some(8 << 30),
            gpu: Some("a100".to_owned()),
            environment: None,
            allow_stdin: true,
            python: "/usr/bin/python3".to_owned(),
            python_version: "3.13".to_owned(),
            folder: "/home/ada/course/week-1".to_owned(),
            notebook_folder: Some(Box::new(NotebookFolder {
                path: "/home/ada/course".to_owned(),
                host: "0197-boot".to_owned(),
                device: 66_306,
                inode: 1_048_577,
                listing: Some(payload()),
            })),
        },
        state: State::Chunks(manifest()),
    }
}

pub(crate) fn output() -> Output {
    Output {
        kind: "display_data".to_owned(),
        content: r#"{"data":{"text/plain":"5"},"metadata":{},"transient":{}}"#.into(),
        metadata: "{}".into(),
        buffers: vec!["buffer".into()],
    }
}

pub(crate) fn error() -> RemoteError {
    RemoteError {
        name: "ZeroDivisionError".to_owned(),
        value: "division by zero".to_owned(),
        traceback: vec!["\u{1b}[31mZeroDivisionError\u{1b}[0m".to_owned()],
        hint: Some("divide by something else".to_owned()),
    }
}

pub(crate) fn usage() -> Usage {
    Usage {
        run_ms: 3100,
        peak_memory_bytes: 5 << 30,
        gpu: Some(GpuUsage {
            held_ms: 1200,
            waited_ms: 300,
            swaps: 2,
            peak_memory_bytes: 1 << 30,
        }),
    }
}

pub(crate) fn events() -> Vec<JobEvent> {
    vec![
        JobEvent::Assigned {
            worker: "gpu-2".to_owned(),
            gpu: true,
            timeout_ms: Some(300_000),
        },
        JobEvent::StateWanted { question: 1 },
        JobEvent::BytesWanted { question: 1 },
        JobEvent::Started {
            worker: "gpu-2".to_owned(),
        },
        JobEvent::NotStarted { error: error() },
        JobEvent::Output(output()),
        JobEvent::InputWanted {
            question: 2,
            prompt: "Password: ".to_owned(),
            password: true,
        },
        JobEvent::FilesWanted {
            question: 3,
            wanted: payload(),
        },
        JobEvent::NamesWanted {
            question: 3,
            names: vec!["scale".to_owned(), "model".to_owned()],
        },
        JobEvent::Charged(BudgetLeft {
            left_ms: 6_120_000,
            of_ms: 7_200_000,
            granted_ms: 0,
            period: Period::Week,
        }),
        JobEvent::Finished(Finished {
            outcome: Outcome::Error,
            error: Some(error()),
            state: Some(held()),
            usage: usage(),
            files: Some(payload()),
            deferred_bytes: 500 << 20,
            salvageable: false,
        }),
        JobEvent::DeferredState {
            state: Some(held()),
            error: Some(error()),
        },
    ]
}

/// Events of a job that outlives its notebook kernel.
pub(crate) fn orphan_events() -> Vec<JobEvent> {
    vec![
        JobEvent::Finished(Finished {
            outcome: Outcome::Ok,
            error: None,
            state: Some(held()),
            usage: usage(),
            files: None,
            deferred_bytes: 0,
            salvageable: true,
        }),
        JobEvent::Salvaged {
            state: Some(Box::new(SavedState {
                about: AboutState {
                    folder: Some("/home/ada".to_owned()),
                    ..about_state()
                },
                manifest: manifest(),
            })),
            files: vec![ChunkHash([0xab; 32])],
            error: Some(error()),
        },
    ]
}

pub(crate) fn about_state() -> AboutState {
    AboutState {
        format: 1,
        baton: "0.1.0".to_owned(),
        python: "3.12".to_owned(),
        variables: vec!["model".to_owned(), "x".to_owned()],
        packages: [("numpy".to_owned(), "2.3.4".to_owned())].into(),
        left_out: [("lock".to_owned(), "belongs to this process".to_owned())].into(),
        notebook: Some("lab.ipynb".to_owned()),
        folder: None,
    }
}

pub(crate) fn environments() -> Vec<Environment> {
    let states = [
        ("ml101", EnvironmentState::Ready {}),
        ("vision", EnvironmentState::Preparing {}),
        (
            "thesis",
            EnvironmentState::Failed {
                reason: "no disk".to_owned(),
            },
        ),
    ];
    let environments = states.map(|(name, state)| Environment {
        name: name.to_owned(),
        lock: Some("ab".repeat(32)),
        python_version: Some("3.13".to_owned()),
        state,
    });
    environments.into()
}

pub(crate) fn lock() -> Lock {
    Lock {
        kind: LockKind::Requirements,
        files: vec![LockFile {
            name: "requirements.txt".to_owned(),
            text: "numpy==2.4.6\n".to_owned(),
        }],
    }
}
