//! `baton install`: installs the kernelspec where Jupyter looks for it.

use crate::{python, settings::ProcessEnvironment};
use anyhow::Context;
use clap::{ArgGroup, Args};
use serde_json::{Value, json};
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

const SPECIFICATION: &str =
    include_str!("../../kernelspec/data/share/jupyter/kernels/baton/kernel.json");

const LOGOS: [(&str, &[u8]); 3] = [
    (
        "logo-32x32.png",
        include_bytes!("../../kernelspec/data/share/jupyter/kernels/baton/logo-32x32.png"),
    ),
    (
        "logo-64x64.png",
        include_bytes!("../../kernelspec/data/share/jupyter/kernels/baton/logo-64x64.png"),
    ),
    (
        "logo-svg.svg",
        include_bytes!("../../kernelspec/data/share/jupyter/kernels/baton/logo-svg.svg"),
    ),
];

/// The folder in which Jupyter finds kernels for all users.
const SYSTEM: &str = "/usr/local/share/jupyter";

/// Install the kernel "Python (shared GPU)" for Jupyter
#[derive(Args)]
#[command(group = ArgGroup::new("place"))]
pub(crate) struct Install {
    /// For this user (the default)
    #[arg(long, group = "place")]
    user: bool,
    /// For all users of this machine
    #[arg(long, group = "place")]
    system: bool,
    /// For the environment of the Python of the notebooks
    #[arg(long, group = "place")]
    sys_prefix: bool,
    /// Below PREFIX/share/jupyter
    #[arg(long, group = "place")]
    prefix: Option<PathBuf>,
    /// The Python in which notebooks run
    #[arg(long)]
    python: Option<PathBuf>,
}

pub(crate) fn main(process: &ProcessEnvironment, of: &Install) -> anyhow::Result<ExitCode> {
    let path = of.python.clone().unwrap_or_else(python::default_python);
    let python = python::probe(&path, &["baton_shim"])?;
    let jupyter = match &of.prefix {
        Some(prefix) => prefix.join("share/jupyter"),
        None if of.system => PathBuf::from(SYSTEM),
        None if of.sys_prefix => python.prefix.join("share/jupyter"),
        None => process.jupyter_folder(),
    };
    let folder = jupyter.join("kernels/baton");
    let specification = shown(specification(&python.executable)?);
    write(&folder, &specification)
        .with_context(|| format!("Failed to write the kernelspec into {}", folder.display()))?;
    outln!(
        "Installed the kernel \"Python (shared GPU)\" in {}",
        folder.display()
    );
    if python.packages["baton_shim"].is_none() {
        outln!(
            "hint: {} does not have Baton's Python package yet: install it there, then run `baton doctor`",
            python.executable.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The wheel's kernelspec with this Python, and with the path of this program if that Python would not find it.
pub(super) fn specification(python: &Path) -> anyhow::Result<Value> {
    let mut specification: Value =
        serde_json::from_str(SPECIFICATION).context("The built-in kernelspec is damaged")?;
    specification["argv"][0] = json!(python);
    let program = std::env::current_exe().context("Failed to find this program's own path")?;
    if program.parent() != python.parent() {
        specification["env"] = json!({ "BATON_BINARY": program });
    }
    Ok(specification)
}

pub(super) fn shown(specification: Value) -> String {
    format!("{specification:#}\n")
}

pub(super) fn write(folder: &Path, specification: &str) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for (name, bytes) in LOGOS {
        fs::write(folder.join(name), bytes)?;
    }
    // Last, because this file makes the kernel visible.
    fs::write(folder.join("kernel.json"), specification)
}
