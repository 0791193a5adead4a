//! The command line. Flags for settings come from the table of settings, with their help.

mod actions;
mod env;
mod files;
mod plan;
mod run;

use crate::{
    arguments::{Place, is_notebook},
    settings::{Setting, Value, flags_of},
};
use baton_gpu_worker::gpu::{sleep, trial};
use baton_protocol::address::BrokerAddress;
use clap::{Arg, ArgAction, ArgGroup, ArgMatches, Command, error::ErrorKind, value_parser};
use std::{ffi::OsString, path::PathBuf};

pub(crate) use self::env::ENV;

/// Commands that the package `baton` starts, never a person.
pub(crate) const PROGRAM: &str = "program";
pub(crate) const DETACHED: &str = "detached";
/// A flag that marks a detached service for its own process, and for notebooks that start one.
pub(crate) const IN_BACKGROUND: &str = "in-background";

/// The commands in the help, by what they are for.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "Your cells and jobs",
        &[
            "status", "jobs", "explain", "cancel", "run", "logs", "fetch", "files", "states", "env",
        ],
    ),
    (
        "Course staff",
        &[
            "courses", "course", "grant", "usage", "hold", "release", "front", "publish", "audit",
            "plan",
        ],
    ),
    (
        "Services",
        &[
            "up", "broker", "worker", "chunks", "workers", "drain", "resume", "pools", "people",
            "bench",
        ],
    ),
    (
        "Set-up",
        &["login", "install", "doctor", "config", "kernel"],
    ),
];

pub(crate) fn command() -> Command {
    let command = all_commands();
    let groups = GROUPS.map(|(heading, names)| {
        let lines = names.iter().filter_map(|name| {
            let about = command.find_subcommand(name)?.get_about()?;
            Some(format!("  {name:<9}{about}\n"))
        });
        format!("{heading}:\n{}", lines.collect::<String>())
    });
    command
        .help_template("{about}\n\n{usage-heading} {usage}{after-help}\n\nOptions:\n{options}")
        .after_help(format!(
            "{}\n`baton help COMMAND` explains a command",
            groups.join("\n")
        ))
}

fn all_commands() -> Command {
    Command::new("baton")
        .about("A class shares GPUs from ordinary Jupyter notebooks")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(kernel())
        .subcommand(with_flags(
            Command::new("up")
                .about("Run broker and worker for this user on this machine")
                .arg(switch(
                    DETACHED,
                    "Start in the background, print where it runs, and return",
                ))
                .arg(
                    switch(
                        IN_BACKGROUND,
                        "Detach from the terminal and log to a file in the runtime folder",
                    )
                    .hide(true),
                ),
        ))
        .subcommand(with_flags(
            Command::new("broker").about("Run the broker: queue, history and dashboard"),
        ))
        .subcommand(with_flags(Command::new("chunks").about(
            "Serve the chunks of variables in a process separate from the broker",
        )))
        .subcommand(with_flags(
            Command::new("worker").about("Run cells on this machine for a broker"),
        ))
        .subcommand(
            Command::new(PROGRAM)
                .about("Run blocks under `with gpu:` for the Python program that started this")
                .arg(
                    Arg::new("name")
                        .long("name")
                        .value_name("NAME")
                        .help("The program's name, for people"),
                )
                .arg(
                    Arg::new("kind")
                        .long("kind")
                        .value_name("KIND")
                        .value_parser(["map"])
                        .help("What all of its jobs run"),
                )
                .hide(true),
        )
        .subcommand(
            Command::new(sleep::COMMAND)
                .about("Move processes of sessions off the GPU for a worker")
                .hide(true),
        )
        .subcommand(
            Command::new(trial::COMMAND)
                .about("Compute on the GPU for a worker that tests time-sharing")
                .hide(true),
        )
        .subcommand(
            Command::new("config")
                .about("Show or check the configuration")
                .subcommand_required(true)
                .subcommand(
                    Command::new("check")
                        .about("Check a configuration file, without starting anything")
                        .arg(
                            Arg::new("file")
                                .value_name("FILE")
                                .value_parser(value_parser!(PathBuf))
                                .help("The file; without it, the files in effect"),
                        ),
                )
                .subcommand(
                    Command::new("show").about("Print every setting, its value and its origin"),
                )
                .subcommand(Command::new("reference").about("Print the reference of all settings")),
        )
        .subcommand(login())
        .subcommand(install())
        .subcommand(people())
        .subcommand(env::env())
        .subcommand(files::files())
        .subcommand(with_flags(
            Command::new("doctor")
                .about("Check this machine and explain how to fix problems")
                .arg(python_argument("The Python in which notebooks run"))
                .arg(switch("json", "Print JSON")),
        ))
        .subcommand(with_flags(
            Command::new("status")
                .about("Show whether the broker works and what it runs")
                .arg(switch("json", "Print JSON")),
        ))
        .subcommands(questions())
        .subcommands(actions::actions())
        .subcommand(actions::grant())
        .subcommand(actions::publish())
        .subcommands([run::run(), run::logs(), run::fetch()])
        .subcommand(pools())
        .subcommand(states())
        .subcommand(plan::plan())
        .subcommand(plan::bench())
}

/// Reads the command line.
pub(crate) fn matches(arguments: &[OsString]) -> ArgMatches {
    let words = std::iter::once(OsString::from("baton")).chain(arguments.iter().cloned());
    let matches = command().get_matches_from(words);
    let Some(words) = options_first(arguments, &matches) else {
        return matches;
    };
    let again = command().get_matches_from(words);
    let program = |matches: &ArgMatches| {
        let run = matches.subcommand_matches("run")?;
        run.get_one::<PathBuf>("program").cloned()
    };
    if program(&again) != program(&matches) {
        let what = "A notebook takes no arguments\nhint: give it parameters with -p NAME=VALUE";
        command().error(ErrorKind::UnknownArgument, what).exit();
    }
    again
}

/// Arguments after a script belong to the script, but those after a notebook are options of `baton run`.
fn options_first(arguments: &[OsString], matches: &ArgMatches) -> Option<Vec<OsString>> {
    let run = matches.subcommand_matches("run")?;
    let program = run
        .get_one::<PathBuf>("program")
        .filter(|program| is_notebook(program))?;
    let behind = run.get_many::<String>("arguments")?.len();
    let (before, behind) = arguments.split_at(arguments.len().checked_sub(behind)?);
    let (_, before) = before.split_last()?;
    let words = ["baton".into()].into_iter();
    let words = words
        .chain(before.iter().cloned())
        .chain(behind.iter().cloned());
    Some(words.chain([program.into()]).collect())
}

/// The commands that query the broker's API.
fn questions() -> [Command; 5] {
    let filter = |name: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name("NAME").help(help)
    };
    let states = ["queued", "assigned", "started", "finished", "unfinished"];
    let person = || filter("person", "Only for this person");
    let course = || filter("course", "Only for this course");
    let questions = [
        Command::new("jobs")
            .about("List jobs, newest first")
            .arg(
                Arg::new("state")
                    .long("state")
                    .value_name("STATE")
                    .value_parser(states)
                    .help("Only in this state"),
            )
            .args([person(), course()])
            .arg(Arg::new("group").long("group").value_name("GROUP").help(
                "Only the jobs of this group, by its last digits, as `baton run` prints them",
            ))
            .arg(number("limit", "20", "The largest number of entries")),
        Command::new("workers").about("List workers and what they run"),
        Command::new("courses").about("List courses and their limits"),
        Command::new("usage")
            .about("Show how much GPU time each person used")
            .args([person(), course()])
            .arg(number("days", "7", "For this many days, including today")),
        Command::new("explain")
            .about("Explain why a job is where it is")
            .arg(job()),
    ];
    questions.map(|question| with_flags(question.arg(switch("json", "Print JSON"))))
}

fn pools() -> Command {
    let pool = || {
        Arg::new("pool")
            .value_name("POOL")
            .required(true)
            .help("The name of the pool in the broker's settings")
    };
    let json = || switch("json", "Print JSON");
    let pools = Command::new("pools")
        .about("List pools and what became of the workers that they requested")
        .arg(json())
        .subcommand(
            Command::new("resume")
                .about("Let a paused pool start workers again")
                .args([pool(), json()]),
        )
        .subcommand(
            Command::new("test")
                .about(
                    "Show the commands of a pool and whether they can be run, without running them",
                )
                .args([pool(), json()]),
        );
    with_flags(pools)
}

fn states() -> Command {
    let states = Command::new("states")
        .about("List your saved states of notebooks (%gpu_save)")
        .arg(
            Arg::new("course")
                .long("course")
                .value_name("COURSE")
                .help("The course; not needed if you are in only one"),
        )
        .arg(
            Arg::new("delete")
                .long("delete")
                .value_name("NAME")
                .help("Delete this state"),
        )
        .arg(switch("json", "Print JSON"));
    with_flags(states)
}

/// A job by the end of its id.
fn job() -> Arg {
    let digits = |text: &str| {
        let is_end = !text.is_empty()
            && text
                .chars()
                .all(|one| one.is_ascii_hexdigit() || one == '-');
        match is_end {
            true => Ok(text.to_owned()),
            false => Err(
                "the last digits of a job are expected, such as 7f3a: `baton jobs` lists the jobs",
            ),
        }
    };
    Arg::new("job")
        .value_name("JOB")
        .value_parser(digits)
        .required(true)
        .help("The last digits of the job, as errors, pages and `baton jobs` show them")
}

fn number(name: &'static str, default: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name("NUMBER")
        .value_parser(value_parser!(u32).range(1..))
        .default_value(default)
        .help(help)
}

/// Only for the help: the arguments after `kernel` are parsed in `commands::kernel`.
fn kernel() -> Command {
    Command::new("kernel")
        .about("Run as a Jupyter kernel; started by Jupyter")
        .arg(
            Arg::new("connection-file")
                .short('f')
                .value_name("FILE")
                .help("The connection file that Jupyter wrote"),
        )
        .arg(python_argument("The Python of the notebook"))
        .arg(
            Arg::new("arguments")
                .num_args(0..)
                .value_name("ARGUMENTS")
                .help("All other arguments go to the notebook kernel unchanged"),
        )
}

/// `baton kernel --help` asks for this program's help only if there is no other argument.
pub(crate) fn asks_for_help(arguments: &[OsString]) -> bool {
    matches!(arguments, [only] if only == "--help" || only == "-h")
}

fn login() -> Command {
    let address = Arg::new("address")
        .value_name("ADDRESS")
        .value_parser(BrokerAddress::from_text)
        .required(true)
        .help("The address of the broker, such as https://gpu.example.org:8470");
    let login = Command::new("login")
        .about("Store your token for the broker of a course, after asking for it and checking it");
    with_flags(login.arg(address))
}

fn install() -> Command {
    Command::new("install")
        .about("Install the kernel \"Python (shared GPU)\" for Jupyter")
        .arg(switch("user", "For this user (the default)"))
        .arg(switch("system", "For all users of this machine"))
        .arg(switch(
            "sys-prefix",
            "For the environment of the Python of the notebooks",
        ))
        .arg(path_argument(
            "prefix",
            "PREFIX",
            "Below PREFIX/share/jupyter",
        ))
        .group(ArgGroup::new("place").args(["user", "system", "sys-prefix", "prefix"]))
        .arg(python_argument("The Python in which notebooks run"))
}

fn people() -> Command {
    let courses = |name: &'static str, help: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("COURSE")
            .action(ArgAction::Append)
            .help(help)
    };
    let name = || {
        Arg::new("name")
            .value_name("NAME")
            .required(true)
            .help("The name of the person or worker")
    };
    let expires = || {
        Arg::new("expires")
            .long("expires")
            .value_name("WHEN")
            .help("When the token expires: 30d, or a time such as 2027-02-28T18:00:00Z")
    };
    let add = Command::new("add")
        .about("Make a token for a person or a worker, and print it")
        .arg(name())
        .arg(courses("course", "A course that the person takes"))
        .arg(courses("staff-of", "A course that the person is staff of"))
        .arg(switch(
            "admin",
            "The person is an admin and can see everything",
        ))
        .arg(
            switch("worker", "The token is for a worker, not for a person")
                .conflicts_with_all(["course", "staff-of", "admin"]),
        )
        .arg(expires());
    let import = Command::new("import")
        .about("Add all people of a roster, and print their tokens as CSV")
        .arg(
            Arg::new("roster")
                .value_name("ROSTER.csv")
                .required(true)
                .value_parser(value_parser!(PathBuf))
                .help("Its columns are name, course and role (student or staff)"),
        )
        .arg(
            Arg::new("course")
                .long("course")
                .value_name("COURSE")
                .help("The course for lines without a course"),
        )
        .arg(expires());
    let list = Command::new("list").about("List people and workers with their roles");
    let remove = Command::new("remove")
        .about("Remove people or workers: their tokens stop working")
        .arg(name().num_args(1..));
    let rotate = Command::new("rotate")
        .about("Replace the token of a person or a worker, and print the new one")
        .arg(name())
        .arg(expires());
    let with_file = |command: Command| command.args(flags_of("people").filter_map(flag));
    Command::new("people")
        .about("Manage who may use the broker, without a Hub")
        .subcommand_required(true)
        .subcommands([add, import, list, remove, rotate].map(with_file))
}

pub(crate) fn place(matches: &ArgMatches) -> Place {
    let python = python(matches);
    if let Some(prefix) = matches.get_one::<PathBuf>("prefix") {
        let prefix = prefix.clone();
        return Place::Prefix { prefix, python };
    }
    if matches.get_flag("system") {
        return Place::System { python };
    }
    if matches.get_flag("sys-prefix") {
        return Place::SysPrefix { python };
    }
    Place::User { python }
}

pub(crate) fn python(matches: &ArgMatches) -> Option<PathBuf> {
    matches.get_one::<PathBuf>("python").cloned()
}

fn python_argument(help: &'static str) -> Arg {
    path_argument("python", "PYTHON", help)
}

fn path_argument(name: &'static str, value: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .value_name(value)
        .value_parser(value_parser!(PathBuf))
        .help(help)
}

fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name)
        .long(name)
        .action(ArgAction::SetTrue)
        .help(help)
}

fn with_flags(command: Command) -> Command {
    let name = command.get_name().to_owned();
    command.args(flags_of(&name).filter_map(flag))
}

fn flag(setting: &'static Setting) -> Option<Arg> {
    let help = format!(
        "{}\n[default: {}] [env: {}]",
        setting.help,
        setting.default.described(),
        setting.variable()
    );
    let flag = setting.flag?;
    Some(
        Arg::new(setting.key)
            .long(flag)
            .value_name("VALUE")
            .help(help),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_lists_each_command_once() {
        let mut listed: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, names)| *names)
            .copied()
            .collect();
        listed.sort_unstable();
        let all = all_commands();
        let shown = all
            .get_subcommands()
            .filter(|command| !command.is_hide_set());
        let mut shown: Vec<&str> = shown.map(Command::get_name).collect();
        shown.sort_unstable();
        assert_eq!(listed, shown);
        let help = command().render_help().to_string();
        assert!(
            help.contains("\nCourse staff:\n  courses  List courses"),
            "{help}"
        );
    }

    #[test]
    fn each_argument_has_a_help() {
        fn check(command: &Command) {
            for argument in command
                .get_arguments()
                .filter(|argument| !argument.is_hide_set())
            {
                let (command, argument_name) = (command.get_name(), argument.get_id());
                assert!(argument.get_help().is_some(), "{command}: {argument_name}");
            }
            command.get_subcommands().for_each(check);
        }
        check(&command());
    }
}
