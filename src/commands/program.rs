//! `baton program`: the command that the package `baton` starts in a plain Python program.

use super::kernel::Choices;
use crate::{runtime, settings::ProcessEnvironment};
use baton_kernel_proxy::ProgramConfig;
use baton_protocol::JobKind;
use clap::Args;
use std::{process::ExitCode, time::Duration};
use tokio::runtime::Builder;

/// The limit for reads of the program's memory that are still running at the end.
const END: Duration = Duration::from_secs(1);

/// Run blocks under `with gpu:` for the Python program that started this
#[derive(Args)]
pub(crate) struct Program {
    /// The program's name, for people
    #[arg(long, default_value = "program")]
    name: String,
    /// What all of its jobs run
    #[arg(long, value_parser = ["map"])]
    kind: Option<String>,
}

pub(crate) fn main(process: &ProcessEnvironment, of: &Program) -> anyhow::Result<ExitCode> {
    let choices = Choices::read(process).unwrap_or_else(|error| Choices::misconfigured(&error));
    let config = ProgramConfig {
        name: of.name.clone(),
        kind: of.kind.as_deref().and_then(JobKind::from_name),
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
