//! The commands of a batch system: their arguments for one worker, and the meaning of their output.

use super::{
    Commands,
    command::{self, CommandError, JobState, Said, job_state},
    managed_pool::ManagedPool,
    template::{Template, quoted},
    tokens,
};
use baton_broker_queue::courses;
use baton_protocol::api::{PoolCommand, PoolTest};
use baton_scheduling::pools;
use std::{
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::time::timeout;

/// Why a worker has no job yet.
pub(super) enum NotSubmitted {
    /// No job was submitted.
    Refused(String),
    /// There may be a job whose id the broker does not know.
    Unknown(String),
}

/// What the batch system says about a job with the name of a worker.
pub(super) enum Lookup {
    Job(String),
    NoJob,
    /// The command failed. It may do that if there is no such job.
    Failed,
}

/// The batch system of one pool.
#[derive(Clone, Copy)]
pub(super) struct BatchSystem<'runner> {
    commands: &'runner Commands,
    /// The address at which workers reach the broker.
    address: &'runner str,
    /// Where the workers find their tokens.
    token_folder: &'runner Path,
}

impl<'runner> BatchSystem<'runner> {
    /// `address` and `token_folder` are for pools without their own.
    pub(super) fn new(
        commands: &'runner Commands,
        address: &'runner str,
        token_folder: &'runner Path,
    ) -> Self {
        Self {
            commands,
            address: commands.broker.as_deref().unwrap_or(address),
            token_folder: commands.token_folder.as_deref().unwrap_or(token_folder),
        }
    }

    /// How often to ask about a job.
    pub(super) fn check_every(self) -> Duration {
        self.commands.check
    }

    /// Writes a new token for a worker with this name. Returns its file and its hash.
    ///
    /// # Errors
    /// Why that failed. A file system of the cluster may not answer.
    pub(super) async fn create_token(self, name: &str) -> Result<(PathBuf, String), String> {
        let created = self.in_time(tokens::create(self.token_folder, name)).await;
        created.map_err(|error| {
            let folder = self.token_folder.display();
            format!("Failed to write a token into {folder}: {error}")
        })
    }

    /// Removes the file with the token of a worker that has ended.
    pub(super) async fn remove_token(self, name: &str) {
        let removed = self.in_time(tokens::remove(self.token_folder, name)).await;
        if let Err(error) = removed {
            tracing::warn!("Failed to remove the token of {name}: {error}");
        }
    }

    async fn in_time<T>(self, done: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        timeout(self.commands.options.limit, done).await?
    }

    /// Submits a job for a worker with this name, and returns its id.
    ///
    /// # Errors
    /// The batch system's answer, if it gave no id.
    pub(super) async fn submit(
        self,
        pool: &ManagedPool,
        name: &str,
        token_file: &Path,
    ) -> Result<String, NotSubmitted> {
        let arguments = self.submit_arguments(pool, name, token_file);
        let said = command::run(&arguments, &self.commands.options).await;
        let why = match &said {
            Ok(said) if said.succeeded => match job_id(&said.output) {
                Some(job) => return Ok(job),
                None => "The submit command printed no job id".to_owned(),
            },
            said => answer_of(said),
        };
        let is_refused = match &said {
            Ok(said) => !said.succeeded,
            Err(error) => matches!(error, CommandError::Start { .. }),
        };
        Err(match is_refused || self.commands.find.is_none() {
            true => NotSubmitted::Refused(why),
            false => NotSubmitted::Unknown(why),
        })
    }

    /// The job of a worker whose submission did not finish, if the batch system knows one.
    ///
    /// # Errors
    /// If the batch system does not answer.
    pub(super) async fn find(self, name: &str) -> Result<Lookup, CommandError> {
        let Some(template) = &self.commands.find else {
            return Ok(Lookup::NoJob);
        };
        let arguments = template.arguments(&[("name", name)], &[]);
        let said = command::run(&arguments, &self.commands.options).await?;
        Ok(match job_id(&said.output) {
            _ if !said.succeeded => Lookup::Failed,
            Some(job) => Lookup::Job(job),
            None => Lookup::NoJob,
        })
    }

    /// The state of a job, with the batch system's answer.
    pub(super) async fn state(self, job: &str, name: &str) -> (JobState, String) {
        let said = self.ask(&self.commands.status, job, name).await;
        (job_state(&said), answer_of(&said))
    }

    /// When the batch system expects the job to start, if it knows.
    pub(super) async fn expected(self, job: &str, name: &str) -> Option<i64> {
        let template = self.commands.expected.as_ref()?;
        let said = self.ask(template, job, name).await;
        let said = said.ok().filter(|said| said.succeeded)?;
        courses::local_time(said.output.lines().next()?.trim())
    }

    pub(super) async fn cancel(self, job: &str, name: &str) -> Result<(), String> {
        let said = self.ask(&self.commands.cancel, job, name).await;
        match said.as_ref().is_ok_and(|said| said.succeeded) {
            true => Ok(()),
            false => Err(answer_of(&said)),
        }
    }

    /// The commands that would be run, and whether each program exists.
    pub(super) fn test(self, pool: &ManagedPool) -> PoolTest {
        let name = format!("{}-test", pool.settings.name);
        let file = tokens::file(self.token_folder, &name);
        let values = [("id", "12345"), ("name", name.as_str())];
        let of_job = |template: &Template| template.arguments(&values, &[]);
        let all = [
            ("submit", Some(self.submit_arguments(pool, &name, &file))),
            ("find", self.commands.find.as_ref().map(of_job)),
            ("status", Some(of_job(&self.commands.status))),
            ("cancel", Some(of_job(&self.commands.cancel))),
            ("expected", self.commands.expected.as_ref().map(of_job)),
        ];
        let commands = all.into_iter().filter_map(|(name, arguments)| {
            let arguments = arguments?;
            Some(PoolCommand {
                name: name.to_owned(),
                problem: problem(arguments.first().map_or("", String::as_str)),
                arguments,
            })
        });
        PoolTest {
            pool: pool.settings.name.clone(),
            commands: commands.collect(),
        }
    }

    /// The command that submits a worker with this name.
    fn submit_arguments(self, pool: &ManagedPool, name: &str, token_file: &Path) -> Vec<String> {
        let walltime = self.commands.walltime.as_secs();
        let clock = format!(
            "{:02}:{:02}:{:02}",
            walltime / 3600,
            walltime / 60 % 60,
            walltime % 60
        );
        let worker = self.worker_arguments(pool, name, token_file);
        let words: Vec<String> = worker.iter().map(|word| quoted(word)).collect();
        let values = [
            ("command", &*words.join(" ")),
            ("walltime", &*clock),
            ("walltime_seconds", &*walltime.to_string()),
            ("name", name),
        ];
        self.commands.submit.arguments(&values, &worker)
    }

    /// The command that starts this worker.
    fn worker_arguments(self, pool: &ManagedPool, name: &str, token_file: &Path) -> Vec<String> {
        let mut worker = match &self.commands.worker {
            Some(template) => template.arguments(&[], &[]),
            None => vec![own_program(), "worker".to_owned()],
        };
        let walltime = self.commands.walltime.as_secs();
        let stop_grace = pools::stop_grace(self.commands.kill_after);
        let options = [
            ("--broker", self.address.to_owned()),
            ("--token-file", token_file.display().to_string()),
            ("--name", name.to_owned()),
            ("--leaves-at", format!("{walltime}s")),
            ("--stop-grace", format!("{}ms", stop_grace.as_millis())),
        ];
        for (option, value) in options {
            worker.extend([option.to_owned(), value]);
        }
        let mut workers = pool.workers.iter();
        let is_kept = workers.any(|worker| worker.row.name == name && worker.row.kept);
        if let Some(idle_ms) = pool.idle_ms().filter(|_| !is_kept) {
            worker.extend(["--idle-exit".to_owned(), format!("{idle_ms}ms")]);
        }
        worker
    }

    /// Runs a command about a job.
    async fn ask(self, template: &Template, job: &str, name: &str) -> Result<Said, CommandError> {
        let arguments = template.arguments(&[("id", job), ("name", name)], &[]);
        command::run(&arguments, &self.commands.options).await
    }
}

/// Reads the id of a job. `sbatch --parsable` prints `ID` or `ID;CLUSTER`. Other commands print it
/// at the end of a sentence, or alone.
fn job_id(output: &str) -> Option<String> {
    let line = output.lines().last()?;
    let line = line.split(';').next()?.trim();
    let word = line.split_whitespace().last()?;
    // The id is an argument of other commands, which must not read it as an option.
    let is_id = word.starts_with(char::is_alphanumeric) && word.len() <= 200;
    is_id.then(|| word.to_owned())
}

fn answer_of(said: &Result<Said, CommandError>) -> String {
    match said {
        Ok(said) if said.succeeded => match said.output.as_str() {
            "" => "the batch system no longer knows it".to_owned(),
            state => format!("state {state}"),
        },
        Ok(said) => said.words.clone(),
        Err(error) => error.to_string(),
    }
}

fn own_program() -> String {
    let program = std::env::current_exe();
    program.map_or_else(|_| "baton".to_owned(), |path| path.display().to_string())
}

/// Why a program cannot be run; `None` if it can.
fn problem(program: &str) -> Option<String> {
    let runs = |path: &Path| {
        path.metadata()
            .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    let found = match program.contains('/') {
        true => runs(program.as_ref()),
        false => {
            let folders = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&folders).any(|folder| runs(&folder.join(program)))
        }
    };
    (!found).then(|| format!("{program} is not a program that this user can run"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{BatchSystem, Commands, courses};
    use crate::pools::{PoolSettings, Provider};
    use std::path::Path;

    fn commands(expected: &str) -> Commands {
        let list = format!(
            "[{{ name = \"a\", provider = \"command\", max = 1, expected = '{expected}' }}]"
        );
        match PoolSettings::read(&list).unwrap().remove(0).provider {
            Provider::Command(commands) => *commands,
            other @ Provider::External(_) => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn the_first_line_says_when_a_job_begins() {
        let time = courses::local_time("2026-11-25T14:00:00");
        assert!(time.is_some());
        let said = async |command: &str| {
            let commands = commands(command);
            let system = BatchSystem::new(&commands, "", Path::new(""));
            system.expected("7", "a").await
        };
        for (command, expected) in [
            ("echo 2026-11-25T14:00:00", time),
            ("printf \"2026-11-25T14:00:00\\nN/A\\n\"", time),
            ("echo N/A {id}", None),
            ("true", None),
            ("sh -c \"echo 2026-11-25T14:00:00; exit 1\"", None),
            ("", None),
        ] {
            assert_eq!(said(command).await, expected, "{command}");
        }
    }
}
