//! The progress of a run, shown on the terminal if there is one, and in the run's log.

use super::{record::RunFolder, request::Loaded};
use baton_runner::{Message, Report};
use serde_json::Value;
use std::{
    fs::File,
    io::{self, IsTerminal as _, Write as _},
};

pub(super) struct Progress {
    log: File,
    /// The number of cells; none for a script, whose output is shown as it arrives.
    cells: Option<usize>,
    begun: usize,
    /// Whether nothing is shown on the terminal.
    is_quiet: bool,
    /// Whether the terminal shows a line that the next one replaces.
    has_line: bool,
    status: String,
}

impl Progress {
    pub(super) fn new(folder: &RunFolder, loaded: &Loaded, is_quiet: bool) -> anyhow::Result<Self> {
        Ok(Self {
            log: folder.open_log()?,
            cells: loaded
                .document()
                .map(|document| document.code_cells().len()),
            begun: 0,
            is_quiet,
            has_line: false,
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
                self.line(&text);
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
            self.line(text);
        }
    }

    fn record(&mut self, text: &str) {
        let _ = self.log.write_all(text.as_bytes());
    }

    /// Replaces the last line of the terminal.
    fn line(&mut self, text: &str) {
        let mut terminal = io::stderr().lock();
        if self.is_quiet || !terminal.is_terminal() {
            return;
        }
        let text = text.replace('\n', " ");
        let _ = write!(terminal, "\r\x1b[2K{text}");
        let _ = terminal.flush();
        self.has_line = true;
    }

    fn pass_on(&mut self, name: &str, text: &str) {
        self.end_line();
        let _ = match name {
            "stdout" => write_all(io::stdout().lock(), text),
            _ => write_all(io::stderr().lock(), text),
        };
    }

    fn end_line(&mut self) {
        if std::mem::take(&mut self.has_line) {
            let _ = write!(io::stderr(), "\r\x1b[2K");
        }
    }
}

fn write_all(mut stream: impl io::Write, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes())?;
    stream.flush()
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.end_line();
    }
}
