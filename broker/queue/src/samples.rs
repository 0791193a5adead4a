//! Sample values for the tests of this crate's modules.

use crate::{
    Account,
    record::{MemoryCurve, Write},
};
use baton_protocol::{
    Cell, ChunkHash, GpuUsage, JobId, JobKind, Lock, LockFile, LockKind, Manifest, NotebookId,
    Outcome, Piece, Priority, State, StateVersion, Submission, TableId, Usage,
};
use std::sync::Arc;

pub fn naming(hash: ChunkHash) -> State {
    State::Chunks(Manifest {
        base: StateVersion {
            table: TableId::random(),
            messages: 0,
        },
        stream: vec![Piece::Stored { hash, bytes: 1 }],
        segments: Vec::new(),
        dropped_segments: Vec::new(),
    })
}

/// The lock of an environment with this version of numpy.
pub fn lock(version: &str) -> Lock {
    Lock {
        kind: LockKind::Requirements,
        files: vec![LockFile {
            name: "requirements.txt".to_owned(),
            text: format!("numpy=={version}\n"),
        }],
    }
}

pub fn submission(job: JobId, state: State) -> Submission {
    Submission {
        job,
        notebook: NotebookId::random(),
        notebook_name: String::new(),
        cell_key: None,
        priority: Priority::Normal,
        group: None,
        cell: Cell {
            code: String::new(),
            message_id: String::new(),
            execution_count: 1,
            kind: JobKind::Cell,
            silent: false,
            timeout_ms: None,
            longest_timeout_ms: None,
            gpu_memory_bytes: None,
            gpu: None,
            environment: None,
            allow_stdin: false,
            python: String::new(),
            python_version: String::new(),
            folder: String::new(),
            notebook_folder: None,
        },
        state,
    }
}

pub fn submit(job: JobId, state: State) -> Write {
    Write::Submit {
        sequence: 1,
        account: Account::default(),
        submission: Arc::new(submission(job, state)),
        at_ms: 0,
    }
}

pub fn finish(job: JobId, at_ms: i64) -> Write {
    Write::Finish {
        job,
        fencing: 1,
        outcome: Outcome::Ok,
        usage: Usage {
            gpu: Some(GpuUsage::default()),
            ..Usage::default()
        },
        error: None,
        returned_bytes: None,
        memory: MemoryCurve::default(),
        at_ms,
    }
}
