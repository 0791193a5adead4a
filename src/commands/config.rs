//! `baton config`: the current configuration, and all settings.

use super::{broker, worker};
use crate::settings::{self, CONFIGURATION_VARIABLE, Flags, ProcessEnvironment, Settings};
use anyhow::Context;
use baton_broker::PoolSettings;
use clap::Subcommand;
use std::{path::PathBuf, process::ExitCode};

/// Show or check the configuration
#[derive(Subcommand)]
pub(crate) enum Config {
    /// Check a configuration file, without starting anything
    Check {
        /// The file; without it, the files in effect and the environment
        file: Option<PathBuf>,
    },
    /// Print every setting, its value and its origin
    Show,
    /// Print the reference of all settings
    Reference,
}

pub(crate) fn main(process: &ProcessEnvironment, of: &Config) -> anyhow::Result<ExitCode> {
    match of {
        Config::Check { file } => check(process, file.as_ref())?,
        Config::Show => show(process)?,
        Config::Reference => out!("{}", settings::reference()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks everything that can be wrong before a program runs. Files named by settings are not
/// checked: they may be on other machines.
fn check(process: &ProcessEnvironment, file: Option<&PathBuf>) -> anyhow::Result<()> {
    // A variable would hide what a file says.
    let mut of_files = process.clone();
    for variable in settings::variables() {
        of_files.environment.remove(&variable);
    }
    if let Some(file) = file {
        let name = CONFIGURATION_VARIABLE.to_owned();
        let path = file.display().to_string();
        of_files.environment.insert(name, path);
    }
    check_values(&of_files)?;
    if file.is_none() {
        check_values(process)?;
    }
    outln!("The settings are valid");
    Ok(())
}

fn check_values(process: &ProcessEnvironment) -> anyhow::Result<()> {
    let settings = Settings::read(process, Flags::new())?;
    PoolSettings::read(&settings.pool.0).context("The settings of a pool are wrong")?;
    broker::tls_files(&settings)?;
    broker::check_groups(&settings)?;
    worker::check_end(&settings)?;
    Ok(())
}

fn show(process: &ProcessEnvironment) -> anyhow::Result<()> {
    let shown = settings::show(process)?;
    let widest = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or_default();
    let key_width = widest(&mut shown.iter().map(|setting| setting.key.len()));
    let value_width = widest(&mut shown.iter().map(|setting| setting.value.chars().count()));
    for setting in shown {
        outln!(
            "{:key_width$}  {:value_width$}  {}",
            setting.key,
            setting.value,
            setting.origin
        );
    }
    Ok(())
}
