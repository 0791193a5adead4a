//! `baton plan` and `baton bench`: questions about how many people GPUs serve.

use std::time::Duration;

use clap::{Arg, Command, value_parser};

use super::{flag, path_argument, python_argument, switch, with_flags};
use crate::{
    commands::plan::policies::Cells,
    settings::{Size, Value, flags_of},
};

pub(super) fn plan() -> Command {
    let time = |name: &'static str, default: Option<&'static str>, help: &'static str| {
        let argument = Arg::new(name)
            .long(name)
            .value_name("TIME")
            .value_parser(Duration::from_text)
            .help(help);
        match default {
            Some(default) => argument.default_value(default),
            None => argument,
        }
    };
    let count = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("NUMBER")
            .value_parser(value_parser!(u16).range(1..))
            .help(help)
    };
    let size = |name: &'static str, default: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("SIZE")
            .value_parser(Size::from_text)
            .default_value(default)
            .requires("policies")
            .help(help)
    };
    let plan = Command::new("plan")
        .about("Say how many people share GPUs well, and how long each of them waits")
        .arg(count("users", "People; the table goes up to them").default_value("40"))
        .arg(count("gpus", "GPUs; the table goes up to them, above 9 in steps").default_value("1"))
        .arg(time(
            "edit",
            Some("2m"),
            "Mean time between the end of a cell and the next one",
        ))
        .arg(time("run", Some("30s"), "Mean time that a cell runs"))
        .arg(time(
            "hand-over",
            Some("500ms"),
            "Mean time in which a GPU goes to the next person",
        ))
        .arg(time(
            "stay",
            None,
            "Mean time until somebody who edits goes away; for ever if not given",
        ))
        .arg(time(
            "away",
            Some("1h"),
            "Mean time until somebody who went comes back",
        ))
        .arg(time(
            "wait",
            Some("30s"),
            "The wait that 99 of 100 cells may have at most",
        ))
        .arg(switch(
            "exclusive",
            "Everybody keeps a GPU from coming to going; the waits are for that GPU",
        ))
        .arg(
            switch(
                "states",
                "List each state of up to 5 people and its probability",
            )
            .conflicts_with_all(["gpus", "exclusive", "wait", "policies", "from-broker", "report"]),
        )
        .arg(
            switch(
                "policies",
                "Simulate so many people and GPUs, and compare the ways to share them",
            )
            .conflicts_with_all([
                "run", "hand-over", "stay", "away", "wait", "exclusive", "from-broker", "report",
            ]),
        )
        .arg(
            Arg::new("cells")
                .long("cells")
                .value_name("PARTS")
                .value_parser(Cells::from_text)
                .default_value("88%:700ms,10.5%:15s,1.5%:400s")
                .requires("policies")
                .help("GPU times of cells for --policies: parts and their medians"),
        )
        .arg(
            count(
                "slots",
                "Cells that take turns on a GPU, for --policies; others wait in line; all if not given",
            )
            .requires("policies"),
        )
        .arg(
            time(
                "cold",
                Some("5s"),
                "Time in which a session begins on another GPU, for --policies",
            )
            .requires("policies"),
        )
        .arg(size(
            "session-memory",
            "4GB",
            "GPU memory of a session for --policies",
        ))
        .arg(size(
            "gpu-memory",
            "80GB",
            "Memory of each GPU for --policies",
        ))
        .arg(size(
            "link",
            "25GB",
            "What moves between GPU and host in a second, for --policies",
        ))
        .arg(
            Arg::new("seed")
                .long("seed")
                .value_name("NUMBER")
                .value_parser(value_parser!(u64))
                .default_value("1")
                .requires("policies")
                .help("Another number is another class, for --policies"),
        )
        .arg(
            switch(
                "from-broker",
                "Estimate everything from the broker's history, and predict the course",
            )
            .conflicts_with_all([
                "users", "edit", "run", "hand-over", "stay", "away", "wait", "exclusive", "latency",
            ]),
        )
        .arg(
            Arg::new("days")
                .long("days")
                .value_name("NUMBER")
                .value_parser(value_parser!(u32).range(1..=366))
                .default_value("7")
                .requires("from-broker")
                .help("How many days of history --from-broker looks at"),
        )
        .arg(
            Arg::new("course")
                .long("course")
                .value_name("NAME")
                .requires("from-broker")
                .help("Only the history of this course, for --from-broker"),
        )
        .arg(path_argument(
            "latency",
            "FILE",
            "What `baton bench latency --json` printed, instead of --hand-over and --cold",
        ))
        .arg(path_argument(
            "report",
            "FILE",
            "Write a report with plots, as HTML",
        ))
        .arg(switch("json", "Print JSON; times are in seconds"));
    with_flags(plan)
}

pub(super) fn bench() -> Command {
    let latency = Command::new("latency")
        .about("Measure what a %%gpu cell adds to an ordinary one, with real notebooks")
        .arg(
            Arg::new("most")
                .long("most")
                .value_name("SIZE")
                .value_parser(Size::from_text)
                .default_value("1GB")
                .help("The largest data that a cell touches"),
        )
        .arg(
            Arg::new("runs")
                .long("runs")
                .value_name("NUMBER")
                .value_parser(value_parser!(u16).range(1..))
                .default_value("5")
                .help("How often a warm cell runs; medians are printed"),
        )
        .arg(python_argument("The Python in which notebooks run"))
        .arg(switch("json", "Print JSON; times are in seconds"))
        .args(flags_of("bench latency").filter_map(flag));
    Command::new("bench")
        .about("Measure this installation")
        .subcommand_required(true)
        .subcommand(latency)
}
