//! `baton doctor`: each check is a sentence, and each problem comes with its fix.

mod machine;
mod notebooks;
mod reach;
mod worker;

use crate::{
    python,
    settings::{ProcessEnvironment, Settings, SettingsError},
};
use clap::Args;
use serde::Serialize;
use std::{path::PathBuf, process::ExitCode};

/// What a check found.
pub(crate) enum Finding {
    Good(String),
    Wrong { what: String, fix: String },
}

impl Finding {
    fn wrong(what: impl Into<String>, fix: impl Into<String>) -> Self {
        let (what, fix) = (what.into(), fix.into());
        Self::Wrong { what, fix }
    }
}

/// As JSON.
#[derive(Serialize)]
struct Check<'a> {
    ok: bool,
    what: &'a str,
    fix: Option<&'a str>,
}

impl<'a> From<&'a Finding> for Check<'a> {
    fn from(finding: &'a Finding) -> Self {
        let (what, fix) = match finding {
            Finding::Good(what) => (what, None),
            Finding::Wrong { what, fix } => (what, Some(fix.as_str())),
        };
        let ok = fix.is_none();
        Self { ok, what, fix }
    }
}

/// Check this machine and explain how to fix problems
#[derive(Args)]
pub(crate) struct Doctor {
    /// The Python in which notebooks run
    #[arg(long)]
    python: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(
    process: &ProcessEnvironment,
    settings: Result<Settings, SettingsError>,
    of: &Doctor,
) -> anyhow::Result<ExitCode> {
    let findings = findings(process, settings, of.python.clone());
    let checks: Vec<Check<'_>> = findings.iter().map(Check::from).collect();
    match of.json {
        true => outln!("{}", serde_json::to_string_pretty(&checks)?),
        false => checks.iter().for_each(print),
    }
    Ok(match checks.iter().all(|check| check.ok) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn findings(
    process: &ProcessEnvironment,
    settings: Result<Settings, SettingsError>,
    python: Option<PathBuf>,
) -> Vec<Finding> {
    let python = python.unwrap_or_else(python::default_python);
    let mut findings = notebooks::check(process, &python);
    findings.push(machine::memory());
    match settings {
        Ok(settings) => {
            findings.push(Finding::Good("The configuration is valid".to_owned()));
            findings.push(machine::runtime_folder(&settings));
            findings.extend(machine::disks(&settings));
            findings.extend(worker::check(&settings, &python));
            findings.push(reach::broker(&settings));
            findings.extend(reach::object_store(&settings));
        }
        Err(error) => findings.push(Finding::wrong(
            error.to_string(),
            "correct it; `baton config reference` lists every setting",
        )),
    }
    findings
}

fn print(check: &Check<'_>) {
    match check.fix {
        None => outln!("ok     {}", check.what),
        Some(fix) => {
            outln!("wrong  {}", indented(check.what));
            outln!("       fix: {}", indented(fix));
        }
    }
}

fn indented(text: &str) -> String {
    text.replace('\n', "\n       ")
}
