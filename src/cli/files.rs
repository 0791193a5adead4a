//! The arguments of `baton files`.

use super::{path_argument, switch};
use clap::{Arg, Command, value_parser};
use std::path::PathBuf;

pub(super) fn files() -> Command {
    let folder = || {
        path_argument(
            "folder",
            "FOLDER",
            "The notebook's folder\n[default: this folder, or the nearest one above it with a trash]",
        )
    };
    Command::new("files")
        .about("Restore files that %%gpu cells deleted or replaced")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("list")
                .about("List the files that can be restored, newest first")
                .arg(folder())
                .arg(switch("json", "Print JSON")),
        )
        .subcommand(
            Command::new("restore")
                .about("Restore files")
                .long_about(
                    "Restore files.\n\n\
                     With PATH, restore the newest version of that file, or of every file in that folder. What \
                     is there now goes to the trash.\n\n\
                     Without PATH, restore every file that was deleted and is still missing.",
                )
                .arg(
                    Arg::new("paths")
                        .value_name("PATH")
                        .num_args(0..)
                        .value_parser(value_parser!(PathBuf))
                        .help("A file or a folder, as `baton files list` shows it"),
                )
                .arg(folder()),
        )
}
