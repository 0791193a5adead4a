//! The settings of pools: `[[pool]]`.

use super::{command, offers::OffersSection, template::Template, tokens};
use anyhow::{Context, bail};
use baton_broker_queue::courses::milliseconds;
use baton_scheduling::{pools::Scaling, queue::Declared};
use std::{collections::BTreeSet, fs, path::PathBuf, sync::Arc, time::Duration};

/// The default commands are Slurm's. The signal before the end goes only to the job's shell, so the
/// worker replaces that with `exec`. `--no-requeue`: a job that Slurm restarted by itself would
/// come later than a new one, which the broker requests only if it is needed.
const SUBMIT: &str = "sbatch --parsable --no-requeue --job-name={name} --gpus=1 --time={walltime} \
                      --signal=B:TERM@120 --wrap \"exec {command}\"";
const FIND: &str = "squeue --noheader --format=%i --name {name}";
const STATUS: &str = "squeue --noheader --format=%T --jobs {id}";
const CANCEL: &str = "scancel {id}";
const EXPECTED: &str = "squeue --start --noheader --format=%S --jobs {id}";
/// Slurm's default `KillWait`.
const KILL_AFTER: &str = "30s";
const LONGEST_NAME: usize = 40;
/// A value of `idle`: idle workers do not leave.
const NEVER: &str = "never";
/// If someone guesses the token, they can join as a worker, which receives the cells of all people.
const SHORTEST_TOKEN: usize = 20;

/// A source of workers.
#[derive(Debug, Clone)]
pub struct PoolSettings {
    pub(crate) name: String,
    pub(crate) scaling: Scaling,
    /// After what time an idle worker leaves; `None` if it stays.
    pub(crate) idle_ms: Option<u64>,
    /// `None` if workers may stay without a limit.
    pub(crate) walltime: Option<Duration>,
    /// How long a worker may take to connect after its job has started.
    pub(crate) start_limit: Duration,
    /// What its workers offer, until one reports it.
    pub(crate) offers: Arc<Declared>,
    pub(crate) provider: Provider,
}

/// What starts the workers.
#[derive(Debug, Clone)]
pub(crate) enum Provider {
    Command(Box<Commands>),
    /// Something else, which reads the desired number.
    External(External),
}

/// The commands of a batch system.
#[derive(Debug, Clone)]
pub(crate) struct Commands {
    pub(crate) walltime: Duration,
    /// How long after SIGTERM the batch system kills a job.
    pub(crate) kill_after: Duration,
    pub(crate) submit: Template,
    /// Prints the id of a worker's job, if it exists.
    pub(crate) find: Option<Template>,
    pub(crate) status: Template,
    pub(crate) cancel: Template,
    pub(crate) expected: Option<Template>,
    /// The command that starts a worker, without the options that the broker adds.
    pub(crate) worker: Option<Template>,
    /// The address at which its workers reach the broker; `None` for the address at which it listens.
    pub(crate) broker: Option<String>,
    /// A folder for the tokens of workers, which the machines of the pool can read; `None` for
    /// `pools` in the state folder.
    pub(crate) token_folder: Option<PathBuf>,
    /// How often the broker asks about a job.
    pub(crate) check: Duration,
    pub(crate) options: command::CommandOptions,
}

#[derive(Debug, Clone)]
pub(crate) struct External {
    /// Contains the token with which workers join this pool.
    token_file: PathBuf,
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
    kill_after: Option<String>,
    target_wait: Option<String>,
    submit: Option<String>,
    find: Option<String>,
    status: Option<String>,
    cancel: Option<String>,
    expected: Option<String>,
    worker: Option<String>,
    broker: Option<String>,
    token_folder: Option<PathBuf>,
    token_file: Option<PathBuf>,
    check: Option<String>,
    command_limit: Option<String>,
    #[serde(default)]
    environment: Vec<String>,
    start_limit: Option<String>,
    #[serde(default)]
    offers: OffersSection,
}

impl PoolSettings {
    /// Reads a list of pools in TOML: `[{ name = "slurm", … }]`.
    ///
    /// # Errors
    /// If the list is invalid; the message names the pool and the key.
    pub fn read(list: &str) -> anyhow::Result<Vec<Self>> {
        let file: File = toml::from_str(&format!("pool = {list}")).context("[[pool]]")?;
        let mut names = BTreeSet::new();
        let pools = file.pool.into_iter().map(|section| {
            let name = section.name.clone();
            let pool = section.read().with_context(|| format!("pool {name}"))?;
            anyhow::ensure!(names.insert(name), "Two pools are named {}", pool.name);
            Ok(pool)
        });
        pools.collect()
    }

    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    #[must_use]
    pub fn scaling(&self) -> Scaling {
        self.scaling
    }

    /// After what time an idle worker leaves; `None` if it stays.
    #[must_use]
    pub fn idle(&self) -> Option<Duration> {
        self.idle_ms.map(Duration::from_millis)
    }

    /// `None` if workers may stay without a limit.
    #[must_use]
    pub fn walltime(&self) -> Option<Duration> {
        self.walltime
    }

    /// What its workers offer, as far as the settings say it.
    #[must_use]
    pub fn offers(&self) -> &Declared {
        &self.offers
    }

    /// The token with which workers join; `None` for a pool whose workers the broker starts.
    ///
    /// # Errors
    /// If its file cannot be read, or if the token is too short.
    pub(crate) fn joining_token(&self) -> anyhow::Result<Option<String>> {
        let Provider::External(external) = &self.provider else {
            return Ok(None);
        };
        let path = external.token_file.display();
        let token = fs::read_to_string(&external.token_file).with_context(|| {
            format!("Failed to read the token of pool {} from {path}", self.name)
        })?;
        let token = token.trim();
        anyhow::ensure!(
            token.len() >= SHORTEST_TOKEN,
            "The token of pool {} in {path} must have at least {SHORTEST_TOKEN} characters\n\
             hint: openssl rand -hex 32",
            self.name
        );
        anyhow::ensure!(
            !token.starts_with(tokens::PREFIX),
            "The token of pool {} in {path} must not start with {}, as the tokens of single workers do\n\
             hint: openssl rand -hex 32",
            self.name,
            tokens::PREFIX
        );
        Ok(Some(token.to_owned()))
    }

    /// Whether its workers use the broker's own address.
    pub(crate) fn gives_own_address(&self) -> bool {
        matches!(&self.provider, Provider::Command(commands) if commands.broker.is_none())
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
            self.min <= self.max && self.max > 0,
            "max must be above 0 and not below min"
        );
        if let Some(own) = self.environment.iter().find(|name| is_of_baton(name)) {
            bail!("environment: {own} cannot be passed to the commands of a batch system");
        }
        let is_external = match self.provider.as_str() {
            "command" => false,
            "external" => true,
            other => {
                bail!("provider = {other:?} is unknown; known are \"command\" and \"external\"")
            }
        };
        let idle = match self.idle.as_deref() {
            Some(NEVER) if is_external => None,
            idle => Some(milliseconds(idle.unwrap_or("5m")).context("idle")?),
        };
        let walltime = match self.walltime.as_deref() {
            None if is_external => None,
            walltime => Some(time(walltime, "walltime", "2h")?),
        };
        let target_wait = self.target_wait.as_deref().unwrap_or("60s");
        Ok(PoolSettings {
            name: self.name.clone(),
            scaling: Scaling {
                min: self.min,
                max: self.max,
                target_wait_ms: milliseconds(target_wait).context("target_wait")?,
            },
            idle_ms: idle,
            walltime,
            start_limit: time(self.start_limit.as_deref(), "start_limit", "5m")?,
            offers: Arc::new(self.offers.clone().read().context("offers")?),
            provider: match is_external {
                true => Provider::External(self.external()?),
                false => Provider::Command(Box::new(self.commands(walltime.unwrap_or_default())?)),
            },
        })
    }

    fn commands(self, walltime: Duration) -> anyhow::Result<Commands> {
        anyhow::ensure!(
            self.token_file.is_none(),
            "token_file is for provider = \"external\"; the workers of this pool get tokens of their own in token_folder"
        );
        let template = |text: Option<String>, key, default: &str, known: &[&str]| {
            Template::parse(text.as_deref().unwrap_or(default), known).context(key)
        };
        let of_job = ["id", "name"];
        Ok(Commands {
            walltime,
            kill_after: time(self.kill_after.as_deref(), "kill_after", KILL_AFTER)?,
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
            find: match self.find.as_deref() {
                Some("") => None,
                _ => Some(template(self.find, "find", FIND, &["name"])?),
            },
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
            check: time(self.check.as_deref(), "check", "10s")?,
            options: command::CommandOptions {
                limit: time(self.command_limit.as_deref(), "command_limit", "30s")?,
                environment: self.environment,
            },
        })
    }

    fn external(self) -> anyhow::Result<External> {
        let of_commands = [
            ("kill_after", self.kill_after.is_some()),
            ("submit", self.submit.is_some()),
            ("find", self.find.is_some()),
            ("status", self.status.is_some()),
            ("cancel", self.cancel.is_some()),
            ("expected", self.expected.is_some()),
            ("worker", self.worker.is_some()),
            ("broker", self.broker.is_some()),
            ("token_folder", self.token_folder.is_some()),
            ("check", self.check.is_some()),
            ("command_limit", self.command_limit.is_some()),
            ("environment", !self.environment.is_empty()),
        ];
        if let Some((key, _)) = of_commands.into_iter().find(|(_, given)| *given) {
            bail!("{key} is for provider = \"command\"; the broker starts no worker of this pool");
        }
        let token_file = self.token_file.context(
            "token_file is missing: name the file with the token that lets workers join",
        )?;
        Ok(External { token_file })
    }
}

fn time(text: Option<&str>, key: &'static str, default: &str) -> anyhow::Result<Duration> {
    let ms = milliseconds(text.unwrap_or(default)).context(key)?;
    Ok(Duration::from_millis(ms))
}

/// Tokens and passwords are among the variables of Baton.
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
        assert_eq!((pool.scaling.min, pool.scaling.max), (0, 6));
        let Provider::Command(commands) = &pool.provider else {
            panic!("{:?}", pool.provider);
        };
        let values = [
            ("command", "baton worker"),
            ("walltime", "02:00:00"),
            ("name", "slurm-1"),
        ];
        assert_eq!(
            commands.submit.arguments(&values, &[]),
            [
                "sbatch",
                "--parsable",
                "--no-requeue",
                "--job-name=slurm-1",
                "--gpus=1",
                "--time=02:00:00",
                "--signal=B:TERM@120",
                "--wrap",
                "exec baton worker"
            ]
        );
    }

    #[test]
    fn an_external_pool_has_no_commands_and_a_token() {
        let list = "[{ name = \"kube\", provider = \"external\", max = 3, idle = \"never\", token_file = \"/t\" }]";
        let pool = PoolSettings::read(list).unwrap().remove(0);
        assert_eq!((pool.idle_ms, pool.walltime), (None, None));
        let error = format!("{:#}", pool.joining_token().unwrap_err());
        assert!(error.contains("token of pool kube"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        for (token, why) in [
            ("short".to_owned(), "at least"),
            (
                format!("{}{}", tokens::PREFIX, "x".repeat(40)),
                "must not start with",
            ),
        ] {
            fs::write(file.path(), token).unwrap();
            let list = list.replace("/t", &file.path().display().to_string());
            let error = PoolSettings::read(&list).unwrap().remove(0).joining_token();
            let error = error.unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        for (more, why) in [
            ("", "token_file is missing"),
            (", token_file = \"/t\", submit = \"x\"", "submit is for"),
            (", token_file = \"/t\", idle = \"now\"", "idle"),
        ] {
            let list = format!("[{{ name = \"kube\", provider = \"external\", max = 3{more} }}]");
            let error = format!("{:#}", PoolSettings::read(&list).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
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
                "[{ name = \"a\", provider = \"command\", max = 1, idle = \"never\" }]",
                "idle",
            ),
            (
                "[{ name = \"a\", provider = \"command\", max = 1, token_file = \"/t\" }]",
                "token_file is for",
            ),
            (
                "[{ name = \"a\", provider = \"command\", max = 1, colour = 1 }]",
                "colour",
            ),
            (
                "[{ name = \"a\", provider = \"command\", max = 1, offers = { gpu_memory = \"80\" } }]",
                "offers: gpu_memory",
            ),
            (
                "[{ name = \"a\", provider = \"command\", max = 1, offers = { label = \"b\" } }]",
                "label",
            ),
        ] {
            let error = format!("{:#}", PoolSettings::read(list).unwrap_err());
            assert!(error.contains(why), "{error}");
        }
    }
}
