//! The command `baton`: reads the command line, sets up logging, calls one crate's `run`.

// An ordinary `println!` panics if its reader has ended.
#![warn(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod output;

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
mod status_line;

use baton_gpu_worker::gpu::{sleep, trial};
use baton_humanize::ERROR_PREFIX;
use cli::{Command, Parsed};
use commands::run::{RunError, with_exit_code};
use settings::{ProcessEnvironment, Settings};
use std::{ffi::OsString, process::ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    let process = ProcessEnvironment::here();
    // All arguments after `kernel` are for the notebook kernel, so none of them may be refused.
    let result = match arguments.split_first() {
        Some((command, rest)) if command == "kernel" && !cli::asks_for_help(rest) => {
            commands::kernel::main(&process, rest)
        }
        _ => run(&process, cli::parse(&arguments)),
    };
    output::or_missing(result).unwrap_or_else(|error| {
        report(&error);
        ExitCode::from(error.downcast_ref().map_or(1, RunError::exit_code))
    })
}

fn run(process: &ProcessEnvironment, parsed: Parsed) -> anyhow::Result<ExitCode> {
    let Parsed { command, flags } = parsed;
    match command {
        // It logs once it has left the terminal.
        Command::Up(_) => {}
        Command::Broker | Command::Chunks | Command::Worker => {
            logging::to_stderr(process, "info");
        }
        // The Python program shows errors itself.
        Command::Program(_) => logging::to_stderr(process, "error"),
        _ => logging::to_stderr(process, "warn"),
    }
    if matches!(
        command,
        Command::Up(_) | Command::Broker | Command::Chunks | Command::Worker
    ) {
        service::hide_memory()?;
    }
    let settings = || Settings::read(process, flags.clone());
    match command {
        Command::Up(of) => commands::up::main(process, &settings()?, &of),
        Command::Broker => commands::broker::main(&settings()?),
        Command::Chunks => commands::chunks::main(&settings()?),
        Command::Worker => commands::worker::main(&settings()?),
        Command::Config(of) => commands::config::main(process, &of),
        Command::Login(of) => commands::login::main(process, &settings()?, &of),
        Command::Install(of) => commands::install::main(process, &of),
        Command::Doctor(of) => commands::doctor::main(process, settings(), &of),
        Command::Env(of) => commands::env::main(process, &settings()?, &of),
        Command::People(of) => commands::people::main(&settings()?, &of),
        Command::Status(of) => commands::status::main(&settings()?, &of),
        Command::Jobs(of) => commands::ask::jobs(&settings()?, &of),
        Command::Workers(of) => commands::ask::workers(&settings()?, &of),
        Command::Courses(of) => commands::ask::courses(&settings()?, &of),
        Command::Usage(of) => commands::ask::usage(&settings()?, &of),
        Command::Explain(of) => commands::ask::explain(&settings()?, &of),
        Command::Cancel(of) => commands::act::cancel(&settings()?, &of),
        Command::Hold(of) => commands::act::hold(&settings()?, &of),
        Command::Release(of) => commands::act::release(&settings()?, &of),
        Command::Front(of) => commands::act::front(&settings()?, &of),
        Command::Drain(of) => commands::act::drain(&settings()?, &of),
        Command::Resume(of) => commands::act::resume(&settings()?, &of),
        Command::Audit(of) => commands::act::audit(&settings()?, &of),
        Command::Course(of) => commands::course::main(&settings()?, &of),
        Command::Run(of) => with_exit_code(settings().map_err(Into::into), |settings| {
            commands::run::main(settings, &of, cli::parse_run)
        }),
        Command::Logs(of) => with_exit_code(settings().map_err(Into::into), |settings| {
            commands::run::logs(settings, &of)
        }),
        Command::Fetch(of) => with_exit_code(settings().map_err(Into::into), |settings| {
            commands::run::fetch(settings, &of)
        }),
        Command::Pools(of) => commands::pools::main(&settings()?, &of),
        Command::States(of) => commands::states::main(&settings()?, &of),
        Command::Grant(of) => commands::grant::main(&settings()?, &of),
        Command::Publish(of) => commands::publish::main(&settings()?, &of),
        Command::Files(of) => commands::files::main(&settings()?, &of),
        Command::Plan(of) => commands::plan::main(&of, settings),
        Command::Bench(of) => commands::bench::main(&settings()?, &of),
        Command::Program(of) => commands::program::main(process, &of),
        Command::Kernel(_) => anyhow::bail!("Jupyter starts the kernel"),
        Command::Sleep => {
            sleep::run_program()?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Trial => {
            trial::run_program()?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn report(error: &anyhow::Error) {
    errln!("{ERROR_PREFIX}{error}");
    for cause in error.chain().skip(1) {
        errln!("  because: {cause}");
    }
}
