//! Prepares one environment, from its settings to the first session that runs a cell in it, again and again until
//! that works.

use crate::{
    context::Context,
    environments::{EnvironmentConfig, EnvironmentSource, Environments},
    sandbox::{Image, SandboxError, install, install_bare},
};
use anyhow::Context as _;
use baton_environments::{
    BuildError, Builder, CompleteEnvironment, Folder, Runner, Step, Taken, build, digest, find_uv,
    packages_of, read_lock,
};
use baton_protocol::{EnvironmentState, Lock};
use std::{
    path::{Path, PathBuf},
    process::Output,
    sync::Arc,
    time::Duration,
};
use tokio::task::JoinSet;

/// The pause between two attempts grows from this to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// How often the lock of an environment that is ready is checked for changes.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// An environment that has passed its trial.
struct Working {
    python: PathBuf,
    version: String,
    /// With its hash, if the environment was built from a lock.
    lock: Option<(String, Lock)>,
}

/// Builds and tries all environments, until the returned set is dropped.
pub(crate) fn begin(context: &Arc<Context>) -> JoinSet<()> {
    let configs = context.config.environments.iter().cloned();
    let prepared = configs.map(|config| prepare(Arc::clone(context), config));
    prepared.collect()
}

async fn prepare(context: Arc<Context>, config: EnvironmentConfig) {
    let environments = &context.environments;
    let name = config.name.as_str();
    let mut pause = PAUSE;
    // Environments that sessions may still use although the lock has changed since.
    let mut held = Vec::new();
    let mut before: Option<PathBuf> = None;
    loop {
        let why = match attempt(&context, &config, &mut held).await {
            Ok(working) => {
                let Working {
                    python,
                    version,
                    lock,
                } = working;
                tracing::info!("The environment {name} is ready (Python {version})");
                pause = PAUSE;
                if let Some(before) = before
                    .replace(python.clone())
                    .filter(|before| *before != python)
                {
                    context.zygotes.forget(&before);
                }
                context.zygotes.expect(&python);
                let digest = lock.as_ref().map(|(digest, _)| digest.clone());
                environments.change(name, |known| {
                    known.state = EnvironmentState::Ready {};
                    known.python_version = Some(version);
                    known.python = Some(python);
                    known.lock = lock;
                });
                until_doubted_or_changed(environments, &config, digest.as_deref()).await;
                continue;
            }
            Err(error) => format!("{error:#}"),
        };
        if environments.python(name).is_ok() {
            tracing::error!(
                "The new lock of the environment {name} does not work, so cells run with the earlier one: {why}"
            );
        } else {
            tracing::error!("No cell runs in the environment {name}: {why}");
            environments.change(name, |known| {
                known.state = EnvironmentState::Failed { reason: why };
            });
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = environments.doubted(name) => {}
        }
        pause = (2 * pause).min(LONGEST_PAUSE);
    }
}

/// Returns when a session has failed to start, or when the administrator has replaced the lock.
async fn until_doubted_or_changed(
    environments: &Environments,
    config: &EnvironmentConfig,
    current: Option<&str>,
) {
    loop {
        tokio::select! {
            () = environments.doubted(&config.name) => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        if let EnvironmentSource::Lock(path) = &config.source
            // A lock that cannot be read may be in the middle of being written.
            && let Ok(lock) = read_lock(path)
            && current != Some(&*digest(&lock))
        {
            return;
        }
    }
}

async fn attempt(
    context: &Context,
    config: &EnvironmentConfig,
    held: &mut Vec<CompleteEnvironment>,
) -> anyhow::Result<Working> {
    let mut locked = None;
    let python = match &config.source {
        EnvironmentSource::Python(python) => python.clone(),
        EnvironmentSource::Image { root, python } => {
            image(context, root, python.as_deref()).await?
        }
        EnvironmentSource::Lock(path) => {
            // Read again, because the administrator may have repaired it.
            let lock = read_lock(path)?;
            let built = built(context, &config.name, &lock).await?;
            locked = Some((digest(&lock), lock));
            let python = built.folder().python();
            if !held.iter().any(|held| held.folder() == built.folder()) {
                held.push(built);
            }
            python
        }
    };
    let tried = context.try_a_session_of(&python).await;
    let version = tried.map_err(|error| {
        let (why, _) = error.explained();
        anyhow::anyhow!(why.trim_end().to_owned())
    })?;
    Ok(Working {
        python,
        version,
        lock: locked,
    })
}

/// Returns the path of the image's Python on this machine.
async fn image(context: &Context, root: &Path, python: Option<&Path>) -> anyhow::Result<PathBuf> {
    let sandbox = context.sandbox.as_ref();
    let sandbox = sandbox.context(
        "An image needs a sandbox\nhint: set worker.sandbox = \"bubblewrap\", or name an installed Python",
    )?;
    anyhow::ensure!(
        root.is_dir(),
        "{} is not a folder\nhint: unpack the image's file system there, for example with `docker export`",
        root.display()
    );
    let python = Image::python(root, python).with_context(|| {
        let root = root.display();
        format!(
            "The image in {root} has no Python there\nhint: name its path inside with python = \"/PATH\""
        )
    })?;
    let packages = packages_of(own_python(context)?).await?;
    let image = Image::new(root.to_owned(), packages);
    match sandbox.add_image(&context.config, image, &python).await {
        Ok(()) => Ok(python),
        Err(SandboxError::Fails { said }) => Err(anyhow::anyhow!(
            "{} does not run in a sandbox: {said}\nhint: an image needs Python 3.11 or later, with its libraries in the usual folders of its system",
            python.display()
        )),
        Err(error) => Err(error.into()),
    }
}

fn own_python(context: &Context) -> anyhow::Result<&Path> {
    let config = &context.config;
    let own = config.python.as_deref().or(config.usual_python.as_deref());
    own.context("The worker has no Python of its own\nhint: set worker.python")
}

async fn built(context: &Context, name: &str, lock: &Lock) -> anyhow::Result<CompleteEnvironment> {
    let config = &context.config;
    let own = own_python(context)?;
    let builder = Builder {
        uv: find_uv()?,
        packages: packages_of(own).await?,
        python: None,
        is_shared: true,
        usual_python: Some(own.to_owned()),
    };
    let folder = Folder::new(config.environments_folder.clone());
    let key = builder.key(lock);
    loop {
        match folder.take(&key).await? {
            Taken::Complete(held) => return Ok(held),
            Taken::Empty(vacant) => {
                tracing::info!("Building the environment {name} from its lock");
                let work = vacant.folder().work();
                let runner = BuildRunner {
                    context,
                    python: own,
                    work: &work,
                };
                build(&builder, lock, vacant.folder(), &runner).await?;
                vacant.complete()?;
            }
        }
    }
}

/// Runs the steps of a build, in a sandbox if sessions have one.
struct BuildRunner<'a> {
    context: &'a Context,
    python: &'a Path,
    /// The only folder that the build can write to.
    work: &'a Path,
}

impl Runner for BuildRunner<'_> {
    async fn run(&self, step: &Step) -> Result<Output, BuildError> {
        let config = &self.context.config;
        match &self.context.sandbox {
            Some(sandbox) => {
                let installed = install(sandbox, config, self.python, self.work, step);
                let installed = installed.await;
                installed.map_err(|error| BuildError::Runner(error.to_string()))
            }
            None => Ok(install_bare(step).await?),
        }
    }
}
