//! What a worker on this machine needs: a Python that runs cells, with the notebooks' packages, and its GPUs.

use super::Finding;
use crate::{
    commands::worker,
    python::{self, Python},
    service::{self, RuntimeFolder},
    settings::Settings,
};
use anyhow::Context;
use baton_environments::{find_uv, read_lock};
use baton_gpu_worker::{
    Config, EnvironmentConfig, EnvironmentSource, SandboxChoice,
    gpu::{self, GpuMode, Hardware, MONITORING},
};
use baton_protocol::WorkerId;
use std::{fs, path::Path};

/// Libraries whose objects are sent between notebook and worker.
const LIBRARIES: [&str; 12] = [
    "cloudpickle",
    "jax",
    "matplotlib",
    "numba",
    "numpy",
    "pandas",
    "polars",
    "scipy",
    "sklearn",
    "tensorflow",
    "torch",
    "torchvision",
];
/// The file that exists if the driver of Windows is loaded.
const WINDOWS_DRIVER: &str = "/dev/dxg";

const SETTINGS: &str = "correct the settings; `baton config reference` lists every one";

/// `notebook`: the Python of notebooks on this machine, which also runs the sessions of a worker
/// without a Python of its own.
pub(super) fn check(settings: &Settings, notebook: &Path) -> Vec<Finding> {
    let mut findings = gpus(settings);
    let own = settings.worker_python.as_deref();
    if let Some(worker) = own {
        findings.extend(differences(notebook, worker));
    }
    let python = own.unwrap_or(notebook);
    let (sandbox, has_sandbox) = sandbox(settings, python);
    findings.push(sandbox);
    findings.push(runs_a_cell(settings, python, has_sandbox));
    let environments = settings.environment.0.iter();
    findings.extend(environments.map(|config| environment(settings, config, has_sandbox)));
    findings
}

/// Checks an environment that courses can name. A lock is read but not built, which may take minutes.
fn environment(settings: &Settings, config: &EnvironmentConfig, in_sandbox: bool) -> Finding {
    let name = &config.name;
    let (checked, good) = match &config.source {
        EnvironmentSource::Python(python) => (
            try_a_session(settings, python, in_sandbox).map(drop),
            "a session of it starts and runs a cell",
        ),
        EnvironmentSource::Image { root, .. } => (
            fs::read_dir(root)
                .map(drop)
                .with_context(|| format!("{} cannot be read", root.display())),
            "its image exists",
        ),
        EnvironmentSource::Lock(lock) => (
            read_lock(lock)
                .map_err(anyhow::Error::new)
                .and_then(|_| Ok(find_uv()?))
                .map(drop),
            "a worker here can build it from its lock",
        ),
    };
    match checked {
        Ok(()) => Finding::Good(format!("The environment {name}: {good}")),
        Err(error) => {
            let error = format!("{error:#}");
            let (what, fix) = with_fix(&error);
            Finding::wrong(format!("The environment {name}: {what}"), fix)
        }
    }
}

/// Checks whether `baton worker` gets the sandbox that it wants. Also returns whether sessions here have one.
fn sandbox(settings: &Settings, python: &Path) -> (Finding, bool) {
    let config = match config(settings) {
        Ok(config) => config,
        Err(error) => return (Finding::wrong(format!("{error:#}"), SETTINGS), false),
    };
    if config.sandbox == SandboxChoice::None {
        let none = "Sessions have no sandbox, because worker.sandbox is \"none\": people who share this worker can read \
                    each other's data";
        return (Finding::Good(none.to_owned()), false);
    }
    let error = match on_a_runtime(baton_gpu_worker::try_the_sandbox(&config, python)) {
        Ok(()) => {
            let good =
                "A sandbox for sessions starts here, and a probe inside reaches nothing outside";
            let loud = match config.sandbox {
                SandboxChoice::Landlock => {
                    "; Landlock protects less than bubblewrap (docs/security.md)"
                }
                SandboxChoice::Bubblewrap | SandboxChoice::None => "",
            };
            return (Finding::Good(format!("{good}{loud}")), true);
        }
        Err(error) => format!("{error:#}"),
    };
    let (what, fix) = with_fix(&error);
    // Most machines are for notebooks, or for one person with `baton up`.
    let is_for_workers = settings.worker_sandbox.is_some() || settings.worker_python.is_some();
    let finding = match is_for_workers {
        true => Finding::wrong(what, fix),
        false => Finding::Good(format!(
            "`baton up` needs no sandbox; `baton worker` does, and would not start here: {what}"
        )),
    };
    (finding, false)
}

fn gpus(settings: &Settings) -> Vec<Finding> {
    if !gpu::driver_is_here() && !Path::new(WINDOWS_DRIVER).exists() {
        let none = "This machine has no NVIDIA GPU: a worker here computes on the processor";
        return vec![Finding::Good(none.to_owned())];
    }
    let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let gpus = gpu::gpus(MONITORING.as_ref(), visible.as_deref());
    let good = match gpus.len() {
        0 => {
            return vec![Finding::wrong(
                "This machine has a GPU that a worker cannot use",
                "check the output of `nvidia-smi` and the value of CUDA_VISIBLE_DEVICES",
            )];
        }
        1 => "A worker here has 1 GPU".to_owned(),
        count => format!("A worker here has {count} GPUs"),
    };
    vec![Finding::Good(good), time_sharing(settings, &gpus)]
}

fn time_sharing(settings: &Settings, gpus: &[Hardware]) -> Finding {
    if settings.worker_gpu_mode != GpuMode::Timeshare {
        let off = "Sessions here do not time-share a GPU: worker.gpu_mode sets another way";
        return Finding::Good(off.to_owned());
    }
    let tried = RuntimeFolder::create(&settings.runtime_folder).and_then(|folder| {
        let baton = std::env::current_exe()?;
        on_a_runtime(gpu::try_time_sharing(folder.path(), &baton, gpus))
    });
    match tried {
        Ok(()) => Finding::Good(
            "Time-sharing works here: two test programs shared the memory of a GPU".to_owned(),
        ),
        Err(error) => Finding::wrong(
            format!(
                "Time-sharing does not work here, so sessions use the GPU without it: {error:#}"
            ),
            "see \"How sessions share a GPU\" in Baton's documentation; \
             `worker.gpu_mode = \"open\"` switches time-sharing off",
        ),
    }
}

/// Packages of the notebooks' Python that the worker's lacks. The opposite does no harm.
fn differences(notebook: &Path, worker: &Path) -> Vec<Finding> {
    let worker = match python::probe(worker, &LIBRARIES) {
        Ok(worker) => worker,
        Err(error) => {
            let fix = "name a Python that works in `worker.python`";
            return vec![Finding::wrong(format!("{error:#}"), fix)];
        }
    };
    let Ok(notebook) = python::probe(notebook, &LIBRARIES) else {
        return Vec::new(); // another check reports this
    };
    let libraries = LIBRARIES.map(|name| same_library(&notebook, &worker, name));
    std::iter::once(same_python(&notebook, &worker))
        .chain(libraries.into_iter().flatten())
        .collect()
}

fn same_python(notebook: &Python, worker: &Python) -> Finding {
    let shown = worker.executable.display();
    if notebook.minor_version() == worker.minor_version() {
        return Finding::Good(format!("The worker's {shown} is Python {}", worker.version));
    }
    Finding::wrong(
        format!(
            "The worker's {shown} is Python {}, but notebooks here run Python {}: the worker refuses their cells",
            worker.version, notebook.version
        ),
        "give both the same minor version of Python",
    )
}

fn same_library(notebook: &Python, worker: &Python, name: &str) -> Option<Finding> {
    let expected = notebook.packages[name].as_ref()?;
    let found = worker.packages[name].as_ref();
    let package = if name == "sklearn" {
        "scikit-learn"
    } else {
        name
    };
    let what = match found {
        Some(found) if found == expected => return None,
        Some(found) => {
            format!("The worker has {package} {found}, but notebooks here have {expected}")
        }
        None => format!("The worker does not have {package}, which notebooks here have"),
    };
    let python = worker.executable.display();
    // `2.9.0+cu128` names a build; package indexes list only the version.
    let (version, _) = expected.split_once('+').unwrap_or((expected, ""));
    let fix = format!("{python} -m pip install {package}=={version}");
    Some(Finding::wrong(what, fix))
}

/// What a message says, and its hint.
fn with_fix(message: &str) -> (&str, &str) {
    message
        .split_once("\nhint: ")
        .unwrap_or((message, SETTINGS))
}

/// Runs a cell, as a worker does before it connects.
fn runs_a_cell(settings: &Settings, python: &Path, in_sandbox: bool) -> Finding {
    match try_a_session(settings, python, in_sandbox) {
        Ok(None) => Finding::Good("A session of a worker here starts and runs a cell".to_owned()),
        Ok(Some(warning)) => {
            let (what, fix) = with_fix(&warning);
            Finding::wrong(what, fix)
        }
        Err(error) => Finding::wrong(
            format!("A worker here cannot run cells. {error:#}"),
            format!(
                "if Baton is missing there, install Baton {} as you installed this program, from its source folder: {} -m pip install .",
                env!("CARGO_PKG_VERSION"),
                python.display(),
            ),
        ),
    }
}

fn try_a_session(
    settings: &Settings,
    python: &Path,
    in_sandbox: bool,
) -> anyhow::Result<Option<String>> {
    let mut config = config(settings)?;
    if !in_sandbox {
        config.sandbox = SandboxChoice::None;
    }
    config.python = Some(python.to_owned());
    on_a_runtime(baton_gpu_worker::try_a_session(&config, python))
}

fn config(settings: &Settings) -> anyhow::Result<Config> {
    let folder = RuntimeFolder::create(&settings.runtime_folder)?;
    let dial = service::dial(settings)?;
    Ok(worker::config(settings, WorkerId::random(), dial, &folder))
}

pub(super) fn on_a_runtime<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Runtime::new()?.block_on(work)
}
