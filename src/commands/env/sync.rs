//! `baton env sync`: installs an environment and its kernel from the broker's lock.

use super::here::{Here, Installed};
use crate::{commands::act::segment, python};
use baton_environments::{
    BuildError, Builder, CompleteEnvironment, Folder, Runner, Step, Taken, build, digest, find_uv,
    installed, packages_of, site_packages,
};
use baton_protocol::api::EnvironmentLock;
use baton_transport::Api;
use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    path::{Path, PathBuf},
    process::{ExitCode, Output, Stdio},
};
use tokio::process::Command;

/// The most differing packages to list.
const MOST_LISTED: usize = 20;

pub(super) async fn sync(api: &Api, here: &Here, name: &str) -> anyhow::Result<ExitCode> {
    let wanted = lock(api, name).await?;
    let builder = builder(&wanted).await?;
    let folder = here.folder();
    let key = builder.key(&wanted.lock);
    let before = here.installed(name);
    let is_current = before.as_ref().is_some_and(|own| own.key == key);
    let changed = before.map_or_else(Vec::new, |own| changes(&folder, &own));
    if is_current && !changed.is_empty() {
        outln!("The packages of {name} have changed since it was installed here:");
        print_changes(&changed);
        folder.discard(&key)?;
    }
    let held = built(&folder, &builder, &wanted, &key).await?;
    let (environment, python) = (held.folder().environment(), held.folder().python());
    let version = python::probe(&python, &[])?.version;
    let own = Installed {
        environment: name.to_owned(),
        lock: wanted.digest.clone(),
        key,
        packages: packages_in(&environment).into_iter().collect(),
    };
    let kernel = here.install(&own, &python)?;
    let what = match is_current && changed.is_empty() {
        true => "up to date",
        false => "installed",
    };
    let lock = short(&wanted.digest);
    outln!("The environment {name} is {what} (Python {version}, lock {lock})");
    outln!("Select the kernel \"{kernel}\" in your notebook; reload the page if it is not listed");
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn check(api: &Api, here: &Here, name: &str) -> anyhow::Result<ExitCode> {
    let wanted = lock(api, name).await?;
    let now = short(&wanted.digest);
    match here.installed(name) {
        None => outln!("The environment {name} is not installed here"),
        Some(own) if own.lock != wanted.digest => {
            let before = short(&own.lock);
            outln!(
                "The lock of {name} has changed: {before} is installed here, the workers have {now}"
            );
        }
        Some(own) => {
            let changed = changes(&here.folder(), &own);
            if changed.is_empty() {
                outln!("The environment {name} is up to date (lock {now})");
                return Ok(ExitCode::SUCCESS);
            }
            outln!("The packages of {name} have changed since it was installed here:");
            print_changes(&changed);
        }
    }
    outln!("hint: run `baton env sync {name}`");
    Ok(ExitCode::FAILURE)
}

fn print_changes(changes: &[String]) {
    for change in changes.iter().take(MOST_LISTED) {
        outln!("  {change}");
    }
    if let Some(more @ 1..) = changes.len().checked_sub(MOST_LISTED) {
        outln!("  and {more} more");
    }
}

async fn lock(api: &Api, name: &str) -> anyhow::Result<EnvironmentLock> {
    let path = format!("/v1/environments/{}/lock", segment(name));
    let wanted: EnvironmentLock = api.ask(&path, &[]).await?;
    anyhow::ensure!(
        digest(&wanted.lock) == wanted.digest,
        "The broker's lock of {name} is damaged\nhint: tell the operator of the broker"
    );
    Ok(wanted)
}

/// Uses this program's Python if the workers have the same version, otherwise one that uv finds or downloads.
async fn builder(wanted: &EnvironmentLock) -> anyhow::Result<Builder> {
    let usual = python::default_python();
    let own = python::probe(&usual, &["baton_shim"])?;
    let (major, minor) = own.minor_version();
    let own_version = format!("{major}.{minor}");
    let python = match &wanted.python_version {
        Some(version) if *version == own_version => Some(own.executable.clone().into()),
        Some(version) => Some(OsString::from(version)),
        None => None,
    };
    Ok(Builder {
        uv: find_uv()?,
        packages: packages_of(&usual).await?,
        python,
        is_shared: false,
        usual_python: Some(own.executable),
    })
}

async fn built(
    folder: &Folder,
    builder: &Builder,
    wanted: &EnvironmentLock,
    key: &str,
) -> anyhow::Result<CompleteEnvironment> {
    loop {
        match folder.take(key).await? {
            Taken::Complete(held) => return Ok(held),
            Taken::Empty(vacant) => {
                let folder = vacant.folder();
                let name = &wanted.environment;
                errln!(
                    "Building the environment {name} in {}",
                    folder.work().display()
                );
                build(builder, &wanted.lock, folder, &Direct).await?;
                vacant.complete()?;
            }
        }
    }
}

/// Runs steps without a sandbox: people need none for their own programs on their own machine.
struct Direct;

impl Runner for Direct {
    async fn run(&self, step: &Step) -> Result<Output, BuildError> {
        let output = Command::new(&step.program)
            .args(&step.arguments)
            .env_clear()
            .envs(step.environment.iter().cloned())
            .current_dir(&step.folder)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        Ok(output.await?)
    }
}

fn packages_in(environment: &Path) -> BTreeMap<String, String> {
    let site: Option<PathBuf> = site_packages(environment);
    site.map_or_else(BTreeMap::new, |site| installed(&site))
}

/// Packages of an environment that have changed since it was installed.
fn changes(folder: &Folder, own: &Installed) -> Vec<String> {
    let complete = folder.complete(&own.key);
    let now = complete.map_or_else(BTreeMap::new, |folder| packages_in(&folder.environment()));
    let before = own.packages.iter().cloned();
    let before: BTreeMap<String, String> = before.collect();
    let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let lines = names.into_iter().filter_map(|name| {
        Some(match (before.get(name), now.get(name)) {
            (Some(old), Some(new)) if old == new => return None,
            (Some(old), Some(new)) => format!("{name}: {old} before, {new} now"),
            (None, Some(new)) => format!("{name}: {new} is new"),
            (old, None) => format!("{name}: {} is gone", old.map_or("", String::as_str)),
        })
    });
    lines.collect()
}

fn short(digest: &str) -> &str {
    digest.get(..8).unwrap_or(digest)
}
