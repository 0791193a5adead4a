//! `baton run`, `logs` and `fetch`: notebooks and scripts as jobs.

use super::{IN_BACKGROUND, path_argument, python_argument, switch};
use crate::settings::Value;
use baton_runner::Given;
use clap::{Arg, ArgAction, Command, value_parser};
use std::{path::PathBuf, time::Duration};

pub(super) fn run() -> Command {
    let text = |name: &'static str, value: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name(value)
            .value_parser(word)
            .help(help)
    };
    Command::new("run")
        .about("Run a notebook or a script as one job")
        .override_usage(
            "baton run NOTEBOOK.ipynb [OPTIONS]\n       baton run [OPTIONS] SCRIPT [ARGUMENTS]...\n       baton run --resume JOB [--detach] [--json]",
        )
        .arg(
            Arg::new("program")
                .value_name("PROGRAM")
                .required_unless_present("resume")
                .value_parser(value_parser!(PathBuf))
                .help("A notebook (.ipynb), whose cells run in order until one fails, or a Python script"),
        )
        .arg(
            Arg::new("arguments")
                .value_name("ARGUMENTS")
                .num_args(0..)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .help("The script's arguments"),
        )
        .arg(
            path_argument(
                "output",
                "FILE",
                "Where to write the executed notebook [default: NOTEBOOK.out.ipynb beside it]",
            )
            .short('o'),
        )
        .arg(
            Arg::new("parameter")
                .short('p')
                .long("parameter")
                .value_name("NAME=VALUE")
                .action(ArgAction::Append)
                .value_parser(Given::one)
                .help("Set this variable after the cell with the tag `parameters`; the value is JSON or text, or a range such as 1..20, which makes a job for each number"),
        )
        .arg(
            Arg::new("each")
                .long("each")
                .value_name("NAME=VALUES")
                .action(ArgAction::Append)
                .value_parser(Given::each)
                .help("Run a job for each of these values: model=resnet18,vit, or a JSON list, or a range"),
        )
        .arg(
            Arg::new("at-once")
                .long("at-once")
                .value_name("NUMBER")
                .value_parser(value_parser!(u32).range(1..))
                .help("How many of several jobs may wait or run at the same time"),
        )
        .arg(text("course", "COURSE", "The course that the job is for"))
        .arg(text("timeout", "DURATION", "Stop after this time, such as 5m or 1h30m"))
        .arg(text("gpu", "MODEL", "Run only on this GPU, such as a100"))
        .arg(text("env", "NAME", "Run in this environment of the course"))
        .arg(text("mem", "SIZE", "How much GPU memory it may use, such as 8G"))
        .arg(
            text("priority", "PRIORITY", "low: other cells run first")
                .value_parser(["normal", "low"])
                .default_value("normal"),
        )
        .arg(
            Arg::new("keep")
                .long("keep")
                .value_name("DURATION")
                .value_parser(Duration::from_text)
                .help("With --detach, how long the variables of a notebook are kept when a cell fails [default: 30m]"),
        )
        .arg(
            Arg::new("resume")
                .long("resume")
                .value_name("JOB")
                .conflicts_with_all([
                    "program", "arguments", "output", "parameter", "each", "at-once", "course", "timeout", "gpu",
                    "env", "mem", "priority", "python", "keep",
                ])
                .help("Resume a run where it failed: its job or group, the last digits of either, or the notebook that it wrote"),
        )
        .arg(switch("detach", "Start in the background, print the job, and return").short('d'))
        .arg(python_argument("The Python in which notebooks run"))
        .arg(switch("json", "Print JSON"))
        .arg(
            Arg::new(IN_BACKGROUND)
                .long(IN_BACKGROUND)
                .value_name("JOB")
                .hide(true),
        )
}

/// A single word, because it becomes part of a cell's first line.
fn word(text: &str) -> Result<String, &'static str> {
    match text.is_empty() || text.contains(char::is_whitespace) {
        true => Err("it must be one word"),
        false => Ok(text.to_owned()),
    }
}

pub(super) fn logs() -> Command {
    Command::new("logs")
        .about("Show the output of a run")
        .arg(job())
        .arg(
            switch(
                "follow",
                "Follow the run until it ends; the exit code is the run's",
            )
            .short('f'),
        )
}

pub(super) fn fetch() -> Command {
    Command::new("fetch")
        .about("Write the notebook of a run with its outputs so far")
        .arg(job())
        .arg(
            path_argument(
                "output",
                "FILE",
                "Write it here [default: where the run writes it]",
            )
            .short('o'),
        )
}

fn job() -> Arg {
    Arg::new("job")
        .value_name("JOB")
        .required(true)
        .help("The job or group that `baton run` printed, or its last digits")
}
