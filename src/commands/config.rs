//! `baton config`: what is configured, and what can be.

use std::process::ExitCode;

use clap::ArgMatches;

use crate::settings::{self, Surroundings};

pub(crate) fn main(surroundings: &Surroundings, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    match matches.subcommand_name() {
        Some("reference") => print!("{}", settings::reference()),
        _ => show(surroundings)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show(surroundings: &Surroundings) -> anyhow::Result<()> {
    let shown = settings::show(surroundings)?;
    let widest = |texts: &mut dyn Iterator<Item = usize>| texts.max().unwrap_or_default();
    let key_width = widest(&mut shown.iter().map(|setting| setting.key.len()));
    let value_width = widest(&mut shown.iter().map(|setting| setting.value.chars().count()));
    for setting in shown {
        println!(
            "{:key_width$}  {:value_width$}  {}",
            setting.key, setting.value, setting.origin
        );
    }
    Ok(())
}
