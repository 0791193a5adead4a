//! Runs a pool's commands: never through a shell, with limits for time and output, and without the
//! broker's secrets.
//!
//! **Invariant:** a command that is given up is killed with all processes of its group.

use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, copy, sink},
    process::Command,
    time::timeout,
};

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

/// The most bytes of a command's output that are kept.
const MOST_OUTPUT: u64 = 64 * 1024;
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
    Start { program: String, source: io::Error },
    #[error("the output of {program} could not be read: {source}")]
    Unread { program: String, source: io::Error },
    #[error("{program} printed more than {} KiB", MOST_OUTPUT / 1024)]
    LongOutput { program: String },
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
        .stdin(Stdio::null());
    let program = program.to_owned();
    let ended = match timeout(options.limit, end_of(&mut command)).await {
        Ok(Ok(ended)) => ended,
        Ok(Err(Failure::Start(source))) => return Err(CommandError::Start { program, source }),
        Ok(Err(Failure::Read(source))) => return Err(CommandError::Unread { program, source }),
        Err(_) => {
            let after = options.limit;
            return Err(CommandError::Slow { program, after });
        }
    };
    let Some(output) = ended.output else {
        return Err(CommandError::LongOutput { program });
    };
    let errors = String::from_utf8_lossy(&ended.errors);
    let errors: Vec<&str> = errors.split_whitespace().collect();
    let words = match errors.join(" ") {
        none if none.is_empty() => ended.status.to_string(),
        words => words,
    };
    Ok(Said {
        succeeded: ended.status.success(),
        output: String::from_utf8_lossy(&output).trim().to_owned(),
        words: format!("{program}: {words}")
            .chars()
            .take(LONGEST_WORDS)
            .collect(),
    })
}

/// How a command ended.
struct End {
    status: ExitStatus,
    /// `None` if it is too long: an id or a state would be cut.
    output: Option<Vec<u8>>,
    /// The beginning.
    errors: Vec<u8>,
}

enum Failure {
    Start(io::Error),
    Read(io::Error),
}

/// Runs a command in a process group of its own, which is killed if the result is dropped.
async fn end_of(command: &mut Command) -> Result<End, Failure> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.process_group(0).spawn().map_err(Failure::Start)?;
    let group = Group::of(child.id());
    let read = async {
        let (output, errors) = tokio::try_join!(
            read_beginning(child.stdout.take()),
            read_beginning(child.stderr.take())
        )?;
        // Only now may the number of the group belong to others.
        let status = child.wait().await?;
        group.forget();
        Ok(End {
            status,
            output: (!output.was_cut).then_some(output.kept),
            errors: errors.kept,
        })
    };
    read.await.map_err(Failure::Read)
}

struct Beginning {
    kept: Vec<u8>,
    was_cut: bool,
}

/// Reads to the end, so that the command does not wait.
async fn read_beginning(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Beginning> {
    let mut kept = Vec::new();
    let Some(mut pipe) = pipe else {
        let was_cut = false;
        return Ok(Beginning { kept, was_cut });
    };
    (&mut pipe).take(MOST_OUTPUT).read_to_end(&mut kept).await?;
    let was_cut = copy(&mut pipe, &mut sink()).await? > 0;
    Ok(Beginning { kept, was_cut })
}

/// The process group of a command that is not reaped yet. It is killed on drop.
struct Group(Option<Pid>);

impl Group {
    fn of(leader: Option<u32>) -> Self {
        let leader = leader.and_then(|leader| i32::try_from(leader).ok());
        Self(leader.map(Pid::from_raw))
    }

    fn forget(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = killpg(group, Signal::SIGKILL);
        }
    }
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

    #[tokio::test]
    async fn output_is_limited() {
        let options = CommandOptions {
            limit: Duration::from_secs(60),
            environment: Vec::new(),
        };
        let printed = async |bytes: u64, shell: &str| {
            let script = format!("head -c {bytes} /dev/zero | tr '\\0' x {shell}");
            run(&words(&["sh", "-c", &script]), &options).await
        };
        let said = printed(MOST_OUTPUT, "").await.unwrap();
        assert_eq!(said.output.len() as u64, MOST_OUTPUT);
        let long = printed(MOST_OUTPUT + 1, "").await;
        assert!(matches!(long, Err(CommandError::LongOutput { .. })));
        let said = printed(4 * MOST_OUTPUT, ">&2; echo 7").await.unwrap();
        assert_eq!(said.output, "7");
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
