//! A notebook file, version 4 of the format. Only what a run needs is checked; all is preserved.

use crate::{parameters::Parameter, replace};
use serde_json::{Map, Value, json};
use std::{
    io,
    path::{Path, PathBuf},
};

const PARAMETERS: &str = "parameters";
const INJECTED: &str = "injected-parameters";
const MAY_FAIL: &str = "raises-exception";
const SKIPPED: &str = "skip-execution";
const CONVERT: &str =
    "hint: `jupyter nbconvert --to notebook --inplace NOTEBOOK.ipynb` converts an older notebook";

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
    /// Reads a notebook. Cells of the formats 4.0 to 4.4 get the ids that 4.5 requires.
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
        let text = text.trim_start_matches('\u{feff}'); // as some editors on Windows write it
        let mut notebook: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let version = &notebook["nbformat"];
        if version != 4 {
            return Err(format!(
                "its `nbformat` is {version} instead of 4\n{CONVERT}"
            ));
        }
        let minor = notebook["nbformat_minor"].as_u64().unwrap_or(0);
        notebook["nbformat_minor"] = minor.max(5).into();
        complete_metadata(&mut notebook).ok_or("its metadata is not an object")?;
        let cells = notebook["cells"].as_array_mut();
        let cells = cells.ok_or("it has no list of cells")?;
        for number in 0..cells.len() {
            let metadata = complete_metadata(&mut cells[number]);
            if metadata.is_none() || !cells[number]["cell_type"].is_string() {
                return Err(format!("its cell {} is invalid", number + 1));
            }
            if cells[number]["id"].is_null() {
                cells[number]["id"] = free_id(cells, &format!("cell-{number}")).into();
            }
        }
        Ok(Self(notebook))
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
            "id": free_id(cells, INJECTED),
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

/// Adds the metadata of a notebook or cell if it has none. Returns none if either is not an object.
fn complete_metadata(of: &mut Value) -> Option<()> {
    let metadata = of.as_object_mut()?.entry("metadata");
    metadata.or_insert(json!({})).is_object().then_some(())
}

fn free_id(cells: &[Value], name: &str) -> String {
    let is_free = |id: &String| !cells.iter().any(|cell| cell["id"] == **id);
    let mut names = (0..).map(|number| match number {
        0 => name.to_owned(),
        number => format!("{name}-{number}"),
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
    }

    #[test]
    fn a_notebook_is_read_as_it_is() {
        let mut first = code("same", "a", &[]);
        first["metadata"]["scrolled"] = "auto".into();
        first["outputs"] = json!([{
            "output_type": "execute_result", "execution_count": null, "data": {}, "metadata": {},
        }]);
        let value = json!({
            "nbformat": 4, "nbformat_minor": 5, "unknown": [1], "metadata": {"authors": ["Ada"]},
            "cells": [first, code("same", "b", &[])],
        });
        for text in [value.to_string(), format!("\u{feff}{value}")] {
            assert_eq!(Document::parse(&text).unwrap().0, value);
        }
    }

    #[test]
    fn the_error_says_why_a_file_is_no_notebook() {
        for (text, why) in [
            ("no JSON", "expected"),
            ("[4]", "null instead of 4"),
            ("{}", "null instead of 4"),
            (r#"{"nbformat": 3, "worksheets": []}"#, CONVERT),
            (r#"{"nbformat": 5, "cells": []}"#, "5 instead of 4"),
            (r#"{"nbformat": 4}"#, "no list of cells"),
            (r#"{"nbformat": 4, "metadata": 1, "cells": []}"#, "metadata"),
            (
                r#"{"nbformat": 4, "cells": [{"source": ""}]}"#,
                "cell 1 is invalid",
            ),
            (r#"{"nbformat": 4, "cells": ["text"]}"#, "cell 1 is invalid"),
        ] {
            let error = Document::parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
