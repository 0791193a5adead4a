//! `baton env`: environments of courses, for notebooks.

mod here;
mod sync;

use self::here::Here;
use super::ask::{client, shown, text};
use crate::settings::{ProcessEnvironment, Settings};
use anyhow::Context;
use baton_protocol::{
    EnvironmentState,
    api::{Course, EnvironmentOverview, Page},
};
use baton_transport::Api;
use clap::Subcommand;
use serde::Serialize;
use std::process::ExitCode;

/// Install the environments of courses beside notebooks
#[derive(Subcommand)]
pub(crate) enum Env {
    /// List the environments of courses, and which of them are installed here
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Install the environment of a course for notebooks here
    ///
    /// The packages come from the same lock as on the workers. The kernel "Python (shared GPU) - NAME", which uses
    /// them, is installed as well.
    ///
    /// If both are up to date, nothing changes.
    Sync {
        /// The environment
        /// [default: that of your course]
        #[arg(verbatim_doc_comment)]
        name: Option<String>,
        /// Change nothing, and print what differs; the exit code is 1 if something does
        #[arg(long)]
        check: bool,
    },
}

pub(crate) fn main(
    process: &ProcessEnvironment,
    settings: &Settings,
    of: &Env,
) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    let here = Here::new(process, settings);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("Failed to prepare requests to the broker")?;
    runtime.block_on(async {
        match of {
            Env::List { json } => list(&api, &here, *json).await,
            Env::Sync { name, check } => {
                let name = match name {
                    Some(name) => name.clone(),
                    None => of_course(&api, settings).await?,
                };
                match check {
                    true => sync::check(&api, &here, &name).await,
                    false => sync::sync(&api, &here, &name).await,
                }
            }
        }
    })
}

/// As JSON.
#[derive(Serialize)]
struct Listed {
    #[serde(flatten)]
    environment: EnvironmentOverview,
    /// The lock that is installed here.
    installed: Option<String>,
}

async fn list(api: &Api, here: &Here, json: bool) -> anyhow::Result<ExitCode> {
    let page: Page<EnvironmentOverview> = api.ask("/v1/environments", &[]).await?;
    let environments = page.items.into_iter().map(|environment| Listed {
        installed: here.installed(&environment.environment).map(|own| own.lock),
        environment,
    });
    let environments: Vec<Listed> = environments.collect();
    out!("{}", shown(environments.as_slice(), json, table)?);
    Ok(ExitCode::SUCCESS)
}

fn table(environments: &[Listed]) -> String {
    let rows = environments.iter().map(|listed| {
        let Listed {
            environment,
            installed,
        } = listed;
        let workers = environment.workers.iter();
        let ready = workers.clone().filter(|offer| is_ready(&offer.state));
        let python = ready.clone().find_map(|offer| offer.python_version.clone());
        let here = match (&environment.lock, installed) {
            (None, _) => "no lock",
            (Some(_), None) => "not installed",
            (lock, installed) if lock == installed => "up to date",
            _ => "outdated",
        };
        [
            environment.environment.clone(),
            python.unwrap_or_default(),
            format!("{} of {} ready", ready.count(), workers.count()),
            here.to_owned(),
        ]
    });
    let titles = ["ENVIRONMENT", "PYTHON", "WORKERS", "HERE"];
    text::table(titles, rows, "No environments")
}

fn is_ready(state: &EnvironmentState) -> bool {
    matches!(state, EnvironmentState::Ready {})
}

/// The environment of the person's only course, or of the course in the settings.
async fn of_course(api: &Api, settings: &Settings) -> anyhow::Result<String> {
    let courses: Page<Course> = api.ask("/v1/courses", &[]).await?;
    let wanted = |course: &Course| {
        settings
            .course
            .as_ref()
            .is_none_or(|own| *own == course.course)
    };
    let courses = courses.items.into_iter().filter(wanted);
    let mut names: Vec<String> = courses.filter_map(|course| course.environment).collect();
    names.sort_unstable();
    names.dedup();
    match names.pop() {
        Some(name) if names.is_empty() => Ok(name),
        Some(_) => anyhow::bail!(
            "Your courses have several environments\nhint: name one; `baton env list` lists them"
        ),
        None => anyhow::bail!(
            "Your course has no environment of its own: its cells run in the workers' Python\nhint: `baton env list` lists \
             the available ones"
        ),
    }
}
