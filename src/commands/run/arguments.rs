//! The arguments of `baton run`, `logs` and `fetch`.

use super::limits;
use crate::settings::Value;
use baton_runner::Given;
use clap::{
    Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches, builder::ValueParser,
    value_parser,
};
use std::{ffi::OsString, path::PathBuf, time::Duration};

pub(super) const IN_BACKGROUND: &str = "in-background";

/// Run a notebook or a script as one job
#[derive(Args)]
#[command(
    override_usage = "baton run NOTEBOOK.ipynb [OPTIONS]\n       baton run [OPTIONS] SCRIPT [ARGUMENTS]...\n       baton run --resume JOB [--detach] [--json]"
)]
pub(crate) struct RunArguments {
    /// A notebook (.ipynb), whose cells run in order until one fails, or a Python script and its arguments
    #[arg(
        value_name = "PROGRAM",
        required_unless_present = "resume",
        trailing_var_arg = true
    )]
    pub(crate) words: Vec<OsString>,
    /// Where to write the executed notebook [default: NOTEBOOK.out.ipynb beside it]
    #[arg(long, short, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
    #[command(flatten)]
    pub(super) parameters: Parameters,
    /// How many of several jobs may wait or run at the same time
    #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u32).range(1..))]
    pub(super) at_once: Option<u32>,
    /// The course that the job is for
    #[arg(long, value_parser = word)]
    pub(super) course: Option<String>,
    /// Stop after this time, such as 5m or 1h30m
    #[arg(long, value_name = "DURATION", value_parser = limits::time)]
    pub(super) timeout: Option<String>,
    /// Run only on this GPU, such as a100
    #[arg(long, value_name = "MODEL", value_parser = word)]
    pub(super) gpu: Option<String>,
    /// Run in this environment of the course
    #[arg(long, value_name = "NAME", value_parser = word)]
    pub(super) env: Option<String>,
    /// How much GPU memory it may use, such as 8G
    #[arg(long, value_name = "SIZE", value_parser = limits::memory)]
    pub(super) mem: Option<String>,
    /// low: other cells run first
    #[arg(long, value_parser = ["normal", "low"], default_value = "normal")]
    pub(super) priority: String,
    /// With --detach, how long the variables of a notebook are kept when a cell fails [default: 30m]
    #[arg(long, value_name = "DURATION", value_parser = Duration::from_text)]
    pub(super) keep: Option<Duration>,
    /// Resume a run where it failed: its job or group, the last digits of either, or the notebook that it wrote
    #[arg(
        long,
        value_name = "JOB",
        conflicts_with_all = [
            "words", "output", "parameter", "each", "at_once", "course", "timeout", "gpu", "env",
            "mem", "priority", "python", "keep",
        ],
    )]
    pub(crate) resume: Option<String>,
    /// Start in the background, print the job, and return
    #[arg(long, short)]
    pub(crate) detach: bool,
    /// The Python in which notebooks run
    #[arg(long)]
    pub(super) python: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// In a process in the background: the job or group that another process began
    #[arg(long = IN_BACKGROUND, value_name = "JOB", hide = true)]
    pub(super) in_background: Option<String>,
}

/// Show the output of a run
#[derive(Args)]
pub(crate) struct Logs {
    /// The job or group that `baton run` printed, or its last digits
    pub(super) job: String,
    /// Follow the run until it ends; the exit code is the run's
    #[arg(long, short)]
    pub(super) follow: bool,
}

/// Write the notebook of a run with its outputs so far
#[derive(Args)]
pub(crate) struct Fetch {
    /// The job or group that `baton run` printed, or its last digits
    pub(super) job: String,
    /// Write it here [default: where the run writes it]
    #[arg(long, short, value_name = "FILE")]
    pub(super) output: Option<PathBuf>,
}

/// A single word, because it becomes part of a cell's first line.
fn word(text: &str) -> Result<String, &'static str> {
    match text.is_empty() || text.contains(char::is_whitespace) {
        true => Err("it must be one word"),
        false => Ok(text.to_owned()),
    }
}

/// All `-p` and `--each`, in the order of the command line.
pub(super) struct Parameters(pub(super) Vec<Given>);

const PARAMETER: &str = "parameter";
const EACH: &str = "each";

impl Args for Parameters {
    fn augment_args(command: Command) -> Command {
        let argument = |name: &'static str, value: &'static str, parser: ValueParser| {
            Arg::new(name)
                .long(name)
                .value_name(value)
                .action(ArgAction::Append)
                .value_parser(parser)
        };
        let parameter = argument(PARAMETER, "NAME=VALUE", ValueParser::new(Given::one))
            .short('p')
            .help("Set this variable after the cell with the tag `parameters`; the value is JSON or text, or a range such as 1..20, which makes a job for each number");
        let each = argument(EACH, "NAME=VALUES", ValueParser::new(Given::each)).help(
            "Run a job for each of these values: model=resnet18,vit, or a JSON list, or a range",
        );
        command.args([parameter, each])
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Parameters {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let of = |name: &str| {
            let indices = matches.indices_of(name).into_iter().flatten();
            let values = matches.get_many::<Given>(name).into_iter().flatten();
            indices.zip(values.cloned()).collect::<Vec<_>>()
        };
        let mut given = [of(PARAMETER), of(EACH)].concat();
        given.sort_by_key(|(index, _)| *index);
        Ok(Self(given.into_iter().map(|(_, given)| given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}
