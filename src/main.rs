//! The command `baton`: reads the command line, sets up logging, calls one crate's `run`.

mod arguments;
mod cli;
mod commands;
mod logging;
mod notify;
mod python;
mod runtime;
mod service;
mod settings;
mod signals;

use baton_gpu_worker::gpu::{sleep, trial};
use clap::ArgMatches;
use settings::{Settings, Surroundings};
use std::{collections::BTreeMap, ffi::OsString, process::ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let surroundings = Surroundings::here();
    // All arguments after `kernel` are for the notebook kernel, so none of them may be refused.
    let result = match arguments.split_first() {
        Some((command, rest)) if command == "kernel" && !cli::asks_for_help(rest) => {
            commands::kernel::main(&surroundings, rest)
        }
        _ => run(&surroundings, &cli::matches(&arguments)),
    };
    result.unwrap_or_else(|error| {
        report(&error);
        ExitCode::FAILURE
    })
}

fn run(surroundings: &Surroundings, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let Some((command, matches)) = matches.subcommand() else {
        return Ok(ExitCode::FAILURE);
    };
    if command != "up" {
        let default = match command {
            "broker" | "chunks" | "worker" => "info",
            // The Python program shows errors itself.
            cli::PROGRAM => "error",
            _ => "warn",
        };
        logging::to_stderr(surroundings, default);
    }
    if matches!(command, "up" | "broker" | "chunks" | "worker") {
        service::hide_memory()?;
    }
    let settings = || Settings::read(surroundings, flags(command, matches));
    match command {
        "up" if matches.get_flag(cli::DETACHED) => commands::up::start(&settings()?),
        "up" => {
            let in_background = matches.get_flag(cli::IN_BACKGROUND);
            commands::up::main(surroundings, &settings()?, in_background)
        }
        "broker" => commands::broker::main(&settings()?),
        "chunks" => commands::chunks::main(&settings()?),
        "worker" => commands::worker::main(&settings()?),
        "config" => commands::config::main(surroundings, matches),
        "login" => commands::login::main(surroundings, &settings()?, matches),
        "install" => commands::install::main(surroundings, &cli::place(matches)),
        "doctor" => commands::doctor::main(
            surroundings,
            settings(),
            cli::python(matches),
            matches.get_flag("json"),
        ),
        cli::ENV => match matches.subcommand() {
            Some((command, matches)) => {
                let settings = Settings::read(surroundings, flags(cli::ENV, matches))?;
                commands::env::main(surroundings, &settings, command, matches)
            }
            None => Ok(ExitCode::FAILURE),
        },
        "people" => match matches.subcommand() {
            Some((command, matches)) => {
                let flags = flags("people", matches);
                let settings = Settings::read(surroundings, flags)?;
                commands::people::main(&settings, command, matches)
            }
            None => Ok(ExitCode::FAILURE),
        },
        "jobs" | "workers" | "courses" | "usage" | "explain" => {
            commands::ask::main(&settings()?, command, matches)
        }
        "cancel" | "hold" | "release" | "front" | "drain" | "resume" | "course" | "audit" => {
            commands::act::main(&settings()?, command, matches)
        }
        "run" => commands::run::main(&settings()?, matches),
        "logs" => commands::run::logs(&settings()?, matches),
        "fetch" => commands::run::fetch(&settings()?, matches),
        "pools" => commands::pools::main(&settings()?, matches),
        "states" => commands::states::main(&settings()?, matches),
        "grant" => commands::grant::main(&settings()?, matches),
        "publish" => commands::publish::main(&settings()?, matches),
        "plan" => commands::plan::main(matches, settings),
        "bench" => match matches.subcommand() {
            Some((_, matches)) => {
                let flags = flags("bench latency", matches);
                let settings = Settings::read(surroundings, flags)?;
                commands::bench::main(&settings, matches)
            }
            None => Ok(ExitCode::FAILURE),
        },
        sleep::COMMAND => {
            sleep::run_program()?;
            Ok(ExitCode::SUCCESS)
        }
        trial::COMMAND => {
            trial::run_program()?;
            Ok(ExitCode::SUCCESS)
        }
        cli::PROGRAM => commands::program::main(surroundings, matches),
        "files" => commands::files::main(&settings()?, matches),
        "status" => commands::status::main(&settings()?, matches),
        other => anyhow::bail!("There is no command {other}"),
    }
}

/// The values from the command line, by the key of the setting.
fn flags(command: &str, matches: &ArgMatches) -> BTreeMap<&'static str, String> {
    settings::flags_of(command)
        .filter_map(|setting| {
            let text = matches.get_one::<String>(setting.key)?;
            Some((setting.key, text.clone()))
        })
        .collect()
}

fn report(error: &anyhow::Error) {
    eprintln!("Error: {error}");
    for cause in error.chain().skip(1) {
        eprintln!("  because: {cause}");
    }
}
