//! The arguments of `baton env`.

use super::{flag, switch};
use crate::settings::flags_of;
use clap::{Arg, Command};

/// The command whose settings all of its subcommands accept.
pub(crate) const ENV: &str = "env";

pub(super) fn env() -> Command {
    let with_settings = |command: Command| command.args(flags_of(ENV).filter_map(flag));
    let list = Command::new("list")
        .about("List the environments of courses, and which of them are installed here")
        .arg(switch("json", "Print JSON"));
    let sync = Command::new("sync")
        .about("Install the environment of a course for notebooks here")
        .long_about(
            "Install the environment of a course for notebooks here, from the same lock as on the workers, and the \
             kernel \"Python (shared GPU) - NAME\", which uses it.\n\n\
             If both are up to date, nothing changes.",
        )
        .arg(
            Arg::new("name")
                .value_name("NAME")
                .help("The environment\n[default: that of your course]"),
        )
        .arg(switch(
            "check",
            "Change nothing, and print what differs; the exit code is 1 if something does",
        ));
    Command::new(ENV)
        .about("Install the environments of courses beside notebooks")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommands([list, sync].map(with_settings))
}
