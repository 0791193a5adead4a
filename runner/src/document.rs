//! A notebook file, version 4.5 of the format. Parts that do not matter here are preserved.

use crate::{parameters::Parameter, replace};
use nbformat::{Notebook, NotebookError};
use serde_json::{Map, Value, json};
use std::{
    io,
    path::{Path, PathBuf},
};

const PARAMETERS: &str = "parameters";
const INJECTED: &str = "injected-parameters";
const MAY_FAIL: &str = "raises-exception";
const SKIPPED: &str = "skip-execution";

#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("Failed to read {path}: {error}")]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{path} is not a notebook: {error}")]
    Invalid { path: PathBuf, error: String },
}

#[derive(Debug, Clone)]
pub struct Document(Value);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CodeCell {
    /// The position among all cells, from 0.
    pub number: usize,
    pub source: String,
    /// Whether the notebook declares that this cell may raise an exception.
    pub may_fail: bool,
}

impl Document {
    /// Reads a notebook. Older versions of the format are converted to 4.5.
    ///
    /// # Errors
    /// If the file cannot be read or is not a notebook.
    pub fn read(path: &Path) -> Result<Self, DocumentError> {
        let text = std::fs::read_to_string(path).map_err(|error| DocumentError::Unreadable {
            path: path.to_owned(),
            error,
        })?;
        Self::parse(&text).map_err(|error| DocumentError::Invalid {
            path: path.to_owned(),
            error,
        })
    }

    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |error: NotebookError| error.to_string();
        let upgraded = match nbformat::parse_notebook(text).map_err(wrong)? {
            // Use the file itself, because it has more than the types represent.
            Notebook::V4(_) => {
                return serde_json::from_str(text)
                    .map(Self)
                    .map_err(|error| error.to_string());
            }
            Notebook::V4QuirksMode(quirks) => quirks.repair(),
            Notebook::Legacy(legacy) => {
                nbformat::upgrade_legacy_notebook(legacy).map_err(|error| error.to_string())?
            }
            Notebook::V3(old) => {
                nbformat::upgrade_v3_notebook(old).map_err(|error| error.to_string())?
            }
            _ => return Err("its version is unknown".to_owned()),
        };
        serde_json::to_value(upgraded)
            .map(Self)
            .map_err(|error| error.to_string())
    }

    fn cells(&self) -> &[Value] {
        self.0["cells"].as_array().map_or(&[], Vec::as_slice)
    }

    fn cells_mut(&mut self) -> &mut Vec<Value> {
        self.0["cells"]
            .as_array_mut()
            .expect("a notebook was parsed")
    }

    /// The cells that a run executes: code cells that are neither empty nor marked to be skipped.
    #[must_use]
    pub fn code_cells(&self) -> Vec<CodeCell> {
        let code = self
            .cells()
            .iter()
            .enumerate()
            .filter(|(_, cell)| is_code(cell) && !has_tag(cell, SKIPPED));
        code.map(|(number, cell)| CodeCell {
            number,
            source: text(&cell["source"]),
            may_fail: has_tag(cell, MAY_FAIL),
        })
        .filter(|cell| !cell.source.trim().is_empty())
        .collect()
    }

    /// Inserts a cell with these variables after the one with the tag `parameters`, as papermill
    /// does, or at the top if there is none. Replaces the cell of an earlier run.
    pub fn set_parameters(&mut self, parameters: &[Parameter]) {
        if parameters.is_empty() {
            return;
        }
        let cells = self.cells_mut();
        cells.retain(|cell| !has_tag(cell, INJECTED));
        let place = cells.iter().position(|cell| has_tag(cell, PARAMETERS));
        let lines = parameters.iter().map(Parameter::python);
        let source: Vec<String> = std::iter::once("# Parameters".to_owned())
            .chain(lines)
            .collect();
        let cell = json!({
            "cell_type": "code",
            "id": free_id(cells),
            "metadata": {"tags": [INJECTED]},
            "execution_count": null,
            "source": lines_of(&source.join("\n")),
            "outputs": [],
        });
        cells.insert(place.map_or(0, |place| place + 1), cell);
    }

    /// Removes all outputs, as before a run.
    pub fn clear(&mut self) {
        for cell in self.cells_mut().iter_mut().filter(|cell| is_code(cell)) {
            cell["outputs"] = json!([]);
            cell["execution_count"] = Value::Null;
            if let Some(metadata) = cell["metadata"].as_object_mut() {
                metadata.remove("execution");
            }
        }
    }

    /// Takes over the outputs and times of a cell in another notebook.
    pub(crate) fn take_outputs(&mut self, other: &Self, from: usize, to: usize) {
        let Some(other) = other.cells().get(from) else {
            return;
        };
        let Some(cell) = self.code_cell(to) else {
            return;
        };
        for key in ["outputs", "execution_count"] {
            cell.insert(key.to_owned(), other[key].clone());
        }
        if let Some(times) = other["metadata"].get("execution") {
            cell["metadata"]["execution"] = times.clone();
        }
    }

    /// The code cell with this number among all cells.
    pub(crate) fn code_cell(&mut self, number: usize) -> Option<&mut Map<String, Value>> {
        let cell = self.cells_mut().get_mut(number)?;
        is_code(cell).then(|| cell.as_object_mut())?
    }

    #[must_use]
    pub fn record(&self) -> Option<&Value> {
        self.0["metadata"].get("baton")
    }

    /// Records what ran the notebook, under `baton` in its metadata.
    pub fn set_record(&mut self, record: Value) {
        self.0["metadata"]["baton"] = record;
    }

    /// Writes the file in the same form as Python's `nbformat`.
    ///
    /// # Errors
    /// If the file cannot be written. An existing file is preserved.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        use serde::Serialize as _;

        let mut bytes = Vec::new();
        let indented = serde_json::ser::PrettyFormatter::with_indent(b" ");
        let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, indented);
        self.0.serialize(&mut serializer)?;
        bytes.push(b'\n');
        replace(path, &bytes)
    }
}

fn is_code(cell: &Value) -> bool {
    cell["cell_type"] == "code"
}

fn has_tag(cell: &Value, tag: &str) -> bool {
    let tags = cell["metadata"]["tags"].as_array();
    tags.is_some_and(|tags| tags.iter().any(|own| own == tag))
}

fn free_id(cells: &[Value]) -> String {
    let is_free = |id: &String| !cells.iter().any(|cell| cell["id"] == **id);
    let mut names = (0..).map(|number| match number {
        0 => INJECTED.to_owned(),
        number => format!("{INJECTED}-{number}"),
    });
    names
        .find(is_free)
        .expect("there are more names than cells")
}

/// A text in this format: a string, or a list of its lines.
fn text(value: &Value) -> String {
    match value {
        Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect(),
        value => value.as_str().unwrap_or_default().to_owned(),
    }
}

/// The lines of a text, including their line ends.
pub(crate) fn lines_of(text: &str) -> Value {
    text.split_inclusive('\n').collect::<Vec<_>>().into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn notebook(cells: &[Value]) -> Document {
        let value = json!({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells});
        Document::parse(&value.to_string()).unwrap()
    }

    fn code(id: &str, source: &str, tags: &[&str]) -> Value {
        json!({
            "cell_type": "code", "id": id, "metadata": {"tags": tags, "mine": 1}, "execution_count": 7,
            "source": lines_of(source), "outputs": [{"output_type": "stream", "name": "stdout", "text": "old"}],
        })
    }

    fn sources(document: &Document) -> Vec<String> {
        document
            .code_cells()
            .into_iter()
            .map(|cell| cell.source)
            .collect()
    }

    #[test]
    fn parameters_come_after_their_defaults_and_replace_those_of_an_earlier_run() {
        let mut document = notebook(&[
            code("a", "x = 1", &[PARAMETERS]),
            code("b", "print(x)", &[]),
        ]);
        for value in ["x=2", "x=\"three\""] {
            document.set_parameters(&[value.parse().unwrap()]);
        }
        assert_eq!(
            sources(&document),
            ["x = 1", "# Parameters\nx = \"three\"", "print(x)"]
        );
        let mut without = notebook(&[code("injected-parameters", "y", &[])]);
        without.set_parameters(&["x=2".parse().unwrap()]);
        assert_eq!(sources(&without), ["# Parameters\nx = 2", "y"]);
        assert_eq!(without.cells()[0]["id"], "injected-parameters-1");
    }

    #[test]
    fn only_code_runs_and_the_rest_stays() {
        let markdown =
            json!({"cell_type": "markdown", "id": "m", "metadata": {}, "source": "# Title"});
        let mut document = notebook(&[
            markdown.clone(),
            code("a", " \n", &[]),
            code("b", "1/0", &[MAY_FAIL]),
        ]);
        document.clear();
        assert_eq!(document.cells()[0], markdown);
        assert_eq!(document.cells()[2]["outputs"], json!([]));
        assert_eq!(document.cells()[2]["metadata"]["mine"], 1);
        let cells = document.code_cells();
        assert_eq!(
            cells,
            [CodeCell {
                number: 2,
                source: "1/0".to_owned(),
                may_fail: true
            }]
        );
    }

    #[test]
    fn older_versions_of_the_format_become_4_5() {
        let old = json!({"nbformat": 4, "nbformat_minor": 2, "metadata": {}, "cells": [
            {"cell_type": "code", "metadata": {}, "execution_count": null, "source": ["a\n", "b"], "outputs": []},
        ]});
        let document = Document::parse(&old.to_string()).unwrap();
        assert_eq!(document.0["nbformat_minor"], 5);
        assert!(document.cells()[0]["id"].is_string());
        assert_eq!(sources(&document), ["a\nb"]);
        assert!(Document::parse("{}").is_err());
        assert!(Document::parse("no JSON").is_err());
    }
}
