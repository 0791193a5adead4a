//! The progress of a run, shown on the terminal if there is one, and in the run's log.

use super::{record::RunFolder, request::Loaded};
use crate::{output, status_line::StatusLine};
use baton_runner::{Message, Report};
use serde_json::Value;
use std::{
    fs::File,
    io::{self, Write as _},
};

pub(super) struct Progress {
    log: File,
    /// The first error of writing to the log.
    unwritten: Option<io::Error>,
    /// The number of cells; none for a script, whose output is shown as it arrives.
    cells: Option<usize>,
    begun: usize,
    /// Whether nothing is shown on the terminal.
    is_quiet: bool,
    line: StatusLine,
    status: String,
}

impl Progress {
    pub(super) fn new(folder: &RunFolder, loaded: &Loaded, is_quiet: bool) -> anyhow::Result<Self> {
        Ok(Self {
            log: folder.open_log()?,
            unwritten: None,
            cells: loaded
                .document()
                .map(|document| document.code_cells().len()),
            begun: 0,
            is_quiet,
            line: StatusLine::new(is_quiet),
            status: String::new(),
        })
    }

    /// Continues after this many cells.
    pub(super) fn resume(&mut self, loaded: &Loaded, cells: usize) {
        self.cells = loaded
            .document()
            .map(|document| document.code_cells().len());
        self.begun = cells;
        self.status.clear();
    }

    /// Writes a separate line to the log.
    pub(super) fn note(&mut self, text: &str) {
        self.record(&format!("── {text}\n"));
    }

    pub(super) fn show(&mut self, report: &Report) {
        match report {
            Report::Status(text) => self.status(text),
            Report::Stream { name, text } => {
                self.record(text);
                if self.cells.is_none() && !self.is_quiet {
                    self.pass_on(name, text);
                }
            }
            Report::Program(message) => self.message(message),
        }
    }

    fn message(
        &mut self,
        Message {
            msg_type, content, ..
        }: &Message,
    ) {
        match msg_type.as_str() {
            "cell" => {
                self.begun += 1;
                let text = format!("Cell {} of {}", self.begun, self.cells.unwrap_or_default());
                self.record(&format!("── {text}\n"));
                self.line.show(&text);
            }
            "resumed" => self.note("The variables of the earlier cells are still there"),
            "restarted" => {
                self.begun = 0;
                let why = content["why"].as_str().unwrap_or("the session has ended");
                self.note(&format!("All cells run again: {why}"));
            }
            "execute_result" | "display_data" => {
                if let Some(text) = content["data"]["text/plain"].as_str() {
                    self.record(&format!("{text}\n"));
                }
            }
            "error" => {
                let lines = content["traceback"].as_array().into_iter().flatten();
                let lines: Vec<&str> = lines.filter_map(Value::as_str).collect();
                self.record(&format!("{}\n", lines.join("\n")));
            }
            _ => {}
        }
    }

    /// The line about the job changes every second, so the log gets only one of each kind.
    fn status(&mut self, text: &str) {
        let kind: String = text
            .chars()
            .filter(|letter| !letter.is_ascii_digit())
            .collect();
        if kind != self.status {
            self.record(&format!("{text}\n"));
            self.status = kind;
        }
        if self.begun == 0 {
            self.line.show(text);
        }
    }

    fn record(&mut self, text: &str) {
        if let Err(error) = self.log.write_all(text.as_bytes()) {
            self.unwritten.get_or_insert(error);
        }
    }

    /// Why output of the program is nowhere: the log lacks it, and nothing else shows it.
    pub(super) fn lost_output(&self) -> Option<&io::Error> {
        let is_elsewhere = self.cells.is_some() || !self.is_quiet;
        self.unwritten.as_ref().filter(|_| !is_elsewhere)
    }

    fn pass_on(&mut self, name: &str, text: &str) {
        self.line.clear();
        match name {
            "stdout" => {
                output::bytes_to_stdout(text.as_bytes());
            }
            _ => output::bytes_to_stderr(text.as_bytes()),
        }
    }
}
