//! Runs a pool's commands: never through a shell, with a time limit, and without the broker's secrets.

use std::{process::Stdio, time::Duration};
use tokio::{process::Command, time::timeout};

/// Variables that the commands of a batch system may need. None belongs to Baton or to a database.
const INHERITED: [&str; 10] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "SLURM_CONF",
    "KRB5CCNAME",
];
/// How the commands of a pool are run.
#[derive(Debug, Clone)]
pub(crate) struct CommandOptions {
    /// The time limit of one command.
    pub(crate) limit: Duration,
    /// Further variables that they get.
    pub(crate) environment: Vec<String>,
}

/// The longest error text that is kept, in characters.
const LONGEST_WORDS: usize = 500;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) succeeded: bool,
    pub(crate) output: String,
    /// The error output on one line, or else the exit status.
    pub(crate) words: String,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    #[error("{program} could not be started: {source}")]
    Start {
        program: String,
        source: std::io::Error,
    },
    #[error("{program} did not end within {} s", after.as_secs())]
    Slow { program: String, after: Duration },
}

/// Runs `arguments`, whose first element is the program.
pub(crate) async fn run(
    arguments: &[String],
    options: &CommandOptions,
) -> Result<Said, CommandError> {
    let (program, rest) = arguments
        .split_first()
        .map_or(("", &[][..]), |(first, rest)| (first, rest));
    let known = INHERITED
        .into_iter()
        .chain(options.environment.iter().map(String::as_str))
        .filter_map(|name| Some((name, std::env::var_os(name)?)));
    // Slurm writes the output of jobs into a file in the current folder.
    let folder = std::env::var_os("HOME").unwrap_or_else(|| "/".into());
    let mut command = Command::new(program);
    command
        .args(rest)
        .env_clear()
        .envs(known)
        .current_dir(folder)
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let program = || program.to_owned();
    let output = match timeout(options.limit, command.output()).await {
        Ok(Ok(output)) => output,
        Ok(Err(source)) => {
            return Err(CommandError::Start {
                program: program(),
                source,
            });
        }
        Err(_) => {
            return Err(CommandError::Slow {
                program: program(),
                after: options.limit,
            });
        }
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    let errors: Vec<&str> = errors.split_whitespace().collect();
    let words = match errors.join(" ") {
        none if none.is_empty() => output.status.to_string(),
        words => words,
    };
    Ok(Said {
        succeeded: output.status.success(),
        output: String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        words: format!("{}: {words}", program())
            .chars()
            .take(LONGEST_WORDS)
            .collect(),
    })
}

/// The state of a job in the batch system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobState {
    Pending,
    Running,
    /// It will never start.
    Failed,
    /// The job has ended, or the batch system no longer knows it.
    Gone,
    /// The batch system did not answer.
    Unknown,
}

/// The first word of the output decides: a state of Slurm, a letter of PBS, or the letters of Grid Engine. For a forgotten
/// job, Slurm prints an error, and other systems nothing.
pub(crate) fn job_state(said: &Result<Said, CommandError>) -> JobState {
    const PENDING: [&str; 18] = [
        "PENDING",
        "PD",
        "CONFIGURING",
        "CF",
        "REQUEUED",
        "REQUEUE_FED",
        "REQUEUE_HOLD",
        "RESV_DEL_HOLD",
        "SUSPENDED",
        "STOPPED",
        "QUEUED",
        "Q",
        "T",
        "HELD",
        "H",
        "WAITING",
        "W",
        "S",
    ];
    const RUNNING: [&str; 8] = [
        "RUNNING",
        "R",
        "COMPLETING",
        "CG",
        "RESIZING",
        "SIGNALING",
        "STAGE_OUT",
        "E",
    ];
    let Ok(said) = said else {
        return JobState::Unknown;
    };
    if !said.succeeded {
        let words = said.words.to_ascii_lowercase();
        let forgotten = [
            "invalid job id",
            "unknown job",
            "no such job",
            "jobs do not exist",
        ];
        return match forgotten.iter().any(|known| words.contains(known)) {
            true => JobState::Gone,
            false => JobState::Unknown,
        };
    }
    let word = said.output.split_whitespace().next().unwrap_or_default();
    match word.to_ascii_uppercase().as_str() {
        capitals if PENDING.contains(&capitals) => JobState::Pending,
        capitals if RUNNING.contains(&capitals) => JobState::Running,
        "SPECIAL_EXIT" => JobState::Failed,
        _ => grid_engine_state(word),
    }
}

/// Grid Engine combines letters, for example in `hRqw`: held, restarted, queued, waiting.
fn grid_engine_state(letters: &str) -> JobState {
    let has = |some: &str| letters.contains(|letter| some.contains(letter));
    let is_state = !letters.is_empty() && letters.chars().all(|one| "dhqrstwERST".contains(one));
    match is_state {
        false => JobState::Gone,
        // It is being deleted.
        true if has("d") => JobState::Running,
        true if has("E") => JobState::Failed,
        true if has("hqwsST") => JobState::Pending,
        true => JobState::Running,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn words(text: &[&str]) -> Vec<String> {
        text.iter().map(|word| (*word).to_owned()).collect()
    }

    #[tokio::test]
    async fn a_command_is_no_shell_and_sees_no_secret() {
        let mut options = CommandOptions {
            limit: Duration::from_secs(60),
            environment: Vec::new(),
        };
        let said = run(&words(&["printf", "%s", "$HOME; x"]), &options)
            .await
            .unwrap();
        assert_eq!(said.output, "$HOME; x");
        let said = run(&words(&["env"]), &options).await.unwrap();
        let names = said
            .output
            .lines()
            .filter_map(|line| line.split('=').next());
        for name in names {
            assert!(INHERITED.contains(&name), "{name}");
        }
        let failed = run(&words(&["ls", "/nowhere"]), &options).await.unwrap();
        assert!(
            !failed.succeeded && failed.words.starts_with("ls: "),
            "{failed:?}"
        );
        let missing = run(&words(&["/nowhere/sbatch"]), &options)
            .await
            .unwrap_err();
        assert!(missing.to_string().contains("could not be started"));
        options.environment.push("CARGO_PKG_NAME".to_owned());
        let said = run(&words(&["printenv", "CARGO_PKG_NAME"]), &options).await;
        assert_eq!(said.unwrap().output, "baton-broker");
        options.limit = Duration::from_millis(10);
        let slow = run(&words(&["sleep", "600"]), &options).await;
        assert!(matches!(slow, Err(CommandError::Slow { .. })));
    }

    #[test]
    fn the_first_word_says_what_a_job_does() {
        let state = |succeeded, text: &str| {
            job_state(&Ok(Said {
                succeeded,
                output: text.to_owned(),
                words: text.to_owned(),
            }))
        };
        assert_eq!(state(true, "PENDING"), JobState::Pending);
        assert_eq!(state(true, "running 1"), JobState::Running);
        for gone in ["", "FAILED", "NODE_FAIL", "COMPLETED", "TIMEOUT", "C", "F"] {
            assert_eq!(state(true, gone), JobState::Gone, "{gone}");
        }
        for pending in [
            "qw",
            "hqw",
            "hRqw",
            "Rq",
            "s",
            "S",
            "tS",
            "T",
            "SUSPENDED",
            "STOPPED",
            "W",
        ] {
            assert_eq!(state(true, pending), JobState::Pending, "{pending}");
        }
        for running in ["r", "Rr", "Rt", "dr", "dt", "R", "E", "RESIZING"] {
            assert_eq!(state(true, running), JobState::Running, "{running}");
        }
        for failed in ["Eqw", "Ehqw", "SPECIAL_EXIT"] {
            assert_eq!(state(true, failed), JobState::Failed, "{failed}");
        }
        let forgotten = "slurm_load_jobs error: Invalid job id specified";
        assert_eq!(state(false, forgotten), JobState::Gone);
        assert_eq!(
            state(false, "Following jobs do not exist: 7"),
            JobState::Gone
        );
        let away = "slurm_load_jobs error: Unable to contact slurm controller";
        assert_eq!(state(false, away), JobState::Unknown);
    }
}
