//! `baton plan` and `baton bench`: how many people a number of GPUs can serve.

use super::{flag, path_argument, python_argument, switch, with_flags};
use crate::{
    arguments::{Cells, GroupArgument, MachinesArgument, PoolArgument},
    settings::{Size, Value, flags_of},
};
use clap::{Arg, ArgAction, ArgGroup, Command, value_parser};
use std::time::Duration;

/// Arguments that have no effect on a simulation of machines.
const NOT_SIMULATED: [&str; 11] = [
    "gpus",
    "policies",
    "exclusive",
    "states",
    "report",
    "stay",
    "away",
    "hand-over",
    "wait",
    "latency",
    "timetable",
];

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
        .about("Compute how many people can share GPUs, and how long they wait")
        .arg(count("users", "The largest number of people in the table").default_value("40"))
        .arg(count("gpus", "The largest number of GPUs in the table (above 9 in steps)").default_value("1"))
        .arg(time(
            "edit",
            Some("2m"),
            "Mean time between the end of a cell and the next one",
        ))
        .arg(time("run", Some("30s"), "Mean time that a cell runs"))
        .arg(time(
            "hand-over",
            Some("500ms"),
            "Mean time to hand a GPU over to the next person",
        ))
        .arg(time(
            "stay",
            None,
            "How long a person stays on average (default: forever)",
        ))
        .arg(time(
            "away",
            Some("1h"),
            "How long a person is away on average",
        ))
        .arg(time(
            "wait",
            Some("30s"),
            "The longest wait that is acceptable for 99 of 100 cells",
        ))
        .arg(switch(
            "exclusive",
            "Each person keeps a GPU for their whole visit",
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
                "Simulate this many people and GPUs, and compare ways to share them",
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
                "Cells that time-share one GPU, for --policies; others wait in the queue (default: all)",
            )
            .requires("policies"),
        )
        .arg(
            time(
                "cold",
                Some("5s"),
                "Time to start a session on another GPU, for --policies",
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
            "Bytes that move between GPU and host in one second, for --policies",
        ))
        .arg(
            Arg::new("seed")
                .long("seed")
                .value_name("NUMBER")
                .value_parser(value_parser!(u64))
                .default_value("1")
                .requires("policies")
                .help("The seed of the simulation, for --policies"),
        )
        .arg(
            Arg::new("machines")
                .long("machines")
                .value_name("LIST")
                .value_parser(MachinesArgument::parse)
                .value_delimiter(',')
                .conflicts_with_all(NOT_SIMULATED)
                .help(
                    "Simulate machines that differ, such as \"4 a100 80G, 8 t4 16G\": with --users people, or \
                     with the cells of the past (--from-broker)",
                ),
        )
        .arg(
            Arg::new("pool")
                .long("pool")
                .value_name("POOL")
                .value_parser(PoolArgument::parse)
                .action(ArgAction::Append)
                .conflicts_with_all(NOT_SIMULATED)
                .help(
                    "Simulate a pool whose number of machines varies, such as 0-4 or \"0-4 a100 80G\", or one of the \
                     configuration file, by its name; beside --machines and other pools, if there are any",
                ),
        )
        .group(ArgGroup::new("simulated").args(["machines", "pool"]).multiple(true))
        .arg(
            Arg::new("groups")
                .long("groups")
                .value_name("LIST")
                .value_parser(GroupArgument::parse)
                .value_delimiter(',')
                .requires("simulated")
                .conflicts_with("from-broker")
                .help(
                    "Those of the people who need particular machines, or have other times, such as \
                     \"50 a100, 20 40G run=5m\"",
                ),
        )
        .arg(
            time(
                "lesson",
                None,
                "Simulate a lesson of this length that everyone attends, for which pools start machines beforehand",
            )
            .requires("simulated")
            .conflicts_with("from-broker"),
        )
        .arg(
            time("start", Some("40s"), "How long a machine takes to start, for --pool")
                .requires("pool"),
        )
        .arg(
            time("idle", Some("5m"), "How long a machine without cells stays, for --pool")
                .requires("pool"),
        )
        .arg(
            time("walltime", Some("2h"), "How long a machine may stay, for --pool").requires("pool"),
        )
        .arg(
            time(
                "target-wait",
                Some("60s"),
                "The time in which all waiting cells should have begun, for --pool",
            )
            .requires("pool"),
        )
        .arg(
            switch(
                "from-broker",
                "Estimate all values from the broker's history, and predict the course",
            )
            .conflicts_with_all([
                "users", "edit", "run", "hand-over", "stay", "away", "wait", "exclusive", "latency",
            ]),
        )
        .arg(
            switch(
                "timetable",
                "Say for each lesson of the courses' timetables whether there are enough GPUs",
            )
            .conflicts_with_all([
                "policies", "exclusive", "states", "report", "pool", "from-broker", "latency",
            ]),
        )
        .arg(
            Arg::new("days")
                .long("days")
                .value_name("NUMBER")
                .value_parser(value_parser!(u32).range(1..=366))
                .default_value("7")
                .requires("from-broker")
                .help("How many days of history --from-broker uses"),
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
            "The output of `baton bench latency --json`, instead of --hand-over and --cold",
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
                .help("How many times a warm cell runs; medians are printed"),
        )
        .arg(python_argument("The Python in which notebooks run"))
        .arg(switch("json", "Print JSON; times are in seconds"))
        .args(flags_of("bench latency").filter_map(flag));
    Command::new("bench")
        .about("Measure this installation")
        .subcommand_required(true)
        .subcommand(latency)
}
