//! One job from the start of its kernel to its end, and the handling of its reports.

use super::{
    notebook::WrittenNotebook,
    progress::Progress,
    record::{self, Ended, Outcome, RunFolder},
    request::{Loaded, OneJob, Request},
};
use baton_runner::{CodeCell, Document, End, Keep, Message, Report, Runner};
use std::time::{Duration, Instant};
use tokio::{sync::mpsc, time::interval};

/// The shortest pause between two times that the notebook is written during the run.
const PAUSE: Duration = Duration::from_secs(1);
/// The pause is this many times as long as writing takes, so that a large notebook does not slow down its run.
const PAUSES: u32 = 20;

/// What a run needs.
#[derive(Clone, Copy)]
pub(super) struct Run<'a> {
    pub(super) request: &'a Request,
    pub(super) job: &'a OneJob,
    /// The program, with the job's parameters.
    pub(super) loaded: &'a Loaded,
    pub(super) folder: &'a RunFolder,
}

/// How far a job has come; each step is reported once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Submitted to the broker, judged by the first output of the kernel.
    Submitted,
    /// A worker has begun its first cell.
    OnWorker,
}

/// Runs the job in its own kernel.
pub(super) async fn run(
    run: Run<'_>,
    progress: Progress,
    mut interrupts: mpsc::Receiver<()>,
    on_step: impl FnMut(Step),
) -> anyhow::Result<Ended> {
    let mut watched = Watched::begin(run, progress)?;
    let kernelspec = run.request.kernelspec(run.job)?;
    let Some(mut runner) = Runner::start(&kernelspec, &mut interrupts).await? else {
        return watched.end(End::Interrupted);
    };
    let end = watched
        .follow(run, &mut runner, None, &mut interrupts, on_step)
        .await;
    runner.end().await;
    watched.end(end?)
}

/// Handles the reports of a run.
pub(super) struct Watched {
    notebook: Option<WrittenNotebook>,
    progress: Progress,
    /// The last error that a cell raised.
    error: Option<record::CellError>,
    exit_status: Option<i64>,
    /// Whether the session has kept the notebook's variables.
    is_kept: bool,
}

impl Watched {
    pub(super) fn begin(run: Run<'_>, progress: Progress) -> anyhow::Result<Self> {
        let notebook = run.loaded.document().map(|document| {
            WrittenNotebook::create(document.clone(), run.job, run.folder.notebook())
        });
        Ok(Self {
            notebook: notebook.transpose()?,
            progress,
            error: None,
            exit_status: None,
            is_kept: false,
        })
    }

    /// Continues as another job. The first `cells` code cells of its notebook ran here already.
    pub(super) fn resume(&mut self, run: Run<'_>, cells: usize, note: &str) {
        if let (Some(notebook), Some(document)) = (&mut self.notebook, run.loaded.document()) {
            notebook.resume(document.clone(), run.job, cells);
        }
        self.progress.resume(run.loaded, cells);
        self.progress.note(note);
        self.is_kept = false;
        self.error = None;
        self.exit_status = None;
    }

    /// Follows the job from its submission to its end.
    pub(super) async fn follow(
        &mut self,
        run: Run<'_>,
        runner: &mut Runner,
        keep: Option<Keep<'_>>,
        interrupts: &mut mpsc::Receiver<()>,
        mut on_step: impl FnMut(Step),
    ) -> anyhow::Result<End> {
        let mut step = None;
        // Bounded by this loop, which receives every report before it lets the runner read more.
        let (reports, mut reported) = mpsc::unbounded_channel();
        let running = runner.run(
            baton_runner::Job {
                message_id: run.request.client_job(run.job).to_string(),
                program: run.loaded.program(),
                options: &run.request.options,
                keep,
            },
            interrupts,
            &reports,
        );
        tokio::pin!(running);
        let mut due = interval(PAUSE);
        let end = loop {
            tokio::select! {
                biased;
                Some(report) = reported.recv() => {
                    let reached = match report {
                        Report::Program(_) => Step::OnWorker,
                        _ => Step::Submitted,
                    };
                    if step.is_none() || step == Some(Step::Submitted) && reached == Step::OnWorker {
                        step = Some(reached);
                        on_step(reached);
                    }
                    self.on_report(&report);
                }
                end = &mut running => break end,
                _ = due.tick() => due.reset_after(self.write()),
            }
        };
        while let Ok(report) = reported.try_recv() {
            self.on_report(&report);
        }
        Ok(end?)
    }

    fn on_report(&mut self, report: &Report) {
        if let Some(notebook) = &mut self.notebook {
            notebook.record(report);
        }
        if let Report::Program(Message {
            msg_type, content, ..
        }) = report
        {
            match msg_type.as_str() {
                "error" => self.error = serde_json::from_value(content.clone()).ok(),
                "kept" => self.is_kept = true,
                "exit" => self.exit_status = content["status"].as_i64(),
                _ => {}
            }
        }
        self.progress.show(report);
    }

    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// The number of code cells that ran before the one that runs, or ran last.
    pub(super) fn cells_before(&self, run: Run<'_>) -> usize {
        let running = self.notebook.as_ref().and_then(WrittenNotebook::running);
        let cells = run.loaded.document().map(Document::code_cells);
        let place =
            |cells: Vec<CodeCell>| cells.iter().position(|cell| Some(cell.number) == running);
        cells.and_then(place).unwrap_or(0)
    }

    /// Writes the notebook if it has changed. Returns the pause until the next time.
    fn write(&mut self) -> Duration {
        let begun = Instant::now();
        if let Some(notebook) = &mut self.notebook {
            notebook.write_if_changed();
        }
        PAUSE.max(begun.elapsed() * PAUSES)
    }

    /// Reports how the run ended, and writes the notebook a last time.
    pub(super) fn end(&mut self, end: End) -> anyhow::Result<Ended> {
        let cell = self.notebook.as_ref().and_then(WrittenNotebook::running);
        let ended = match end {
            End::Done => Ended::new(Outcome::Ok),
            End::Interrupted => Ended {
                error: Some("The run was interrupted".to_owned()),
                ..Ended::new(Outcome::Interrupted)
            },
            End::Stopped(why) => Ended {
                error: Some(why),
                ..Ended::new(Outcome::Interrupted)
            },
            End::TimedOut => Ended {
                error: Some("Stopped at the time limit of the run".to_owned()),
                cell: cell.map(|cell| cell + 1),
                ..Ended::new(Outcome::TimedOut)
            },
            End::ServiceFailed(why) => Ended::service_failed(why),
            End::ProgramFailed(why) => Ended {
                error: Some(why),
                cell: cell.map(|cell| cell + 1),
                traceback: (self.error.take()).map_or_else(Vec::new, |error| error.traceback),
                exit_status: self.exit_status,
                ..Ended::new(Outcome::Failed)
            },
        };
        if let Some(notebook) = &mut self.notebook
            && let Err(error) = notebook.finish(&ended)
        {
            return Ok(ended.with_unwritten_notebook(&error));
        }
        Ok(match self.progress.lost_output() {
            Some(error) => ended.with_unwritten_log(error),
            None => ended,
        })
    }
}
