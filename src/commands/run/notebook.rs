//! The executed notebook, on disk.

use super::{record::Ended, request::OneJob};
use anyhow::Context;
use baton_protocol::JobId;
use baton_runner::{Document, Recorder, Report};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The entry of the notebook's metadata with the cells at which a failed run was resumed.
const RESUMED: &str = "resumed";

pub(super) struct WrittenNotebook {
    recorder: Recorder,
    /// In the folder of the run.
    copy: PathBuf,
    /// Where the user wants it. It is written once the program runs; until then, what an earlier run left stays there.
    output: Option<PathBuf>,
    has_begun: bool,
    /// What the notebook says about the run.
    about: Value,
    has_changed: bool,
}

/// Whether this job has written the notebook with this path.
pub(super) fn is_of(path: &Path, job: JobId) -> bool {
    let document = Document::read(path).ok();
    let record = document.as_ref().and_then(Document::record);
    record.is_some_and(|record| record["job"] == job.to_string())
}

impl WrittenNotebook {
    pub(super) fn create(document: Document, job: &OneJob, copy: PathBuf) -> anyhow::Result<Self> {
        let mut about = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "job": job.id.to_string(),
            "started": Timestamp::now().to_string(),
        });
        if let Some(group) = job.group {
            about["group"] = json!(group.to_string());
        }
        if !job.parameters.is_empty() {
            about["parameters"] = job.parameters_as_json();
        }
        let mut notebook = Self {
            recorder: Recorder::new(document),
            copy,
            output: job.output.clone(),
            has_begun: false,
            about,
            has_changed: false,
        };
        notebook.write()?;
        Ok(notebook)
    }

    /// Continues as another job. The first `cells` code cells of its notebook ran here already.
    pub(super) fn resume(&mut self, document: Document, job: &OneJob, cells: usize) {
        let cell = document.code_cells().get(cells).map(|cell| cell.number + 1);
        self.recorder.resume(document, cells);
        let about = self.about.as_object_mut().expect("it is made as one");
        for key in ["ended", "outcome", "error"] {
            about.remove(key);
        }
        about["job"] = json!(job.id.to_string());
        let now = Timestamp::now().to_string();
        if cells == 0 {
            about["started"] = json!(now);
            about.remove(RESUMED);
        } else if let Some(resumed) = about
            .entry(RESUMED)
            .or_insert_with(|| json!([]))
            .as_array_mut()
        {
            resumed.push(json!({ "job": job.id.to_string(), "cell": cell, "started": now }));
        }
        self.has_changed = true;
    }

    /// The number of the cell that runs, or ran last, counted from 0.
    pub(super) fn running(&self) -> Option<usize> {
        self.recorder.running()
    }

    pub(super) fn record(&mut self, report: &Report) {
        self.recorder.record(report);
        self.has_begun |= matches!(report, Report::Program(_));
        if let Report::Program(message) = report
            && message.msg_type == "restarted"
            && let Some(about) = self.about.as_object_mut()
        {
            about.remove(RESUMED);
            about["started"] = json!(Timestamp::now().to_string());
        }
        self.has_changed |= !matches!(report, Report::Status(_));
    }

    pub(super) fn write_if_changed(&mut self) {
        if self.has_changed
            && let Err(error) = self.write()
        {
            tracing::warn!("{error:#}");
        }
    }

    pub(super) fn finish(&mut self, ended: &Ended) -> anyhow::Result<()> {
        self.about["ended"] = json!(Timestamp::now().to_string());
        self.about["outcome"] = json!(ended.outcome);
        if let Some(error) = &ended.error {
            self.about["error"] = json!(error);
        }
        self.write()
    }

    /// Writes both files, even if one fails.
    fn write(&mut self) -> anyhow::Result<()> {
        self.has_changed = false;
        let document = self.recorder.document();
        document.set_record(self.about.clone());
        let mut result = Ok(());
        let output = self.output.as_ref().filter(|_| self.has_begun);
        for path in [Some(&self.copy), output].into_iter().flatten() {
            let written = document.write(path);
            let written = written.with_context(|| format!("Failed to write {}", path.display()));
            result = result.and(written);
        }
        result
    }
}
