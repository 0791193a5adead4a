//! The notebook as it runs, on disk: whole after each cell, and now and then within one.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Context;
use baton_protocol::JobId;
use baton_runner::{Document, Recorder, Report};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::record::Ended;

/// How often it is written while a cell runs.
const WRITE_EVERY: Duration = Duration::from_secs(2);

pub(super) struct WrittenNotebook {
    recorder: Recorder,
    paths: Vec<PathBuf>,
    /// What stands in the notebook about the run.
    about: Value,
    written: Option<Instant>,
}

impl WrittenNotebook {
    pub(super) fn new(document: Document, job: JobId, paths: Vec<PathBuf>) -> Self {
        let about = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "job": job.to_string(),
            "started": Timestamp::now().to_string(),
        });
        Self {
            recorder: Recorder::new(document),
            paths,
            about,
            written: None,
        }
    }

    /// The number of the cell that runs or ran last, from 0.
    pub(super) fn running(&self) -> Option<usize> {
        self.recorder.running()
    }

    pub(super) fn record(&mut self, report: &Report) {
        self.recorder.record(report);
        let (is_end, is_output) = match report {
            Report::Program(message) => (message.msg_type == "execute_reply", true),
            Report::Stream { .. } => (false, true),
            Report::Status(_) => (false, false),
        };
        let is_due = self
            .written
            .is_none_or(|written| written.elapsed() >= WRITE_EVERY);
        if (is_end || is_output && is_due)
            && let Err(error) = self.write()
        {
            tracing::warn!("{error:#}");
        }
    }

    pub(super) fn finish(mut self, ended: &Ended) -> anyhow::Result<()> {
        self.about["ended"] = json!(Timestamp::now().to_string());
        self.about["outcome"] = json!(ended.outcome);
        if let Some(error) = &ended.error {
            self.about["error"] = json!(error);
        }
        self.write()
    }

    /// To all paths, though one fails.
    fn write(&mut self) -> anyhow::Result<()> {
        self.written = Some(Instant::now());
        let document = self.recorder.document();
        document.set_record(self.about.clone());
        let mut result = Ok(());
        for path in &self.paths {
            let written = document.write(path);
            let written = written.with_context(|| format!("Failed to write {}", path.display()));
            result = result.and(written);
        }
        result
    }
}
