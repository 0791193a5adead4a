//! What notebooks need: a Python with packages, and a kernelspec that starts it.

use super::Finding;
use crate::{
    python::{self, Python},
    settings::ProcessEnvironment,
};
use anyhow::bail;
use baton_jupyter_client::{Kernel, Kernelspec};
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

const PACKAGES: [&str; 3] = ["ipykernel", "cloudpickle", "msgpack"];
const SHIM: &str = "baton_shim";
const OLDEST_PYTHON: (u32, u32) = (3, 11);
/// The limit for the start of a kernel, which takes seconds on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn check(process: &ProcessEnvironment, python: &Path) -> Vec<Finding> {
    let names: Vec<&str> = PACKAGES.into_iter().chain([SHIM]).collect();
    let python = match python::probe(python, &names) {
        Ok(python) => python,
        Err(error) => {
            let fix = "name a Python that works with --python";
            return vec![Finding::wrong(format!("{error:#}"), fix)];
        }
    };
    let mut findings = vec![version(&python)];
    findings.extend(PACKAGES.map(|package| installed(&python, package)));
    findings.push(shim(&python));
    findings.push(kernelspec(process, &python));
    findings
}

fn version(python: &Python) -> Finding {
    let shown = python.executable.display();
    if python.minor_version() < OLDEST_PYTHON {
        return Finding::wrong(
            format!("{shown} is Python {}, which is too old", python.version),
            "use Python 3.11 or newer",
        );
    }
    Finding::Good(format!("{shown} is Python {}", python.version))
}

fn installed(python: &Python, package: &str) -> Finding {
    match &python.packages[package] {
        Some(version) => Finding::Good(format!("Python has {package} {version}")),
        None => Finding::wrong(
            format!("Python does not have {package}"),
            format!("{} -m pip install {package}", python.executable.display()),
        ),
    }
}

/// Package and program must have the same version. At run time the proxy only logs a difference.
fn shim(python: &Python) -> Finding {
    let own = env!("CARGO_PKG_VERSION");
    match &python.packages[SHIM] {
        Some(version) if version == own => Finding::Good(format!(
            "Baton's Python package has version {own}, like this program"
        )),
        Some(version) => Finding::wrong(
            format!(
                "Baton's Python package has version {version}, but this program has version {own}"
            ),
            reinstall(python),
        ),
        None => Finding::wrong("Python does not have Baton's package", reinstall(python)),
    }
}

fn reinstall(python: &Python) -> String {
    let (python, own) = (python.executable.display(), env!("CARGO_PKG_VERSION"));
    format!(
        "install Baton {own} into this Python as you installed this program, from its source folder: {python} -m pip install --force-reinstall ."
    )
}

fn kernelspec(process: &ProcessEnvironment, python: &Python) -> Finding {
    let places = [
        process.jupyter_folder(),
        python.prefix.join("share/jupyter"),
        PathBuf::from("/usr/local/share/jupyter"),
        PathBuf::from("/usr/share/jupyter"),
    ];
    let mut files = places
        .iter()
        .map(|place| place.join("kernels/baton/kernel.json"));
    let Some(file) = files.find(|file| file.is_file()) else {
        return Finding::wrong(
            "Jupyter does not know the kernel \"Python (shared GPU)\"",
            "baton install",
        );
    };
    let shown = file.display();
    let specification = match Kernelspec::read(&file, &python.executable) {
        Ok(specification) if is_own(&specification) => specification,
        _ => return Finding::wrong(format!("{shown} is not valid"), "baton install"),
    };
    let program = specification.program();
    if program.is_absolute() && !program.is_file() {
        let missing = format!("{shown} names a Python that does not exist");
        return Finding::wrong(missing, "baton install");
    }
    match runs_a_cell(&specification) {
        Ok(()) => Finding::Good(format!("The kernel of {shown} starts and runs a cell")),
        Err(error) => Finding::wrong(
            format!("The kernel of {shown} cannot run a cell. {error:#}"),
            reinstall(python),
        ),
    }
}

fn is_own(specification: &Kernelspec) -> bool {
    let arguments = specification.arguments();
    let has = |text: &str| arguments.iter().any(|argument| argument == text);
    has(SHIM) && has("{connection_file}")
}

/// Runs a cell as a notebook would.
fn runs_a_cell(specification: &Kernelspec) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let reply = runtime.block_on(async {
        let mut kernel = Kernel::start(specification, PATIENCE).await?;
        let reply = kernel.run("6 * 7", drop).await;
        kernel.shut_down().await;
        reply
    })?;
    match reply.error {
        None => Ok(()),
        Some(error) => bail!("{}: {}", error.ename, error.evalue),
    }
}
