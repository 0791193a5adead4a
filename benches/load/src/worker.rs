//! A worker that runs cells by a script: some lines at once, some at the end.

use crate::notebook::{self, LINES};
use anyhow::Context;
use baton_protocol::{
    FencingNumber, Finished, JobEvent, JobId, Machine, Outcome, Output, PROTOCOL_VERSION, Usage,
    WorkerId,
    worker::{Device, DeviceKind, FromWorker, ToWorker},
};
use baton_transport::{Connection, Dial};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{sync::mpsc, time::sleep};

/// Ten of the 32 slots are busy on average, so that one is free.
pub(crate) const CELL: Duration = Duration::from_millis(500);

type Link = Connection<ToWorker, FromWorker>;

pub(crate) async fn connect(dial: &Dial, number: usize, slots: u32) -> anyhow::Result<Link> {
    let mut connection: Link = baton_transport::connect(dial, "/v1/worker").await?;
    let hello = FromWorker::Hello {
        failing: None,
        protocol_version: PROTOCOL_VERSION,
        worker: WorkerId::random(),
        name: format!("gpu-{number}"),
        devices: vec![Device {
            kind: DeviceKind::Cpu,
            model: "None".to_owned(),
            memory_bytes: 8 << 30,
            compute_capability: None,
        }],
        machine: Machine::default(),
        slots,
        sessions: Vec::new(),
        keeping: Vec::new(),
        assignments: Vec::new(),
        acknowledged: Vec::new(),
    };
    connection.send(&hello).await?;
    let welcome = connection.receive().await?;
    anyhow::ensure!(
        matches!(welcome, Some(ToWorker::Welcome { .. })),
        "{welcome:?}"
    );
    Ok(connection)
}

/// Until the connection ends, which is an error.
pub(crate) async fn work(mut connection: Link, started: Arc<AtomicU64>) -> anyhow::Result<()> {
    let (due, mut ends) = mpsc::unbounded_channel();
    loop {
        tokio::select! {
            message = connection.receive() => {
                let message = message?.context("The broker has closed a worker's connection")?;
                if let ToWorker::Assign { fencing, submission, .. } = message {
                    started.fetch_add(1, Ordering::Relaxed);
                    let job = submission.job;
                    connection.send(&beginning(job, fencing)).await?;
                    let due = due.clone();
                    tokio::spawn(async move {
                        sleep(CELL).await;
                        due.send((job, fencing))
                    });
                }
            }
            Some((job, fencing)) = ends.recv() => connection.send(&end(job, fencing)).await?,
        }
    }
}

fn beginning(job: JobId, fencing: FencingNumber) -> FromWorker {
    let mut events = vec![JobEvent::Started {
        worker: "gpu".to_owned(),
    }];
    events.extend((0..LINES).map(line));
    FromWorker::Events {
        job,
        fencing,
        first: 1,
        events,
    }
}

fn end(job: JobId, fencing: FencingNumber) -> FromWorker {
    let mut events: Vec<JobEvent> = (LINES..2 * LINES).map(line).collect();
    events.push(JobEvent::Finished(Finished {
        state: Some(notebook::state()),
        usage: Usage {
            run_ms: 500,
            peak_memory_bytes: 1 << 20,
            gpu: None,
        },
        ..Finished::without_state(Outcome::Ok, None)
    }));
    FromWorker::Events {
        job,
        fencing,
        first: 2 + LINES,
        events,
    }
}

fn line(number: u64) -> JobEvent {
    JobEvent::Output(Output {
        kind: "stream".to_owned(),
        content: format!("{number}").into(),
        metadata: "{}".into(),
        buffers: Vec::new(),
    })
}
