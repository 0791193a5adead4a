//! The command line: all commands, and the flags of the settings that each of them takes.
//!
//! The arguments of a command are beside what it does, in `commands`.

use crate::{
    arguments::is_notebook,
    commands::{
        act, ask, bench, config, course, doctor, env, files, grant, install, kernel, login, people,
        plan, pools, program, publish, run, states, status, up,
    },
    settings::{Flags, Setting, flags_of},
};
use baton_gpu_worker::gpu::{sleep, trial};
use clap::{Arg, ArgMatches, FromArgMatches, Subcommand, error::ErrorKind};
use std::{ffi::OsString, path::Path};

#[derive(Subcommand)]
pub(crate) enum Command {
    Status(status::StatusArguments),
    Jobs(ask::Jobs),
    Explain(ask::Explain),
    Cancel(act::Cancel),
    Run(run::RunArguments),
    Logs(run::Logs),
    Fetch(run::Fetch),
    #[command(subcommand, arg_required_else_help = true)]
    Files(files::Files),
    States(states::States),
    #[command(subcommand, arg_required_else_help = true)]
    Env(env::Env),

    Courses(ask::Courses),
    Course(course::CourseArguments),
    Grant(grant::Grant),
    Usage(ask::UsageArguments),
    Hold(act::Hold),
    Release(act::Release),
    Front(act::Front),
    Publish(publish::Publish),
    Audit(act::Audit),
    Plan(Box<plan::Plan>),

    Up(up::Up),
    /// Run the broker: queue, history and dashboard
    Broker,
    /// Run cells on this machine for a broker
    Worker,
    /// Serve the chunks of variables in a process separate from the broker
    Chunks,
    Workers(ask::Workers),
    Drain(act::Drain),
    Resume(act::Resume),
    Pools(pools::Pools),
    #[command(subcommand)]
    People(people::PeopleAction),
    #[command(subcommand)]
    Bench(bench::Bench),

    Login(login::Login),
    Install(install::Install),
    Doctor(doctor::Doctor),
    #[command(subcommand)]
    Config(config::Config),
    Kernel(kernel::KernelHelp),

    #[command(hide = true)]
    Program(program::Program),
    /// Move processes of sessions off the GPU for a worker
    #[command(name = sleep::COMMAND, hide = true)]
    Sleep,
    /// Compute on the GPU for a worker that tests time-sharing
    #[command(name = trial::COMMAND, hide = true)]
    Trial,
}

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

/// A command line that was read.
pub(crate) struct Parsed {
    pub(crate) command: Command,
    /// The settings on the command line.
    pub(crate) flags: Flags,
}

/// Reads the arguments after `baton`. Ends this program if they are wrong, or ask for help.
pub(crate) fn parse(arguments: &[OsString]) -> Parsed {
    let parsed = parse_in_this_order(arguments);
    let Some(arguments) = options_first(arguments, &parsed.command) else {
        return parsed;
    };
    let again = parse_in_this_order(&arguments);
    if words_of(&again.command) != &words_of(&parsed.command)[..1] {
        let what = "A notebook takes no arguments\nhint: give it parameters with -p NAME=VALUE";
        command().error(ErrorKind::UnknownArgument, what).exit();
    }
    again
}

fn parse_in_this_order(arguments: &[OsString]) -> Parsed {
    let words = std::iter::once(OsString::from("baton")).chain(arguments.iter().cloned());
    let matches = command().get_matches_from(words);
    Parsed {
        command: Command::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()),
        flags: flags(&matches),
    }
}

/// Reads the arguments of an earlier `baton run`; `None` if they are of another command.
pub(crate) fn parse_run(arguments: &[OsString]) -> Option<run::RunArguments> {
    match parse(arguments).command {
        Command::Run(run) => Some(run),
        _ => None,
    }
}

/// The program that `baton run` runs, and everything after it.
fn words_of(command: &Command) -> &[OsString] {
    match command {
        Command::Run(run) => &run.words,
        _ => &[],
    }
}

/// Arguments after a script belong to the script, but those after a notebook are options of `baton run`.
fn options_first(arguments: &[OsString], command: &Command) -> Option<Vec<OsString>> {
    let words = words_of(command);
    let (program, behind) = words.split_first()?;
    if behind.is_empty() || !is_notebook(Path::new(program)) {
        return None;
    }
    let before = &arguments[..arguments.len().checked_sub(words.len())?];
    let reordered = before.iter().chain(behind).chain([program]);
    Some(reordered.cloned().collect())
}

/// `baton kernel --help` asks for this program's help only if there is no other argument.
pub(crate) fn asks_for_help(arguments: &[OsString]) -> bool {
    matches!(arguments, [only] if only == "--help" || only == "-h")
}

fn command() -> clap::Command {
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

fn all_commands() -> clap::Command {
    let command = clap::Command::new("baton")
        .about("A class shares GPUs from ordinary Jupyter notebooks")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true);
    with_flags(Command::augment_subcommands(command), "")
}

/// Adds the flags of the settings that a command and its subcommands take.
fn with_flags(command: clap::Command, path: &str) -> clap::Command {
    let with_flags = |sub: clap::Command| {
        let path = format!("{path} {}", sub.get_name()).trim().to_owned();
        with_flags(sub, &path)
    };
    command
        .args(flags_of(path).filter_map(flag))
        .mut_subcommands(with_flags)
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
            .global(true)
            .help(help),
    )
}

/// The values of the settings on the command line, by the key of the setting.
fn flags(matches: &ArgMatches) -> Flags {
    let mut flags = Flags::new();
    let (mut path, mut matches) = (String::new(), matches);
    while let Some((name, of_command)) = matches.subcommand() {
        path = format!("{path} {name}").trim().to_owned();
        matches = of_command;
        for setting in flags_of(&path) {
            let text = matches.get_one::<String>(setting.key).cloned();
            flags.extend(text.map(|text| (setting.key, text)));
        }
    }
    flags
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
        let mut shown: Vec<&str> = shown.map(clap::Command::get_name).collect();
        shown.sort_unstable();
        assert_eq!(listed, shown);
        let help = command().render_help().to_string();
        assert!(
            help.contains("\nCourse staff:\n  courses  List courses"),
            "{help}"
        );
    }

    fn run_arguments(line: &str) -> run::RunArguments {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        parse_run(&words).expect("a line of `baton run`")
    }

    #[test]
    fn everything_after_a_script_is_the_scripts() {
        for script in [
            "s.py -d data",
            "s.py --json",
            "s.py --help",
            "s.py --timeout 60s",
            "s.py --gpu 0",
            "s.py -o x",
            "s.py -- x",
            "s.py --resume last",
            "s.py n.ipynb --json",
        ] {
            let run = run_arguments(&format!("run --detach --in-background=1 {script}"));
            let words: Vec<&str> = script.split(' ').collect();
            assert_eq!(run.words, words);
            assert!(run.detach && !run.json && run.resume.is_none());
        }
    }

    #[test]
    fn options_stand_on_both_sides_of_a_notebook() {
        for line in [
            "run n.ipynb --detach --json",
            "run --json n.ipynb --detach",
            "run --json --detach n.ipynb",
        ] {
            let run = run_arguments(line);
            assert_eq!(run.words, ["n.ipynb"]);
            assert!(run.detach && run.json);
        }
    }

    #[test]
    fn each_argument_has_a_help() {
        fn check(command: &clap::Command) {
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

    #[test]
    fn the_definition_is_consistent() {
        command().debug_assert();
    }
}
