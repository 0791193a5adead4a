//! What the settings say of pools: `[[pool]]`.

use super::{command, template::Template};
use crate::courses::milliseconds;
use anyhow::{Context, bail};
use baton_scheduling::pools::Terms;
use std::{collections::BTreeSet, path::PathBuf, time::Duration};

/// Slurm's commands are the defaults.
/// The signal before the end goes to the job's shell alone, so the worker takes its place.
/// A job that Slurm started again by itself would come later than a new one, which is asked for only if it is needed.
const SUBMIT: &str = "sbatch --parsable --no-requeue --gpus=1 --time={walltime} --signal=B:TERM@120 \
                      --wrap \"exec {command}\"";
const STATUS: &str = "squeue --noheader --format=%T --jobs {id}";
const CANCEL: &str = "scancel {id}";
const EXPECTED: &str = "squeue --start --noheader --format=%S --jobs {id}";
const LONGEST_NAME: usize = 40;

/// A source of workers.
#[derive(Debug, Clone)]
pub struct PoolSettings {
    pub(crate) name: String,
    pub(crate) terms: Terms,
    pub(crate) idle_ms: u64,
    pub(crate) walltime: Duration,
    pub(crate) submit: Template,
    pub(crate) status: Template,
    pub(crate) cancel: Template,
    pub(crate) expected: Option<Template>,
    /// How a worker is started, without the options that the broker adds.
    pub(crate) worker: Option<Template>,
    /// Where its workers reach the broker; `None`: where the broker listens.
    pub(crate) broker: Option<String>,
    /// Where tokens of workers are kept, for the machines of the pool to read; `None`: `pools` in the state folder.
    pub(crate) token_folder: Option<PathBuf>,
    /// How often the batch system is asked for a job.
    pub(crate) check: Duration,
    pub(crate) commands: command::Terms,
    /// How long a worker whose job runs may take to connect.
    pub(crate) start_limit: Duration,
}

#[derive(serde::Deserialize)]
struct File {
    pool: Vec<Section>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Section {
    name: String,
    provider: String,
    #[serde(default)]
    min: u32,
    max: u32,
    idle: Option<String>,
    walltime: Option<String>,
    target_wait: Option<String>,
    submit: Option<String>,
    status: Option<String>,
    cancel: Option<String>,
    expected: Option<String>,
    worker: Option<String>,
    broker: Option<String>,
    token_folder: Option<PathBuf>,
    check: Option<String>,
    command_limit: Option<String>,
    #[serde(default)]
    environment: Vec<String>,
    start_limit: Option<String>,
}

impl PoolSettings {
    /// Reads a list of pools as TOML writes it: `[{ name = "slurm", … }]`.
    ///
    /// # Errors
    /// If the list is not one of pools; the message names the pool and the key.
    pub fn read(list: &str) -> anyhow::Result<Vec<Self>> {
        let file: File = toml::from_str(&format!("pool = {list}")).context("[[pool]]")?;
        let mut names = BTreeSet::new();
        let pools = file.pool.into_iter().map(|section| {
            let name = section.name.clone();
            let pool = section.read().with_context(|| format!("pool {name}"))?;
            anyhow::ensure!(names.insert(name), "There are two pools {}", pool.name);
            Ok(pool)
        });
        pools.collect()
    }
}

impl Section {
    fn read(self) -> anyhow::Result<PoolSettings> {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        anyhow::ensure!(
            !self.name.is_empty()
                && self.name.len() <= LONGEST_NAME
                && self.name.chars().all(plain),
            "The name must be 1 to {LONGEST_NAME} letters, digits, `-`, `_` or `.`"
        );
        anyhow::ensure!(
            self.provider == "command",
            "provider = {:?} is unknown; known is \"command\"",
            self.provider
        );
        anyhow::ensure!(
            self.min <= self.max && self.max > 0,
            "max must be above 0 and not below min"
        );
        if let Some(own) = self.environment.iter().find(|name| is_of_baton(name)) {
            bail!("environment: {own} is not for the commands of a batch system");
        }
        let time = |text: Option<String>, key, default: &str| {
            milliseconds(text.as_deref().unwrap_or(default)).context(key)
        };
        let template = |text: Option<String>, key, default: &str, known: &[&str]| {
            Template::parse(text.as_deref().unwrap_or(default), known).context(key)
        };
        let of_job = ["id", "name"];
        Ok(PoolSettings {
            terms: Terms {
                min: self.min,
                max: self.max,
                target_wait_ms: time(self.target_wait, "target_wait", "60s")?,
            },
            idle_ms: time(self.idle, "idle", "5m")?,
            walltime: Duration::from_millis(time(self.walltime, "walltime", "2h")?),
            submit: template(
                self.submit,
                "submit",
                SUBMIT,
                &[
                    "command",
                    "arguments",
                    "walltime",
                    "walltime_seconds",
                    "name",
                ],
            )?,
            status: template(self.status, "status", STATUS, &of_job)?,
            cancel: template(self.cancel, "cancel", CANCEL, &of_job)?,
            expected: match self.expected.as_deref() {
                Some("") => None,
                _ => Some(template(self.expected, "expected", EXPECTED, &of_job)?),
            },
            worker: self
                .worker
                .map(|text| Template::parse(&text, &[]).context("worker"))
                .transpose()?,
            broker: self.broker,
            token_folder: self.token_folder,
            check: Duration::from_millis(time(self.check, "check", "10s")?),
            commands: command::Terms {
                limit: Duration::from_millis(time(self.command_limit, "command_limit", "30s")?),
                environment: self.environment,
            },
            start_limit: Duration::from_millis(time(self.start_limit, "start_limit", "5m")?),
            name: self.name,
        })
    }
}

/// Tokens and passwords are among these.
fn is_of_baton(variable: &str) -> bool {
    variable.starts_with("BATON_")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn slurm_needs_no_commands() {
        let pools = PoolSettings::read("[{ name = \"slurm\", provider = \"command\", max = 6 }]");
        let pool = &pools.unwrap()[0];
        assert_eq!((pool.terms.min, pool.terms.max), (0, 6));
        let values = [("command", "baton worker"), ("walltime", "02:00:00")];
        assert_eq!(
            pool.submit.arguments(&values, &[]),
            [
                "sbatch",
                "--parsable",
                "--no-requeue",
                "--gpus=1",
                "--time=02:00:00",
                "--signal=B:TERM@120",
                "--wrap",
                "exec baton worker"
            ]
        );
    }

    #[test]
    fn nonsense_is_refused() {
        for (list, why) in [
            (
                "[{ name = \"a b\", provider = \"command\", max = 1 }]",
                "The name must be",
            ),
            (
                "[{ name = \"a\", provider = \"cloud\", max = 1 }]",
                "is unknown",
            ),
            (
                "[{ name = \"a\", provider = \"command\", min = 2, max = 1 }]",
                "max must be",
            ),
            (
                "[{ name = \"a\", provider = \"command\", max = 1, idle = \"soon\" }]",
                "idle",
            ),
            (
                "[{ name = \"a\", provider = \"command\", max = 1, cancel = \"kill {pid}\" }]",
                "{pid}",
            ),
            (
                "[{ name = \"a\", provider = \"command\", max = 1, environment = [\"BATON_TOKEN\"] }]",
                "BATON_TOKEN",
            ),
            (
                "[{ name = \"a\", provider = \"command\", max = 1, colour = 1 }]",
                "colour",
            ),
        ] {
            let error = format!("{:#}", PoolSettings::read(list).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }
}
