//! The arguments of `baton plan`.

use crate::{
    arguments::{Cells, GroupArgument, MachinesArgument, PoolArgument},
    settings::{Size, Value},
};
use clap::{ArgGroup, Args, builder::RangedI64ValueParser, value_parser};
use std::{path::PathBuf, time::Duration};

/// Arguments that have no effect on a simulation of machines.
const NOT_SIMULATED: [&str; 11] = [
    "gpus",
    "policies",
    "exclusive",
    "states",
    "report",
    "stay",
    "away",
    "hand_over",
    "wait",
    "latency",
    "timetable",
];

/// Compute how many people can share GPUs, and how long they wait
#[derive(Args)]
#[command(group = ArgGroup::new("simulated").multiple(true))]
pub(crate) struct Plan {
    /// The largest number of people in the table
    #[arg(long, value_name = "NUMBER", value_parser = count(), default_value_t = 40)]
    pub(super) users: u16,
    /// The largest number of GPUs in the table (above 9 in steps) [default: 1, or those of the broker]
    #[arg(long, value_name = "NUMBER", value_parser = count())]
    pub(super) gpus: Option<u16>,
    /// Mean time between the end of a cell and the next one
    #[arg(long, value_name = "TIME", value_parser = Duration::from_text, default_value = "2m")]
    pub(super) edit: Duration,
    /// Mean time that a cell runs
    #[arg(long, value_name = "TIME", value_parser = Duration::from_text, default_value = "30s")]
    pub(super) run: Duration,
    /// Mean time to hand a GPU over to the next person
    #[arg(long, value_name = "TIME", value_parser = Duration::from_text, default_value = "500ms")]
    pub(super) hand_over: Duration,
    /// How long a person stays on average (default: forever)
    #[arg(long, value_name = "TIME", value_parser = Duration::from_text)]
    pub(super) stay: Option<Duration>,
    /// How long a person is away on average
    #[arg(long, value_name = "TIME", value_parser = Duration::from_text, default_value = "1h")]
    pub(super) away: Duration,
    /// The longest wait that is acceptable for 99 of 100 cells
    #[arg(long, value_name = "TIME", value_parser = Duration::from_text, default_value = "30s")]
    pub(super) wait: Duration,
    /// Each person keeps a GPU for their whole visit
    #[arg(long)]
    pub(super) exclusive: bool,
    /// List each state of up to 5 people and its probability
    #[arg(long, conflicts_with_all = ["gpus", "exclusive", "wait", "policies", "from_broker", "report"])]
    pub(super) states: bool,
    /// Simulate this many people and GPUs, and compare ways to share them
    #[arg(
        long,
        conflicts_with_all = ["run", "hand_over", "stay", "away", "wait", "exclusive", "from_broker", "report"],
    )]
    pub(super) policies: bool,
    /// GPU times of cells for --policies: parts and their medians
    #[arg(
        long,
        value_name = "PARTS",
        value_parser = Cells::from_text,
        default_value = "88%:700ms,10.5%:15s,1.5%:400s",
        requires = "policies",
    )]
    pub(super) cells: Cells,
    /// Cells that time-share one GPU, for --policies; others wait in the queue (default: all)
    #[arg(long, value_name = "NUMBER", value_parser = count(), requires = "policies")]
    pub(super) slots: Option<u16>,
    /// Time to start a session on another GPU, for --policies
    #[arg(
        long,
        value_name = "TIME",
        value_parser = Duration::from_text,
        default_value = "5s",
        requires = "policies",
    )]
    pub(super) cold: Duration,
    /// GPU memory of a session for --policies
    #[arg(long, value_name = "SIZE", value_parser = Size::from_text, default_value = "4GB", requires = "policies")]
    pub(super) session_memory: Size,
    /// Memory of each GPU for --policies
    #[arg(long, value_name = "SIZE", value_parser = Size::from_text, default_value = "80GB", requires = "policies")]
    pub(super) gpu_memory: Size,
    /// Bytes that move between GPU and host in one second, for --policies
    #[arg(long, value_name = "SIZE", value_parser = Size::from_text, default_value = "25GB", requires = "policies")]
    pub(super) link: Size,
    /// The seed of the simulation, for --policies
    #[arg(
        long,
        value_name = "NUMBER",
        default_value_t = 1,
        requires = "policies"
    )]
    pub(super) seed: u64,
    /// Simulate machines that differ, such as "4 a100 80G, 8 t4 16G": with --users people, or with the cells of the
    /// past (--from-broker)
    #[arg(
        long,
        value_name = "LIST",
        value_parser = MachinesArgument::parse,
        value_delimiter = ',',
        group = "simulated",
        conflicts_with_all = NOT_SIMULATED,
    )]
    pub(super) machines: Vec<MachinesArgument>,
    /// Simulate a pool whose number of machines varies, such as 0-4 or "0-4 a100 80G", or one of the configuration
    /// file, by its name; beside --machines and other pools, if there are any
    #[arg(
        long,
        value_name = "POOL",
        value_parser = PoolArgument::parse,
        group = "simulated",
        conflicts_with_all = NOT_SIMULATED,
    )]
    pub(super) pool: Vec<PoolArgument>,
    /// Groups of people who need particular machines or have other times, such as "50 a100, 20 40G run=5m"
    #[arg(
        long,
        value_name = "LIST",
        value_parser = GroupArgument::parse,
        value_delimiter = ',',
        requires = "simulated",
        conflicts_with = "from_broker",
    )]
    pub(super) groups: Vec<GroupArgument>,
    /// Simulate a lesson of this length that everyone attends, for which pools start machines beforehand
    #[arg(
        long,
        value_name = "TIME",
        value_parser = Duration::from_text,
        requires = "simulated",
        conflicts_with = "from_broker",
    )]
    pub(super) lesson: Option<Duration>,
    /// How long a machine takes to start, for --pool
    #[arg(long, value_name = "TIME", value_parser = Duration::from_text, default_value = "40s", requires = "pool")]
    pub(super) start: Duration,
    /// How long a machine without cells stays, for --pool
    #[arg(long, value_name = "TIME", value_parser = Duration::from_text, default_value = "5m", requires = "pool")]
    pub(super) idle: Duration,
    /// How long a machine may stay, for --pool
    #[arg(long, value_name = "TIME", value_parser = Duration::from_text, default_value = "2h", requires = "pool")]
    pub(super) walltime: Duration,
    /// The time in which all waiting cells should have begun, for --pool
    #[arg(long, value_name = "TIME", value_parser = Duration::from_text, default_value = "60s", requires = "pool")]
    pub(super) target_wait: Duration,
    /// Estimate all values from the broker's history, and predict the course
    #[arg(
        long,
        conflicts_with_all = [
            "users", "edit", "run", "hand_over", "stay", "away", "wait", "exclusive", "latency",
        ],
    )]
    pub(super) from_broker: bool,
    /// Show for each lesson in the timetables of courses whether there are enough GPUs
    #[arg(
        long,
        conflicts_with_all = ["policies", "exclusive", "states", "report", "pool", "from_broker", "latency"],
    )]
    pub(super) timetable: bool,
    /// How many days of history --from-broker uses
    #[arg(
        long,
        value_name = "NUMBER",
        value_parser = value_parser!(u32).range(1..=366),
        default_value_t = 7,
        requires = "from_broker",
    )]
    pub(super) days: u32,
    /// Only the history of this course, for --from-broker
    #[arg(long, value_name = "NAME", requires = "from_broker")]
    pub(super) course: Option<String>,
    /// The output of `baton bench latency --json`, instead of --hand-over and --cold
    #[arg(long, value_name = "FILE")]
    pub(super) latency: Option<PathBuf>,
    /// Write a report with plots, as HTML
    #[arg(long, value_name = "FILE")]
    pub(super) report: Option<PathBuf>,
    /// Print JSON; times are in seconds
    #[arg(long)]
    pub(super) json: bool,
}

impl Plan {
    pub(super) fn gpus(&self) -> usize {
        self.gpus.unwrap_or(1).into()
    }
}

/// A number above zero.
fn count() -> RangedI64ValueParser<u16> {
    value_parser!(u16).range(1..)
}
