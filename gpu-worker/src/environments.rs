//! The environments that this worker offers besides its own Python.
//!
//! In: the administrator's settings. Out: the state of each environment, and its Python once it is ready. A task
//! for each environment builds it, if it has a lock, and lets a session run a cell in it. After a failure it tries
//! again.
//!
//! **Invariant:** the worker does not fail because an environment does.

use baton_protocol::{Environment, EnvironmentState, Lock};
use std::{collections::BTreeMap, path::PathBuf};
use tokio::sync::{Notify, watch};

/// An environment that the administrator names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvironmentConfig {
    pub name: String,
    pub source: EnvironmentSource,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EnvironmentSource {
    /// An installed interpreter.
    Python(PathBuf),
    /// A `uv.lock`, or a requirements file with hashes.
    Lock(PathBuf),
    /// A root file system in a folder, and the path of its Python inside, if that is in an unusual place.
    Image {
        root: PathBuf,
        python: Option<PathBuf>,
    },
}

/// All that the worker knows about one environment.
#[derive(Debug, Clone)]
pub(crate) struct Known {
    pub(crate) state: EnvironmentState,
    pub(crate) python_version: Option<String>,
    /// The hash of its lock, and the lock.
    pub(crate) lock: Option<(String, Lock)>,
    /// Set once it has been ready.
    pub(crate) python: Option<PathBuf>,
}

pub(crate) struct Environments {
    known: watch::Sender<BTreeMap<String, Known>>,
    /// For each environment, tells its task to try it again.
    doubts: BTreeMap<String, Notify>,
}

impl Environments {
    pub(crate) fn new(configs: &[EnvironmentConfig]) -> Self {
        let known = Known {
            state: EnvironmentState::Preparing {},
            python_version: None,
            lock: None,
            python: None,
        };
        let names = || configs.iter().map(|config| config.name.clone());
        let known = names().map(|name| (name, known.clone()));
        Self {
            known: watch::Sender::new(known.collect()),
            doubts: names().map(|name| (name, Notify::new())).collect(),
        }
    }

    /// The environments as the broker receives them.
    pub(crate) fn offered(&self) -> Vec<Environment> {
        let known = self.known.borrow();
        let offered = known.iter().map(|(name, known)| Environment {
            name: name.clone(),
            lock: known.lock.as_ref().map(|(digest, _)| digest.clone()),
            python_version: known.python_version.clone(),
            state: known.state.clone(),
        });
        offered.collect()
    }

    pub(crate) fn are_being_prepared(&self) -> bool {
        let is_preparing = |known: &Known| matches!(known.state, EnvironmentState::Preparing {});
        self.known.borrow().values().any(is_preparing)
    }

    /// Changes when the offered environments change.
    pub(crate) fn changes(&self) -> watch::Receiver<impl Sized + use<>> {
        self.known.subscribe()
    }

    /// The Python of a ready environment, or why it is not ready.
    pub(crate) fn python(&self, name: &str) -> Result<PathBuf, String> {
        let known = self.known.borrow();
        let Some(known) = known.get(name) else {
            return Err("this worker does not offer it".to_owned());
        };
        match (&known.state, &known.python) {
            (EnvironmentState::Ready {}, Some(python)) => Ok(python.clone()),
            (EnvironmentState::Failed { reason }, _) => Err(reason.clone()),
            _ => Err("it is still being prepared".to_owned()),
        }
    }

    pub(crate) fn lock(&self, name: &str) -> Option<Lock> {
        let known = self.known.borrow();
        let (_, lock) = known.get(name)?.lock.as_ref()?;
        Some(lock.clone())
    }

    /// A session in it did not start, so it accepts no cells until it passes another trial.
    pub(crate) fn doubt(&self, name: &str) {
        if let Some(doubt) = self.doubts.get(name) {
            self.change(name, |known| known.state = EnvironmentState::Preparing {});
            doubt.notify_one();
        }
    }

    pub(crate) async fn doubted(&self, name: &str) {
        match self.doubts.get(name) {
            Some(doubt) => doubt.notified().await,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn change(&self, name: &str, change: impl FnOnce(&mut Known)) {
        self.known.send_modify(|known| {
            if let Some(known) = known.get_mut(name) {
                change(known);
            }
        });
    }
}
