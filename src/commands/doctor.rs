//! `baton doctor`: each check is a sentence, and what is wrong comes with what mends it.

mod machine;
mod notebooks;
mod reach;

use std::{path::PathBuf, process::ExitCode};

use crate::{
    python,
    settings::{Settings, SettingsError, Surroundings},
};

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

pub(crate) fn main(
    surroundings: &Surroundings,
    settings: Result<Settings, SettingsError>,
    python: Option<PathBuf>,
) -> ExitCode {
    let python = python.unwrap_or_else(python::default_python);
    let mut findings = notebooks::check(surroundings, &python);
    findings.push(machine::memory());
    match settings {
        Ok(settings) => {
            findings.push(Finding::Good("The configuration is valid".to_owned()));
            findings.push(machine::runtime_folder(&settings));
            findings.extend(machine::disks(&settings));
            findings.push(reach::broker(&settings));
        }
        Err(error) => findings.push(Finding::wrong(
            error.to_string(),
            "correct it; `baton config reference` lists every setting",
        )),
    }
    let mut wrong = 0;
    for finding in findings {
        match finding {
            Finding::Good(what) => println!("ok     {what}"),
            Finding::Wrong { what, fix } => {
                wrong += 1;
                println!("wrong  {}", indented(&what));
                println!("       fix: {}", indented(&fix));
            }
        }
    }
    match wrong {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn indented(text: &str) -> String {
    text.replace('\n', "\n       ")
}
