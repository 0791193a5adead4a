//! What the jobs of a worker share. Each notebook has a copy with its own access to chunks.

use crate::{
    Config,
    environments::Environments,
    gpu::{Reading, Sharing},
    life_end::LifeEnd,
    messages,
    mirror::Files,
    sandbox::Sandbox,
    session::{Session, StartError, StartRequest, Zygote, Zygotes, start},
    transfer::Access,
};
use baton_protocol::{Cell, NotebookId, Submission, shim::Hello};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

#[derive(Clone)]
pub(crate) struct Context {
    pub(crate) config: Config,
    /// Environments that courses can require instead of the worker's own Python.
    pub(crate) environments: Arc<Environments>,
    /// The notebook's access to chunks.
    pub(crate) access: Access,
    /// How many jobs may run at once.
    pub(crate) slots: usize,
    /// One permit for each slot.
    pub(crate) permits: Arc<Semaphore>,
    /// Cancelled when the worker stops and running cells get no more time.
    pub(crate) stopping: CancellationToken,
    /// The end of the worker's time on this machine, if that time is limited.
    pub(crate) end: Option<LifeEnd>,
    /// How sessions share the GPU.
    pub(crate) sharing: Sharing,
    /// How sessions are isolated; `None` if they are not.
    pub(crate) sandbox: Option<Arc<Sandbox>>,
    /// Processes that fork sessions.
    pub(crate) zygotes: Arc<Zygotes>,
    /// What monitoring reports about the machine's GPUs.
    pub(crate) reading: watch::Receiver<Reading>,
}

impl Context {
    pub(crate) fn of_notebook(&self, notebook: NotebookId) -> Self {
        let mut context = self.clone();
        context.access.chunk_client = self.access.chunk_client.clone().of_notebook(notebook);
        context
    }

    /// How long a session may take to copy deferred state of the size that it has announced.
    pub(crate) fn copying_time(&self, deferred_bytes: u64) -> Duration {
        const SLOWEST_BYTES_PER_SECOND: u64 = 256 << 20;
        let bytes = deferred_bytes.min(self.access.state_limit_bytes());
        self.config.answer_patience + Duration::from_secs(bytes / SLOWEST_BYTES_PER_SECOND)
    }

    /// The Python of the environment. Without an environment, that of the worker, or else that of the notebook.
    ///
    /// # Errors
    /// A text that says why the environment has no Python.
    pub(crate) fn python(&self, environment: Option<&str>, cell: &Cell) -> Result<PathBuf, String> {
        match environment {
            Some(environment) => self.environments.python(environment),
            None => {
                let python = self.config.python.clone();
                Ok(python.unwrap_or_else(|| cell.python.clone().into()))
            }
        }
    }

    /// Starts a session with this Python, which is that of the environment if there is one.
    pub(crate) async fn start_session(
        &self,
        submission: &Submission,
        account: u64,
        (environment, python): (Option<&str>, PathBuf),
        files: Option<Files>,
    ) -> Result<Session, StartError> {
        let cell = &submission.cell;
        let (notebook_folder, mirror) = match files {
            Some(Files::Own(folder)) => (Some(folder), None),
            Some(Files::Mirrored(mirror)) => (None, Some(*mirror)),
            None => (None, None),
        };
        start(StartRequest {
            // Only an environment with a lock can also be installed on the notebook's machine.
            environment: environment.filter(|name| self.environments.lock(name).is_some()),
            notebook: submission.notebook,
            zygote: self.zygotes.warm(&python).await,
            python,
            folder: cell.folder.clone().into(),
            notebook_folder,
            sandbox: self.sandbox.as_deref(),
            mirror,
            exclusive: self.sharing.exclusive().await,
            sharing: &self.sharing,
            account,
            config: &self.config,
            is_trial: false,
        })
        .await
    }

    /// Tries a session with the worker's own Python, if it has one.
    pub(crate) async fn try_a_session(&self) -> Result<(), StartError> {
        match &self.config.python {
            Some(python) => self.try_a_session_of(python).await.map(drop),
            None => Ok(()),
        }
    }

    /// Tries a session with this Python, as a fork of a zygote if there is one. If the fork fails and a fresh process
    /// does not, the zygote is given up. Returns the version of this Python.
    pub(crate) async fn try_a_session_of(&self, python: &Path) -> Result<String, StartError> {
        let sandbox = self.sandbox.as_deref();
        self.zygotes.begin(python).await;
        let start = |zygote| try_a_session(&self.config, python, &self.sharing, sandbox, zygote);
        let hello = match self.zygotes.warm(python).await {
            None => start(None).await?,
            Some(zygote) => match start(Some(zygote)).await {
                Ok(hello) => {
                    self.zygotes.prepare_next(python);
                    hello
                }
                Err(error) => {
                    let hello = start(None).await?;
                    self.zygotes.give_up(python, &error);
                    hello
                }
            },
        };
        if let Some(error) = hello.gpu_error {
            let why = messages::no_gpu_in_sessions(&error);
            tracing::warn!("{}", why.replacen("\nhint: ", "; hint: ", 1));
        }
        Ok(hello.python_version)
    }
}

/// Starts a session that belongs to no notebook, lets it run a cell of its own, and ends it. Returns what it said.
pub(crate) async fn try_a_session(
    config: &Config,
    python: &Path,
    sharing: &Sharing,
    sandbox: Option<&Sandbox>,
    zygote: Option<Arc<Zygote>>,
) -> Result<Hello, StartError> {
    start(StartRequest {
        environment: None,
        notebook: NotebookId::random(),
        python: python.to_owned(),
        folder: PathBuf::new(),
        notebook_folder: None,
        sandbox,
        mirror: None,
        exclusive: sharing.exclusive().await,
        sharing,
        account: 0,
        config,
        zygote,
        is_trial: true,
    })
    .await
    .map(|session| session.hello.clone())
}
