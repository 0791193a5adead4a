//! What the command line asks to run.

use super::arguments::RunArguments;
use crate::{arguments::is_notebook, python};
use anyhow::Context;
use baton_jupyter_client::Kernelspec;
use baton_protocol::{ClientJob, GroupId, JobId, JobKind};
use baton_runner::{Combination, Document, Options, Parameter, Program, combinations};
use serde_json::Value;
use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

/// As long as a worker keeps an idle session by default.
const KEEP: Duration = Duration::from_mins(30);

pub(super) struct Request {
    /// The notebook or script.
    pub(super) program: PathBuf,
    arguments: Vec<OsString>,
    output: Option<PathBuf>,
    combinations: Vec<Combination>,
    pub(super) options: Options,
    /// The most jobs of an array that may wait or run.
    pub(super) at_once: Option<usize>,
    course: Option<String>,
    python: PathBuf,
    pub(super) json: bool,
    /// How long the variables of a background run are kept after a cell has failed.
    pub(super) keep: Duration,
    /// The arguments of the command line after `baton`.
    pub(super) command: Vec<OsString>,
}

/// One job of a request.
#[derive(Debug, Clone)]
pub(super) struct OneJob {
    pub(super) id: JobId,
    /// The array that the job belongs to.
    pub(super) group: Option<GroupId>,
    /// What distinguishes it from the other jobs of its array: `seed=3 rate=0.1`.
    pub(super) label: String,
    pub(super) parameters: Vec<Parameter>,
    /// Where the executed notebook is written; none for a script.
    pub(super) output: Option<PathBuf>,
}

impl OneJob {
    pub(super) fn parameters_as_json(&self) -> Value {
        let parameters = self.parameters.iter();
        let parameters =
            parameters.map(|parameter| (parameter.name.clone(), parameter.value.json()));
        Value::Object(parameters.collect())
    }
}

impl Request {
    /// `command` is the command line that was parsed.
    pub(super) fn read(run: &RunArguments, command: &[OsString]) -> anyhow::Result<Self> {
        let (program, arguments) = run.words.split_first().context("Which program?")?;
        let request = Self {
            program: program.into(),
            arguments: arguments.to_vec(),
            output: run.output.clone(),
            combinations: combinations(&run.parameters.0)?,
            options: Options {
                timeout: run.timeout.clone(),
                memory: run.mem.clone(),
                gpu: run.gpu.clone(),
                environment: run.env.clone(),
                low_priority: run.priority == "low",
            },
            at_once: run.at_once.and_then(|number| usize::try_from(number).ok()),
            course: run.course.clone(),
            python: run.python.clone().unwrap_or_else(python::default_python),
            json: run.json,
            keep: run.keep.unwrap_or(KEEP),
            command: command.to_vec(),
        };
        anyhow::ensure!(
            request.is_notebook() || run.parameters.0.is_empty() && request.output.is_none(),
            "-p, --each and -o are for notebooks\nhint: write the arguments of a script after its name"
        );
        let keeps = request.is_notebook() && !request.is_array() && run.detach;
        anyhow::ensure!(
            keeps || run.keep.is_none(),
            "--keep is for one notebook in the background\nhint: baton run --detach --keep 2h NOTEBOOK.ipynb"
        );
        anyhow::ensure!(
            request.is_array() || request.at_once.is_none(),
            "--at-once is for several jobs\nhint: -p seed=1..20 runs 20"
        );
        Ok(request)
    }

    pub(super) fn is_notebook(&self) -> bool {
        is_notebook(&self.program)
    }

    /// Whether it is a group of jobs, possibly of only one.
    pub(super) fn is_array(&self) -> bool {
        self.combinations
            .iter()
            .any(|combination| !combination.different.is_empty())
    }

    /// What distinguishes its jobs from each other.
    pub(super) fn labels(&self) -> Vec<String> {
        self.combinations.iter().map(label).collect()
    }

    /// The job with this label.
    pub(super) fn job(
        &self,
        id: JobId,
        group: Option<GroupId>,
        label: &str,
    ) -> anyhow::Result<OneJob> {
        let combination = labelled(&self.combinations, label)
            .context("The command line does not create this job")?;
        Ok(OneJob {
            id,
            group,
            label: self::label(combination),
            parameters: combination.parameters.clone(),
            output: self.is_notebook().then(|| self.output(combination)),
        })
    }

    /// Where the executed notebook is written: `train.out.ipynb` beside `train.ipynb`, or
    /// `train.seed=3.out.ipynb`.
    fn output(&self, combination: &Combination) -> PathBuf {
        let Some(output) = &self.output else {
            let stem = self.program.file_stem().unwrap_or_default();
            let mut name = stem.to_os_string();
            for part in parts(combination) {
                name.push(format!(".{part}"));
            }
            name.push(".out.ipynb");
            return self.program.with_file_name(name);
        };
        let different = combination.different.iter();
        let filled_in = different.fold(output.to_string_lossy().into_owned(), |text, parameter| {
            text.replace(
                &format!("{{{}}}", parameter.name),
                &parameter.value_in_names(),
            )
        });
        match combination.different.is_empty() {
            true => output.clone(),
            false => filled_in.into(),
        }
    }

    /// The job as the kernel's proxy submits it.
    pub(super) fn client_job(&self, job: &OneJob) -> ClientJob {
        ClientJob {
            id: job.id,
            kind: match self.is_notebook() {
                true => JobKind::Notebook,
                false => JobKind::Script,
            },
            group: job.group,
        }
    }

    /// A notebook starts in its own folder, a script in the current one.
    fn folder(&self) -> anyhow::Result<PathBuf> {
        let here = std::env::current_dir().context("This folder is gone")?;
        let parent = self.program.parent().filter(|_| self.is_notebook());
        Ok(here.join(parent.unwrap_or(Path::new(""))))
    }

    pub(super) fn kernelspec(&self, job: &OneJob) -> anyhow::Result<Kernelspec> {
        let arguments = ["-m", "baton_shim", "-f", "{connection_file}"];
        let name = self.program.file_name().unwrap_or_default();
        let name = format!("{} {}", name.to_string_lossy(), job.label);
        let kernelspec = Kernelspec::new(&self.python, arguments)
            .in_folder(&self.folder()?)
            .with_variable("JPY_SESSION_NAME", name.trim_end());
        Ok(match &self.course {
            Some(course) => kernelspec.with_variable("BATON_COURSE", course),
            None => kernelspec,
        })
    }
}

/// Each parameter that differs between the jobs, as part of a file name.
fn parts(combination: &Combination) -> Vec<String> {
    let different = combination.different.iter();
    different
        .map(|parameter| format!("{}={}", parameter.name, parameter.value_in_names()))
        .collect()
}

fn label(combination: &Combination) -> String {
    parts(combination).join(" ")
}

/// The combination with this label, or the only one: an earlier version may have written its label differently.
fn labelled<'a>(combinations: &'a [Combination], label: &str) -> Option<&'a Combination> {
    match combinations {
        [only] => Some(only),
        all => all.iter().find(|one| self::label(one) == label),
    }
}

/// The program, as far as it is read before it runs.
pub(super) enum Loaded {
    /// The notebook without outputs.
    Notebook(Document),
    /// The script's path and its arguments.
    Script(Vec<String>),
}

impl Loaded {
    pub(super) fn read(request: &Request) -> anyhow::Result<Self> {
        if request.is_notebook() {
            let mut document = Document::read(&request.program)?;
            document.clear();
            return Ok(Self::Notebook(document));
        }
        let shown = request.program.display();
        anyhow::ensure!(request.program.is_file(), "There is no script {shown}");
        let words = std::iter::once(request.program.as_os_str())
            .chain(request.arguments.iter().map(OsString::as_os_str))
            .map(|word| {
                let text = word.to_str().map(str::to_owned);
                text.with_context(|| format!("{} is not UTF-8", word.display()))
            });
        Ok(Self::Script(words.collect::<anyhow::Result<_>>()?))
    }

    /// Adds the parameters of a job.
    pub(super) fn with(&self, job: &OneJob) -> Self {
        match self {
            Self::Notebook(document) => {
                let mut document = document.clone();
                document.set_parameters(&job.parameters);
                Self::Notebook(document)
            }
            Self::Script(words) => Self::Script(words.clone()),
        }
    }

    pub(super) fn program(&self) -> Program<'_> {
        match self {
            Self::Notebook(document) => Program::Notebook(document),
            Self::Script(words) => Program::Script(words),
        }
    }

    pub(super) fn document(&self) -> Option<&Document> {
        match self {
            Self::Notebook(document) => Some(document),
            Self::Script(_) => None,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use baton_runner::Given;

    fn found(each: &str, label: &str) -> Option<String> {
        let combinations = combinations(&[Given::each(each).unwrap()]).unwrap();
        labelled(&combinations, label).map(self::label)
    }

    #[test]
    fn a_job_is_found_by_its_label() {
        for (each, label, expected) in [
            ("flag=True,False", "flag=False", Some("flag=False")),
            ("flag=True,False", "flag=false", None),
            ("flag=True", "flag=true", Some("flag=True")),
        ] {
            assert_eq!(found(each, label).as_deref(), expected, "{each} {label}");
        }
    }
}
