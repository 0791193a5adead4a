//! The commands of a pool: their arguments for one worker, and the meaning of their output.

use super::{
    Commands, PoolSettings,
    command::{self, CommandError, Said},
    known::Known,
    template::{Template, quoted},
    tokens,
};
use baton_broker_queue::courses;
use baton_protocol::api::{PoolCommand, PoolTest};
use baton_scheduling::pools;
use std::{os::unix::fs::PermissionsExt, path::Path};

/// The command that submits a worker with this name.
pub(super) fn submit_arguments(
    address: &str,
    (settings, commands): (&PoolSettings, &Commands),
    pool: &Known,
    name: &str,
    token_file: &Path,
) -> Vec<String> {
    let is_kept = pool
        .lives
        .iter()
        .any(|life| life.row.name == name && life.row.kept);
    let mut worker = match &commands.worker {
        Some(template) => template.arguments(&[], &[]),
        None => vec![own_program(), "worker".to_owned()],
    };
    let broker = commands.broker.as_deref().unwrap_or(address);
    let walltime = commands.walltime.as_secs();
    let stop_grace = pools::stop_grace(commands.kill_after);
    let options = [
        ("--broker", broker.to_owned()),
        ("--token-file", token_file.display().to_string()),
        ("--name", name.to_owned()),
        ("--leaves-at", format!("{walltime}s")),
        ("--stop-grace", format!("{}ms", stop_grace.as_millis())),
    ];
    for (option, value) in options {
        worker.extend([option.to_owned(), value]);
    }
    if let Some(idle_ms) = pool.idle_ms(settings).filter(|_| !is_kept) {
        worker.extend(["--idle-exit".to_owned(), format!("{idle_ms}ms")]);
    }
    let words: Vec<String> = worker.iter().map(|word| quoted(word)).collect();
    let clock = format!(
        "{:02}:{:02}:{:02}",
        walltime / 3600,
        walltime / 60 % 60,
        walltime % 60
    );
    let seconds = walltime.to_string();
    let values = [
        ("command", &*words.join(" ")),
        ("walltime", &*clock),
        ("walltime_seconds", &*seconds),
        ("name", name),
    ];
    commands.submit.arguments(&values, &worker)
}

/// Cancels the job of a worker.
pub(super) async fn cancel(settings: &PoolSettings, commands: &Commands, pool: &Known, name: &str) {
    let life = pool.lives.iter().find(|life| life.row.name == name);
    let Some(job) = life.and_then(|life| life.row.job.clone()) else {
        return;
    };
    let values = [("id", job.as_str()), ("name", name)];
    let said = command::run(&commands.cancel.arguments(&values, &[]), &commands.terms).await;
    if !said.as_ref().is_ok_and(|said| said.succeeded) {
        tracing::warn!(
            "Failed to cancel job {job} of pool {}: {}",
            settings.name,
            answer_of(&said)
        );
    }
}

/// The commands that would be run, and whether each program exists.
pub(super) fn test(
    address: &str,
    folder: &Path,
    (settings, commands): (&PoolSettings, &Commands),
    pool: &Known,
) -> PoolTest {
    let name = format!("{}-test", settings.name);
    let file = tokens::file(folder, &name);
    let values = [("id", "12345"), ("name", name.as_str())];
    let of_job = |template: &Template| template.arguments(&values, &[]);
    let all = [
        (
            "submit",
            Some(submit_arguments(
                address,
                (settings, commands),
                pool,
                &name,
                &file,
            )),
        ),
        ("find", commands.find.as_ref().map(of_job)),
        ("status", Some(of_job(&commands.status))),
        ("cancel", Some(of_job(&commands.cancel))),
        ("expected", commands.expected.as_ref().map(of_job)),
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
        pool: settings.name.clone(),
        commands: commands.collect(),
    }
}

/// Reads the id of a job. `sbatch --parsable` prints `ID` or `ID;CLUSTER`. Other commands print it
/// at the end of a sentence, or alone.
pub(super) fn job_id(output: &str) -> Option<String> {
    let line = output.lines().last()?;
    let line = line.split(';').next()?.trim();
    let word = line.split_whitespace().last()?;
    // The id is an argument of other commands, which must not read it as an option.
    let is_id = word.starts_with(char::is_alphanumeric) && word.len() <= 200;
    is_id.then(|| word.to_owned())
}

/// The job of a worker whose submission did not finish, if the batch system knows one.
pub(super) async fn found(commands: &Commands, name: &str) -> Option<String> {
    let arguments = commands.find.as_ref()?.arguments(&[("name", name)], &[]);
    let said = command::run(&arguments, &commands.terms).await.ok()?;
    job_id(&said.output).filter(|_| said.succeeded)
}

pub(super) fn answer_of(said: &Result<Said, CommandError>) -> String {
    match said {
        Ok(said) if said.succeeded => match said.output.as_str() {
            "" => "the batch system no longer knows it".to_owned(),
            state => format!("state {state}"),
        },
        Ok(said) => said.words.clone(),
        Err(error) => error.to_string(),
    }
}

/// When the batch system expects the job to start, if it knows.
pub(super) async fn expected(commands: &Commands, values: &[(&str, &str)]) -> Option<i64> {
    let template = commands.expected.as_ref()?;
    let said = command::run(&template.arguments(values, &[]), &commands.terms).await;
    let said = said.ok().filter(|said| said.succeeded)?;
    courses::local_time(said.output.lines().next()?.trim())
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
    use super::{Commands, courses, expected};
    use crate::pools::{PoolSettings, Provider};

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
        let said = async |command: &str| expected(&commands(command), &[("id", "7")]).await;
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
