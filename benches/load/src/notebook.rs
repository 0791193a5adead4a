//! A notebook's proxy that submits a cell when it is told to, and checks everything that it hears of it.

use anyhow::Context;
use baton_protocol::{
    Cell, JobEvent, JobId, JobKind, Manifest, NotebookId, NumberedEvent, PROTOCOL_VERSION, Piece,
    Priority, State, StateVersion, Submission, TableId,
    proxy::{FromProxy, ToProxy},
};
use baton_transport::{Connection, Dial};
use std::time::Duration;
use tokio::{sync::mpsc, time::Instant};

/// That a cell prints at the beginning, and again at the end.
pub(crate) const LINES: u64 = 3;

pub(crate) struct Notebook {
    connection: Connection<ToProxy, FromProxy>,
    id: NotebookId,
}

/// One cell from the notebook's side, since it was sent.
pub(crate) struct Run {
    pub(crate) notebook: usize,
    pub(crate) sent: Instant,
    pub(crate) assigned: Duration,
    pub(crate) finished: Duration,
}

impl Notebook {
    pub(crate) async fn connect(dial: &Dial) -> anyhow::Result<Self> {
        let id = NotebookId::random();
        let mut connection = baton_transport::connect(dial, "/v1/proxy").await?;
        let hello = FromProxy::Hello {
            protocol_version: PROTOCOL_VERSION,
            notebook: id,
            owner: "ada".to_owned(),
            course: None,
        };
        connection.send(&hello).await?;
        let welcome = connection.receive().await?;
        anyhow::ensure!(
            matches!(welcome, Some(ToProxy::Welcome { .. })),
            "{welcome:?}"
        );
        Ok(Self { connection, id })
    }

    /// Until the connection ends, which is an error.
    pub(crate) async fn idle(mut self) -> anyhow::Result<()> {
        loop {
            self.next().await?;
        }
    }

    pub(crate) async fn run_cells(
        mut self,
        number: usize,
        mut submissions: mpsc::Receiver<()>,
        runs: mpsc::Sender<Run>,
    ) -> anyhow::Result<()> {
        loop {
            tokio::select! {
                message = self.next() => anyhow::bail!("Without a cell: {:?}", message?),
                Some(()) = submissions.recv() => {
                    let run = self.run_cell(number).await?;
                    runs.send(run).await.ok().context("The measurement has ended")?;
                }
            }
        }
    }

    async fn run_cell(&mut self, number: usize) -> anyhow::Result<Run> {
        let submission = submission(self.id);
        let job = submission.job;
        let sent = Instant::now();
        self.connection.send(&FromProxy::Submit(submission)).await?;
        let mut run = Run {
            notebook: number,
            sent,
            assigned: Duration::ZERO,
            finished: Duration::ZERO,
        };
        let mut heard = 0;
        while run.finished.is_zero() {
            let events = match self.next().await? {
                ToProxy::Events { job: of, events } if of == job => events,
                ToProxy::QueuePosition { .. } => continue,
                other => anyhow::bail!("Unexpected: {other:?}"),
            };
            for event in events {
                heard += 1;
                check(heard, &event)?;
                match event.event {
                    JobEvent::Assigned { .. } => run.assigned = sent.elapsed(),
                    JobEvent::Finished(_) => run.finished = sent.elapsed(),
                    _ => {}
                }
            }
        }
        self.connection.send(&FromProxy::Applied { job }).await?;
        let answer = self.next().await?;
        anyhow::ensure!(
            matches!(answer, ToProxy::Closed { job: of } if of == job),
            "Unexpected: {answer:?}"
        );
        Ok(run)
    }

    async fn next(&mut self) -> anyhow::Result<ToProxy> {
        let message = self.connection.receive().await?;
        message.context("The broker has closed a notebook's connection")
    }
}

/// Assigned, started, the lines in order, finished; each once.
fn check(number: u64, event: &NumberedEvent) -> anyhow::Result<()> {
    let right = match &event.event {
        JobEvent::Assigned { .. } => number == 1,
        JobEvent::Started { .. } => number == 2,
        JobEvent::Output(output) => output.content == (number - 3).to_string().as_bytes(),
        JobEvent::Finished(_) => number == 3 + 2 * LINES,
        _ => false,
    };
    anyhow::ensure!(
        right && event.number == number,
        "Lost, doubled or out of order: {event:?} as number {number}"
    );
    Ok(())
}

fn submission(notebook: NotebookId) -> Submission {
    Submission {
        job: JobId::random(),
        notebook,
        notebook_name: "lesson.ipynb".to_owned(),
        cell_key: None,
        priority: Priority::Normal,
        group: None,
        cell: Cell {
            code: "train(model)".to_owned(),
            message_id: "message".to_owned(),
            execution_count: 1,
            kind: JobKind::Cell,
            silent: false,
            timeout_ms: None,
            longest_timeout_ms: None,
            gpu_memory_bytes: None,
            gpu: None,
            environment: None,
            allow_stdin: true,
            python: "/usr/bin/python3".to_owned(),
            python_version: "3.13".to_owned(),
            folder: "/home/ada".to_owned(),
            notebook_folder: None,
        },
        state: state(),
    }
}

pub(crate) fn state() -> State {
    State::Chunks(Manifest {
        base: StateVersion {
            table: TableId(uuid::Uuid::nil()),
            messages: 0,
        },
        stream: vec![Piece::Inline(vec![7; 500].into())],
        segments: Vec::new(),
        dropped_segments: Vec::new(),
    })
}
