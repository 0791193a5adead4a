//! `baton bench latency`: the time that a `%%gpu` cell adds on this installation, measured in real notebooks.

use crate::{
    python::default_python,
    settings::{Settings, Size, Value},
};
use anyhow::Context;
use clap::{Subcommand, value_parser};
use std::{
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Command, ExitCode},
};

/// Measure this installation
#[derive(Subcommand)]
pub(crate) enum Bench {
    /// Measure what a %%gpu cell adds to an ordinary one, with real notebooks
    Latency {
        /// The largest data that a cell touches
        #[arg(long, value_name = "SIZE", value_parser = Size::from_text, default_value = "1GB")]
        most: Size,
        /// How many times a warm cell runs; medians are printed
        #[arg(long, value_name = "NUMBER", value_parser = value_parser!(u16).range(1..), default_value_t = 5)]
        runs: u16,
        /// The Python in which notebooks run
        #[arg(long)]
        python: Option<PathBuf>,
        /// Print JSON; times are in seconds
        #[arg(long)]
        json: bool,
    },
}

/// Replaces this program with the Python that measures. Its kernels find the broker by the same settings.
pub(crate) fn main(settings: &Settings, of: &Bench) -> anyhow::Result<ExitCode> {
    let Bench::Latency {
        most,
        runs,
        python,
        json,
    } = of;
    let python = python.clone().unwrap_or_else(default_python);
    let program = std::env::current_exe().context("Failed to find this program")?;
    let mut command = Command::new(&python);
    command
        .args(["-P", "-m", "baton_shim.notebook.latency"])
        .args([most.bytes.to_string(), runs.to_string()])
        .args(json.then_some("--json"))
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
