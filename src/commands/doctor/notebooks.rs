//! What notebooks need: a Python with packages, and a kernelspec that starts it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::Finding;
use crate::{
    python::{self, Python},
    settings::Surroundings,
};

const PACKAGES: [&str; 3] = ["ipykernel", "cloudpickle", "msgpack"];
const SHIM: &str = "baton_shim";
const OLDEST_PYTHON: (u32, u32) = (3, 11);

pub(super) fn check(surroundings: &Surroundings, python: &Path) -> Vec<Finding> {
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
    findings.push(kernelspec(surroundings, &python));
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

/// The package and this program are one: they speak without asking for each other's version.
fn shim(python: &Python) -> Finding {
    let own = env!("CARGO_PKG_VERSION");
    let reinstall = format!(
        "{} -m pip install baton-jupyter=={own}",
        python.executable.display()
    );
    match &python.packages[SHIM] {
        Some(version) if version == own => Finding::Good(format!(
            "Baton's Python package has the version {own}, as this program"
        )),
        Some(version) => Finding::wrong(
            format!("Baton's Python package has the version {version}, this program {own}"),
            reinstall,
        ),
        None => Finding::wrong("Python does not have Baton's package", reinstall),
    }
}

fn kernelspec(surroundings: &Surroundings, python: &Python) -> Finding {
    let places = [
        surroundings.jupyter_folder(),
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
    match starts(&file) {
        Some(true) => Finding::Good(format!("{shown} starts the kernel")),
        Some(false) => Finding::wrong(
            format!("{shown} names a Python that is not there"),
            "baton install",
        ),
        None => Finding::wrong(format!("{shown} is not valid"), "baton install"),
    }
}

/// Whether the Python of a kernelspec exists. A bare `python` is the one that Jupyter itself runs in.
fn starts(file: &Path) -> Option<bool> {
    let specification: Value = serde_json::from_str(&fs::read_to_string(file).ok()?).ok()?;
    let arguments = specification["argv"].as_array()?;
    let has = |text: &str| arguments.iter().any(|argument| argument == text);
    let python = arguments.first()?.as_str()?;
    (has(SHIM) && has("{connection_file}"))
        .then(|| !python.contains('/') || Path::new(python).is_file())
}
