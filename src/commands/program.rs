//! `baton program`: the command that the package `baton` starts in a plain Python program.

use super::kernel::Choices;
use crate::{runtime, settings::Surroundings};
use baton_kernel_proxy::ProgramConfig;
use baton_protocol::JobKind;
use clap::ArgMatches;
use std::{process::ExitCode, time::Duration};
use tokio::runtime::Builder;

/// The limit for reads of the program's memory that are still running at the end.
const END: Duration = Duration::from_secs(1);

pub(crate) fn main(surroundings: &Surroundings, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let choices =
        Choices::read(surroundings).unwrap_or_else(|error| Choices::misconfigured(&error));
    let config = ProgramConfig {
        name: matches
            .get_one::<String>("name")
            .cloned()
            .unwrap_or_else(|| "program".to_owned()),
        kind: matches
            .get_one::<String>("kind")
            .and_then(|kind| JobKind::from_name(kind)),
        broker: choices.broker,
        course: choices.course,
        priority: choices.priority,
        transport: choices.transport,
        patience: choices.patience,
        trash: choices.trash,
    };
    let runtime = runtime::start(Builder::new_current_thread())?;
    runtime.block_on(baton_kernel_proxy::run_program(config))?;
    runtime.shutdown_timeout(END);
    Ok(ExitCode::SUCCESS)
}
