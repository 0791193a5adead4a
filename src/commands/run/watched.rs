//! One job from its kernel's start to its end, and what becomes of its reports.

use std::time::Duration;

use baton_runner::{End, Message, Report, Runner};
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval},
};

use super::{
    notebook::WrittenNotebook,
    progress::Progress,
    record::{self, Ended, Outcome, RunFolder},
    request::{Loaded, OneJob, Request},
};

/// How often the notebook is written while it runs.
const WRITE_EVERY: Duration = Duration::from_secs(1);

/// What a run consists of.
pub(super) struct Run<'a> {
    pub(super) request: &'a Request,
    pub(super) job: &'a OneJob,
    /// With the job's parameters.
    pub(super) loaded: &'a Loaded,
    pub(super) folder: &'a RunFolder,
}

/// Runs the job. `on_begin` is called when a worker has begun with its first cell.
pub(super) async fn run(
    run: Run<'_>,
    progress: Progress,
    mut interrupts: mpsc::Receiver<()>,
    on_begin: impl FnOnce(),
) -> anyhow::Result<Ended> {
    let Run {
        request,
        job,
        loaded,
        folder,
    } = run;
    let mut watched = Watched {
        notebook: loaded
            .document()
            .map(|document| {
                let paths = [Some(folder.notebook()), job.output.clone()];
                WrittenNotebook::create(
                    document.clone(),
                    job,
                    paths.into_iter().flatten().collect(),
                )
            })
            .transpose()?,
        progress,
        error: None,
        exit_status: None,
    };
    let mut on_begin = Some(on_begin);
    let kernelspec = request.kernelspec(job)?;
    let Some(mut runner) = Runner::start(&kernelspec, &mut interrupts).await? else {
        return watched.end(End::Interrupted);
    };
    let (reports, mut reported) = mpsc::unbounded_channel();
    let end = {
        let running = runner.run(
            baton_runner::Job {
                message_id: request.client_job(job).to_string(),
                program: loaded.program(),
                options: &request.options,
            },
            &mut interrupts,
            &reports,
        );
        tokio::pin!(running);
        let mut due = interval(WRITE_EVERY);
        due.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                Some(report) = reported.recv() => {
                    if matches!(report, Report::Program(_)) && let Some(on_begin) = on_begin.take() {
                        on_begin();
                    }
                    watched.on_report(&report);
                }
                end = &mut running => break end,
                _ = due.tick() => watched.write(),
            }
        }
    };
    while let Ok(report) = reported.try_recv() {
        watched.on_report(&report);
    }
    runner.end().await;
    watched.end(end?)
}

/// What becomes of the reports of a run.
struct Watched {
    notebook: Option<WrittenNotebook>,
    progress: Progress,
    /// The last error that a cell raised.
    error: Option<record::CellError>,
    exit_status: Option<i64>,
}

impl Watched {
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
                "exit" => self.exit_status = content["status"].as_i64(),
                _ => {}
            }
        }
        self.progress.show(report);
    }

    fn write(&mut self) {
        if let Some(notebook) = &mut self.notebook {
            notebook.write_if_changed();
        }
    }

    /// Says how it ended, and writes the notebook a last time.
    fn end(self, end: End) -> anyhow::Result<Ended> {
        let cell = self.notebook.as_ref().and_then(WrittenNotebook::running);
        let ended = match end {
            End::Done => Ended::new(Outcome::Ok),
            End::Interrupted => Ended {
                error: Some("The run was interrupted".to_owned()),
                ..Ended::new(Outcome::Interrupted)
            },
            End::TimedOut => Ended {
                error: Some("Stopped at the time limit of the run".to_owned()),
                cell: cell.map(|cell| cell + 1),
                ..Ended::new(Outcome::TimedOut)
            },
            End::ServiceFailed { name, value } => Ended::service_failed(format!("{name}: {value}")),
            End::ProgramFailed(why) => Ended {
                error: Some(why),
                cell: cell.map(|cell| cell + 1),
                traceback: self.error.map_or_else(Vec::new, |error| error.traceback),
                exit_status: self.exit_status,
                ..Ended::new(Outcome::Failed)
            },
        };
        if let Some(notebook) = self.notebook {
            notebook.finish(&ended)?;
        }
        Ok(ended)
    }
}
