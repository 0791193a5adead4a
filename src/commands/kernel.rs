//! `baton kernel`: the command that Jupyter starts.
//!
//! Everything except the connection file and the Python belongs to the notebook kernel and is passed on
//! unchanged: clients may add arguments, for example `--HistoryManager.hist_file=:memory:`.

use crate::{
    logging, python, runtime,
    settings::{Flags, ProcessEnvironment, Settings, secrets},
};
use anyhow::Context;
use baton_kernel_proxy::{BrokerChoice, Config, ForkedKernel, LAUNCHER_MODULE, TrashConfig};
use baton_mirror::TrashLimits;
use baton_protocol::Priority;
use baton_transport::{Dial, TransportChoice};
use clap::Args;
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};
use tokio::runtime::Builder;

/// The limit for reads of the kernel's memory that are still running at the end.
const END: Duration = Duration::from_secs(1);

// Only for the help: `Arguments` below reads what Jupyter gives.
/// Run as a Jupyter kernel; started by Jupyter
#[derive(Args)]
pub(crate) struct KernelHelp {
    /// The connection file that Jupyter wrote
    #[arg(short = 'f', value_name = "FILE")]
    connection_file: Option<String>,
    /// The Python of the notebook
    #[arg(long)]
    python: Option<String>,
    /// All other arguments go to the notebook kernel unchanged
    arguments: Vec<String>,
}

pub(crate) fn main(
    process: &ProcessEnvironment,
    arguments: &[OsString],
) -> anyhow::Result<ExitCode> {
    logging::to_stderr(process, "warn");
    let arguments = Arguments::read(arguments);
    let choices = Choices::read(process).unwrap_or_else(|error| {
        tracing::error!("No %%gpu cell can run: {error:#}");
        Choices::misconfigured(&error)
    });
    let config = Config {
        connection_file: arguments.connection_file.context(
            "The connection file is missing: Jupyter starts this as `baton kernel -f FILE`",
        )?,
        python: arguments.python.unwrap_or_else(python::default_python),
        launcher_module: LAUNCHER_MODULE.to_owned(),
        forked: arguments.forked,
        kernel_arguments: arguments.others,
        broker: choices.broker,
        course: choices.course,
        priority: choices.priority,
        transport: choices.transport,
        patience: choices.patience,
        virtual_cuda: choices.virtual_cuda,
        trash: choices.trash,
    };
    // One thread runs the relay. The notebook kernel must be a child of a thread that stays alive,
    // which is this one.
    let runtime = runtime::start(Builder::new_current_thread())?;
    let code = runtime.block_on(baton_kernel_proxy::run(config))?;
    runtime.shutdown_timeout(END);
    Ok(u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from))
}

/// The settings that a kernel, or a program, needs.
pub(super) struct Choices {
    pub(super) broker: BrokerChoice,
    pub(super) course: Option<String>,
    pub(super) priority: Priority,
    pub(super) transport: TransportChoice,
    pub(super) patience: Duration,
    virtual_cuda: bool,
    pub(super) trash: TrashConfig,
}

impl Choices {
    pub(super) fn read(process: &ProcessEnvironment) -> anyhow::Result<Self> {
        let settings = Settings::read(process, Flags::new())?;
        Ok(Self {
            course: settings.course.clone(),
            priority: settings.priority,
            transport: settings.transport,
            patience: settings.broker_patience,
            virtual_cuda: settings.virtual_cuda,
            trash: TrashConfig {
                state_folder: settings.state_folder.clone(),
                limits: TrashLimits {
                    bytes: settings.trash_limit.bytes,
                    age: settings.trash_age,
                },
            },
            broker: broker_choice(settings)?,
        })
    }

    /// A mistake in the configuration must neither stop ordinary cells nor send others to the wrong place.
    pub(super) fn misconfigured(error: &anyhow::Error) -> Self {
        Self {
            broker: BrokerChoice::Misconfigured(format!("{error:#}")),
            course: None,
            priority: Priority::default(),
            transport: TransportChoice::default(),
            patience: Duration::ZERO,
            virtual_cuda: true,
            // No cell gets this far.
            trash: TrashConfig::default(),
        }
    }
}

fn broker_choice(settings: Settings) -> anyhow::Result<BrokerChoice> {
    if let Some(address) = settings.broker_address.clone() {
        let token = secrets::notebook_token(&settings)?;
        return Ok(BrokerChoice::Configured(Dial {
            address,
            token,
            ca_file: settings.ca_file,
        }));
    }
    let start_command = match settings.autostart {
        true => Some(start_command(&settings)?),
        false => None,
    };
    Ok(BrokerChoice::OfThisUser {
        runtime_folder: settings.runtime_folder,
        start_command,
    })
}

fn start_command(settings: &Settings) -> anyhow::Result<Vec<OsString>> {
    let program = std::env::current_exe().context("Failed to find this program's own path")?;
    let idle_exit = settings.up_idle_exit.unwrap_or(Duration::from_secs(600));
    let idle_exit = format!("{}ms", idle_exit.as_millis());
    let arguments = ["up", "--in-background", "--idle-exit", &idle_exit];
    Ok(std::iter::once(program.into_os_string())
        .chain(arguments.map(OsString::from))
        .collect())
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Arguments {
    connection_file: Option<PathBuf>,
    python: Option<PathBuf>,
    forked: Option<ForkedKernel>,
    others: Vec<OsString>,
}

impl Arguments {
    fn read(arguments: &[OsString]) -> Self {
        let mut read = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            let (name, value) = split(argument);
            if name == b"--forked" && read.forked.is_none() {
                read.forked = value.and_then(|value| value.to_str()?.parse().ok());
                continue;
            }
            let place = match name {
                b"-f" | b"--f" if read.connection_file.is_none() => &mut read.connection_file,
                b"--python" if read.python.is_none() => &mut read.python,
                _ => {
                    read.others.push(argument.clone());
                    continue;
                }
            };
            *place = value
                .or_else(|| rest.next().map(OsString::as_os_str))
                .map(PathBuf::from);
        }
        read
    }
}

/// Splits `--name=value`, or returns only the name.
fn split(argument: &OsStr) -> (&[u8], Option<&OsStr>) {
    let bytes = argument.as_bytes();
    match bytes.iter().position(|byte| *byte == b'=') {
        Some(place) => (
            &bytes[..place],
            Some(OsStr::from_bytes(&bytes[place + 1..])),
        ),
        None => (bytes, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, file: Option<&str>, python: Option<&str>, others: &str) {
        let words = |line: &str| line.split_whitespace().map(OsString::from).collect();
        let arguments: Vec<OsString> = words(line);
        let expected = Arguments {
            connection_file: file.map(PathBuf::from),
            python: python.map(PathBuf::from),
            forked: None,
            others: words(others),
        };
        assert_eq!(Arguments::read(&arguments), expected, "{line}");
    }

    #[test]
    fn only_file_and_python_are_ours() {
        check("-f a.json", Some("a.json"), None, "");
        check("--f=a.json", Some("a.json"), None, "");
        check("--f a.json", Some("a.json"), None, "");
        check("-f=a.json", Some("a.json"), None, "");
        check(
            "--python /p -f a --HistoryManager.hist_file=:memory: --debug x",
            Some("a"),
            Some("/p"),
            "--HistoryManager.hist_file=:memory: --debug x",
        );
        check("--python=/p --help -f a", Some("a"), Some("/p"), "--help");
        check("-f a -f b", Some("a"), None, "-f b");
        check("--foo=-f", None, None, "--foo=-f");
        check("-f", None, None, "");
        check("", None, None, "");
    }
}
