//! Builds environments in a sandbox, because the installation of a package may run its code. The sandbox is that of a
//! session. With bubblewrap it also has a network that leads to the internet, if the programs for it are installed;
//! with Landlock it has the session's network.
//!
//! In: one step of a build. Out: how it ended.
//!
//! **Invariant:** the only lasting folder to which a step can write is the one that it is given.

use super::{
    Bubblewrap, Landlock, NetworkChoice, Outermost, Sandbox, SandboxError, Variable,
    egress::Egress,
    guarded,
    sys::{end_with_parent, join},
};
use crate::Config;
use baton_environments::Step;
use std::{
    path::Path,
    process::{Output, Stdio},
};
use tokio::process::Command;

/// `python -c BECOME PROGRAM ARGUMENT...` confines itself and then executes the program.
const BECOME: &str = "import os, sys
from baton_shim.session import confinement
confinement.confine()
os.execv(sys.argv[1], sys.argv[1:])";

/// Runs one step of a build and returns its output. `python`: the worker's own Python, from which environments may
/// be made. `writable`: the folder to which the step may write.
pub(crate) async fn install(
    sandbox: &Sandbox,
    config: &Config,
    python: &Path,
    writable: &Path,
    step: &Step,
) -> Result<Output, SandboxError> {
    match sandbox {
        Sandbox::Bubblewrap(bubblewrap) => {
            install_in_bubblewrap(bubblewrap, config, python, writable, step).await
        }
        Sandbox::Landlock(landlock) => {
            install_under_landlock(landlock, python, writable, step).await
        }
    }
}

/// A Python process confines itself and then executes the step's program.
async fn install_under_landlock(
    landlock: &Landlock,
    python: &Path,
    writable: &Path,
    step: &Step,
) -> Result<Output, SandboxError> {
    let mut command = Command::new(python);
    command.env_clear().envs(step.environment.iter().cloned());
    let confined = landlock.build(&mut command, python, writable, &step.program);
    let confined = confined.await?;
    let guard = landlock.impose(&mut command, &confined, &step.folder)?;
    let guard = guard.given_to(&mut command);
    let works = guarded(guard)?.before(&mut command);
    let group = landlock.group()?;
    if let Some(group) = &group {
        join(&mut command, group.join_files()?);
    }
    command
        .current_dir("/")
        .args(["-c", BECOME])
        .arg(&step.program)
        .args(&step.arguments);
    let mut outermost = spawn(&mut command)?;
    drop(command);
    works.required().await?;
    Ok(ended(&mut outermost).await?)
}

async fn install_in_bubblewrap(
    bubblewrap: &Bubblewrap,
    config: &Config,
    python: &Path,
    writable: &Path,
    step: &Step,
) -> Result<Output, SandboxError> {
    let own_egress = match bubblewrap.network {
        // Not all builds need a network, so a build also runs if the programs for it are missing.
        NetworkChoice::None => Egress::open(&config.dial.address, &config.runtime_folder).ok(),
        NetworkChoice::Egress | NetworkChoice::Host => None,
    };
    let egress = bubblewrap.egress.as_ref().or(own_egress.as_ref());
    let mut view = bubblewrap.view(python).await?;
    view.read_only(&step.program);
    let variables = step.environment.iter();
    let variables: Vec<Variable<'_>> = variables
        .map(|(name, value)| (name.as_os_str(), Some(value.as_os_str())))
        .collect();
    view.of_environment(&variables, bubblewrap.limits.scratch_bytes);
    // Some packages look for a GPU while they are installed.
    view.devices(bubblewrap.devices.folder(), &bubblewrap.devices.all());
    view.writable(writable, writable);
    if let Some(egress) = egress {
        view.replaced("/etc/resolv.conf".as_ref(), &egress.resolver);
    }
    let mut command = Command::new(&bubblewrap.program);
    command.env_clear().envs(step.environment.iter().cloned());
    Bubblewrap::set_variables(&mut command);
    bubblewrap.enter(&mut command, &view)?;
    let gate = match egress {
        Some(egress) => Some((egress, egress.hold(&mut command)?)),
        None => None,
    };
    let group = bubblewrap.groups.create()?;
    if let Some(group) = &group {
        join(&mut command, group.join_files()?);
    }
    command
        .arg("--chdir")
        .arg(&step.folder)
        .arg("--")
        .arg(&step.program)
        .args(&step.arguments);
    let mut outermost = spawn(&mut command)?;
    drop(command);
    let _carrier = match gate {
        Some((egress, gate)) => Some(egress.connect(gate).await?),
        None => None,
    };
    Ok(ended(&mut outermost).await?)
}

/// Runs one step of a build without a sandbox.
pub(crate) async fn install_bare(step: &Step) -> std::io::Result<Output> {
    let mut command = Command::new(&step.program);
    command
        .env_clear()
        .envs(step.environment.iter().cloned())
        .args(&step.arguments)
        .current_dir(&step.folder);
    end_with_parent(&mut command);
    let mut outermost = spawn(&mut command)?;
    ended(&mut outermost).await
}

fn spawn(command: &mut Command) -> std::io::Result<Outermost> {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Outermost::spawn(command)
}

async fn ended(outermost: &mut Outermost) -> std::io::Result<Output> {
    let (stdout, stderr) = outermost.output().await?;
    let status = outermost.child().wait().await?;
    Ok(Output {
        status,
        stdout,
        stderr,
    })
}
