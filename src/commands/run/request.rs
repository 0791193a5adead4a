//! What the command line asks to run.

use std::path::{Path, PathBuf};

use anyhow::Context;
use baton_jupyter_client::Kernelspec;
use baton_protocol::{JobId, JobKind};
use baton_runner::{Document, Options, Parameter, Program};
use clap::ArgMatches;

use crate::{cli, python};

/// Tells the kernel's proxy the kind of job that its first `%%gpu` cell is, and the job: `KIND:JOB`.
pub(crate) const JOB_VARIABLE: &str = "BATON_JOB";

pub(super) struct Request {
    /// The notebook or the script.
    pub(super) program: PathBuf,
    arguments: Vec<String>,
    output: Option<PathBuf>,
    parameters: Vec<Parameter>,
    pub(super) options: Options,
    course: Option<String>,
    python: PathBuf,
    pub(super) json: bool,
}

impl Request {
    pub(super) fn read(matches: &ArgMatches) -> anyhow::Result<Self> {
        let text = |name: &str| matches.get_one::<String>(name).cloned();
        let program = matches.get_one::<PathBuf>("program");
        let arguments = matches.get_many::<String>("arguments");
        let parameters = matches.get_many::<Parameter>("parameter");
        let request = Self {
            program: program.context("Which program?")?.clone(),
            arguments: arguments.unwrap_or_default().cloned().collect(),
            output: matches.get_one::<PathBuf>("output").cloned(),
            parameters: parameters.unwrap_or_default().cloned().collect(),
            options: Options {
                timeout: text("timeout"),
                memory: text("mem"),
                gpu: text("gpu"),
                low_priority: text("priority").is_some_and(|priority| priority == "low"),
            },
            course: text("course"),
            python: cli::python(matches).unwrap_or_else(python::default_python),
            json: matches.get_flag("json"),
        };
        anyhow::ensure!(
            request.is_notebook() || request.parameters.is_empty() && request.output.is_none(),
            "-p and -o are for notebooks\nhint: a script gets what stands behind its name as arguments"
        );
        Ok(request)
    }

    fn is_notebook(&self) -> bool {
        is_notebook(&self.program)
    }

    fn kind(&self) -> JobKind {
        match self.is_notebook() {
            true => JobKind::Notebook,
            false => JobKind::Script,
        }
    }

    /// Where the notebook goes as it ran: `train.out.ipynb` beside `train.ipynb`.
    pub(super) fn output(&self) -> Option<PathBuf> {
        let beside = || self.program.with_extension("out.ipynb");
        let output = || self.output.clone().unwrap_or_else(beside);
        self.is_notebook().then(output)
    }

    /// A notebook starts in its own folder, and a script where it was called.
    fn folder(&self) -> anyhow::Result<PathBuf> {
        let here = std::env::current_dir().context("This folder is gone")?;
        let parent = self.program.parent().filter(|_| self.is_notebook());
        Ok(here.join(parent.unwrap_or(Path::new(""))))
    }

    pub(super) fn kernelspec(&self, job: JobId) -> anyhow::Result<Kernelspec> {
        let arguments = ["-m", "baton_shim", "-f", "{connection_file}"];
        let name = self.program.file_name().unwrap_or_default();
        let kernelspec = Kernelspec::new(&self.python, arguments)
            .in_folder(&self.folder()?)
            .with_variable("JPY_SESSION_NAME", &*name.to_string_lossy())
            .with_variable(JOB_VARIABLE, format!("{}:{job}", self.kind().name()));
        Ok(match &self.course {
            Some(course) => kernelspec.with_variable("BATON_COURSE", course),
            None => kernelspec,
        })
    }
}

/// Everything else is taken for a script.
pub(crate) fn is_notebook(program: &Path) -> bool {
    program
        .extension()
        .is_some_and(|extension| extension == "ipynb")
}

/// The program, as far as it is read before it runs.
pub(super) enum Loaded {
    /// With its parameters and without outputs.
    Notebook(Document),
    /// The script's path and its arguments.
    Script(Vec<String>),
}

impl Loaded {
    pub(super) fn read(request: &Request) -> anyhow::Result<Self> {
        if request.is_notebook() {
            let mut document = Document::read(&request.program)?;
            document.clear();
            document.set_parameters(&request.parameters);
            return Ok(Self::Notebook(document));
        }
        let shown = request.program.display();
        anyhow::ensure!(request.program.is_file(), "There is no script {shown}");
        let path = request
            .program
            .to_str()
            .with_context(|| format!("The name {shown} is not text"))?;
        let words = std::iter::once(path.to_owned()).chain(request.arguments.iter().cloned());
        Ok(Self::Script(words.collect()))
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
