//! Adds the kernel's messages to the cells, as a front end does.
//!
//! In: [`Report`]s in order. Out: the outputs, execution counts and times of a [`Document`].

use crate::{
    document::{Document, lines_of},
    report::{Message, Report},
    streams,
};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// The state of the running cell.
#[derive(Debug, Default)]
struct Running {
    cell: usize,
    outputs: Vec<Output>,
    /// The next output replaces all others: `clear_output(wait=True)`.
    clears: bool,
}

#[derive(Debug, Clone)]
enum Output {
    Stream { name: &'static str, text: String },
    Other(Value),
}

/// Where an output with a display id is: the cell, and its position in the cell.
type OutputIndex = (usize, usize);

#[derive(Debug)]
pub struct Recorder {
    document: Document,
    running: Option<Running>,
    displays: HashMap<String, Vec<OutputIndex>>,
}

impl Recorder {
    #[must_use]
    pub fn new(document: Document) -> Self {
        Self {
            document,
            running: None,
            displays: HashMap::new(),
        }
    }

    /// Continues with a notebook whose first code cells ran here already. These keep their outputs.
    pub fn resume(&mut self, document: Document, cells: usize) {
        self.store();
        self.running = None;
        let old = std::mem::replace(&mut self.document, document);
        let numbers = old.code_cells().into_iter().zip(self.document.code_cells());
        let numbers: HashMap<usize, usize> = numbers
            .take(cells)
            .map(|(old, new)| (old.number, new.number))
            .collect();
        for (from, to) in &numbers {
            self.document.take_outputs(&old, *from, *to);
        }
        for places in self.displays.values_mut() {
            let moved = |(cell, place): &OutputIndex| Some((*numbers.get(cell)?, *place));
            *places = places.iter().filter_map(moved).collect();
        }
    }

    /// The notebook with all outputs so far.
    pub fn document(&mut self) -> &mut Document {
        self.store();
        &mut self.document
    }

    /// The number of the running cell, among all cells.
    #[must_use]
    pub fn running(&self) -> Option<usize> {
        self.running.as_ref().map(|running| running.cell)
    }

    pub fn record(&mut self, report: &Report) {
        match report {
            Report::Status(_) => {}
            Report::Stream { name, text } => self.stream(name, text),
            Report::Program(message) => self.message(message),
        }
    }

    fn stream(&mut self, name: &'static str, text: &str) {
        self.before_output();
        let Some(running) = &mut self.running else {
            return;
        };
        if let Some(Output::Stream {
            name: last,
            text: shown,
        }) = running.outputs.last_mut()
            && *last == name
        {
            streams::append(shown, text);
            return;
        }
        let mut shown = String::new();
        streams::append(&mut shown, text);
        running.outputs.push(Output::Stream { name, text: shown });
    }

    fn message(
        &mut self,
        Message {
            msg_type,
            content,
            date,
        }: &Message,
    ) {
        match msg_type.as_str() {
            "cell" => self.begin(content),
            "restarted" => {
                self.running = None;
                self.displays.clear();
                self.document.clear();
            }
            "execute_input" => {
                self.set("execution_count", content["execution_count"].clone());
                self.set_time("iopub.execute_input", date);
            }
            "display_data" => {
                self.update(content);
                self.output(msg_type, content, true);
            }
            "execute_result" => self.output(msg_type, content, true),
            "error" => self.output(msg_type, content, false),
            "update_display_data" => self.update(content),
            "clear_output" => self.clear(content["wait"] == true),
            "execute_reply" => {
                self.set_time("shell.execute_reply", date);
                self.store();
            }
            _ => {}
        }
    }

    fn begin(&mut self, content: &Value) {
        self.store();
        let number = content["number"]
            .as_u64()
            .and_then(|number| usize::try_from(number).ok());
        self.running = number.map(|cell| Running {
            cell,
            ..Running::default()
        });
    }

    fn output(&mut self, kind: &str, content: &Value, has_data: bool) {
        self.before_output();
        let Some(running) = &mut self.running else {
            return;
        };
        if let Some(id) = content["transient"]["display_id"].as_str() {
            let place = (running.cell, running.outputs.len());
            self.displays.entry(id.to_owned()).or_default().push(place);
        }
        let mut output = Map::from_iter([("output_type".to_owned(), json!(kind))]);
        let parts: &[&str] = match has_data {
            true => &["data", "metadata", "execution_count"],
            false => &["ename", "evalue", "traceback"],
        };
        for part in parts {
            if let Some(value) = content.get(part) {
                output.insert((*part).to_owned(), value.clone());
            }
        }
        split_texts(&mut output);
        running.outputs.push(Output::Other(output.into()));
    }

    /// Updates all outputs with this display id, in any cell, even if they were shown several times.
    fn update(&mut self, content: &Value) {
        let places = content["transient"]["display_id"]
            .as_str()
            .and_then(|id| self.displays.get(id));
        for (cell, place) in places.cloned().unwrap_or_default() {
            let running = self.running.as_mut().filter(|running| running.cell == cell);
            let output = match running {
                Some(running) => match running.outputs.get_mut(place) {
                    Some(Output::Other(output)) => Some(output),
                    _ => None,
                },
                None => self
                    .document
                    .code_cell(cell)
                    .and_then(|cell| cell.get_mut("outputs")?.get_mut(place)),
            };
            if let Some(output) = output.and_then(Value::as_object_mut) {
                output.insert("data".to_owned(), content["data"].clone());
                output.insert("metadata".to_owned(), content["metadata"].clone());
                split_texts(output);
            }
        }
    }

    fn clear(&mut self, wait: bool) {
        let Some(running) = &mut self.running else {
            return;
        };
        running.clears = wait;
        if !wait {
            running.outputs.clear();
            self.forget_displays();
        }
    }

    fn before_output(&mut self) {
        if self.running.as_ref().is_some_and(|running| running.clears) {
            self.clear(false);
        }
    }

    /// Forgets the displays of the running cell, whose outputs were removed.
    fn forget_displays(&mut self) {
        let cell = self.running();
        for places in self.displays.values_mut() {
            places.retain(|(of, _)| Some(*of) != cell);
        }
    }

    fn set(&mut self, key: &str, value: Value) {
        let running = self.running();
        if let Some(cell) = running.and_then(|cell| self.document.code_cell(cell)) {
            cell.insert(key.to_owned(), value);
        }
    }

    /// Records a time as JupyterLab does (`recordTiming`).
    fn set_time(&mut self, event: &str, date: &str) {
        let running = self.running();
        let cell = running.and_then(|cell| self.document.code_cell(cell));
        let metadata = cell.and_then(|cell| cell.get_mut("metadata")?.as_object_mut());
        if let Some(metadata) = metadata {
            let times = metadata.entry("execution").or_insert_with(|| json!({}));
            times[event] = json!(date);
        }
    }

    /// Writes the outputs so far into the document.
    fn store(&mut self) {
        let Some(running) = &self.running else {
            return;
        };
        let outputs = running.outputs.iter().map(|output| match output {
            Output::Stream { name, text } => {
                json!({"output_type": "stream", "name": name, "text": lines_of(text)})
            }
            Output::Other(output) => output.clone(),
        });
        let outputs: Vec<Value> = outputs.collect();
        self.set("outputs", outputs.into());
    }
}

/// The format stores multi-line texts as lists of lines.
fn split_texts(output: &mut Map<String, Value>) {
    let Some(data) = output.get_mut("data").and_then(Value::as_object_mut) else {
        return;
    };
    for (kind, value) in data {
        let has_lines = kind.starts_with("text/")
            || ["application/javascript", "image/svg+xml"].contains(&kind.as_str());
        if has_lines && let Some(text) = value.as_str() {
            *value = lines_of(text);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn notebook(sources: &[&str]) -> Document {
        let cell = |source: &&str| match source.strip_prefix('#') {
            Some(title) => {
                json!({"cell_type": "markdown", "id": title.trim(), "metadata": {}, "source": title})
            }
            None => {
                json!({"cell_type": "code", "id": *source, "metadata": {}, "execution_count": null, "source": *source, "outputs": []})
            }
        };
        let cells: Vec<Value> = sources.iter().map(cell).collect();
        let value = json!({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells});
        Document::parse(&value.to_string()).unwrap()
    }

    fn message(msg_type: &str, content: Value) -> Report {
        Report::Program(Message {
            msg_type: msg_type.to_owned(),
            content,
            date: String::new(),
        })
    }

    fn shows(id: &str, text: &str) -> Value {
        json!({"data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": id}})
    }

    fn texts(recorder: &mut Recorder, cell: usize) -> Vec<String> {
        let cell = recorder.document().code_cell(cell).unwrap();
        let outputs = cell["outputs"].as_array().unwrap().iter();
        outputs
            .map(|output| output["data"]["text/plain"][0].as_str().unwrap().to_owned())
            .collect()
    }

    /// A notebook of three cells, of which the first two have run.
    fn interrupted() -> Recorder {
        let mut recorder = Recorder::new(notebook(&["a", "b", "c"]));
        for (cell, id) in [(0, "bar"), (1, "other")] {
            recorder.record(&message("cell", json!({"number": cell})));
            recorder.record(&message(
                "execute_input",
                json!({"execution_count": cell + 1}),
            ));
            recorder.record(&message("display_data", shows(id, "old")));
            recorder.record(&message("execute_reply", json!({})));
        }
        recorder
    }

    #[test]
    fn cells_that_ran_keep_what_they_showed_where_they_are_now() {
        let mut recorder = interrupted();
        recorder.resume(notebook(&["# title", "a", "changed", "c"]), 1);
        assert_eq!(recorder.running(), None);
        assert_eq!(texts(&mut recorder, 1), ["old"]);
        assert_eq!(
            recorder.document().code_cell(1).unwrap()["execution_count"],
            1
        );
        assert!(texts(&mut recorder, 2).is_empty());
        // A later cell updates the bar of an earlier one, but not that of a cell that runs again.
        recorder.record(&message("cell", json!({"number": 2})));
        recorder.record(&message("update_display_data", shows("bar", "new")));
        recorder.record(&message("update_display_data", shows("other", "new")));
        assert_eq!(texts(&mut recorder, 1), ["new"]);
        assert!(texts(&mut recorder, 2).is_empty());
    }

    #[test]
    fn nothing_is_kept_where_all_cells_run_again() {
        let mut recorder = interrupted();
        recorder.resume(notebook(&["a", "b", "c"]), 2);
        recorder.record(&message("restarted", json!({})));
        for cell in 0..3 {
            assert!(texts(&mut recorder, cell).is_empty());
        }
        recorder.record(&message("cell", json!({"number": 0})));
        recorder.record(&message("display_data", shows("bar", "again")));
        assert_eq!(texts(&mut recorder, 0), ["again"]);
    }
}
