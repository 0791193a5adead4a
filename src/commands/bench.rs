//! `baton bench latency`: the time that a `%%gpu` cell adds on this installation, measured in real notebooks.

use crate::{
    cli,
    python::default_python,
    settings::{Settings, Size},
};
use anyhow::Context;
use clap::ArgMatches;
use std::{
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

/// Replaces this program with the Python that measures. Its kernels find the broker by the same settings.
pub(crate) fn main(settings: &Settings, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let python = cli::python(matches).unwrap_or_else(default_python);
    let most: &Size = matches.get_one("most").expect("it has a default");
    let runs: &u16 = matches.get_one("runs").expect("it has a default");
    let program = std::env::current_exe().context("Failed to find this program")?;
    let mut command = Command::new(&python);
    command
        .args(["-P", "-m", "baton_shim.notebook.latency"])
        .args([most.bytes.to_string(), runs.to_string()])
        .args(matches.get_flag("json").then_some("--json"))
        .env("BATON_BINARY", program)
        .env("BATON_RUNTIME_FOLDER", &settings.runtime_folder);
    if let Some(address) = &settings.broker_address {
        command.env("BATON_BROKER_ADDRESS", address.to_string());
    }
    if let Some(file) = &settings.token_file {
        command.env("BATON_TOKEN_FILE", file);
    }
    Err(command.exec()).with_context(|| format!("Failed to start {}", python.display()))
}
