//! Zygotes: processes that have loaded Python libraries and fork sessions.
//!
//! In: the Pythons of sessions, and the libraries that they use. Out: a zygote for a Python, once one has been made and
//! tried. Until then, sessions start as fresh processes.
//!
//! **Invariant:** a zygote is used only after a probe in one of its forks has reached nothing outside the sandbox.

mod libraries;
mod parked;
mod process;
mod spare;
mod trial;

use self::libraries::Libraries;
use crate::{Config, gpu::Sharing, host_memory, sandbox::Sandbox};
use nix::unistd::Pid;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{sync::watch, task::JoinSet};

pub(super) use self::parked::{ForkRequest, Parked, bytes, variables};
pub(crate) use self::process::{Zygote, ZygoteError};
pub(crate) use self::spare::{Spare, SpareEnclosure};

/// How many Pythons have zygotes, besides those of environments. Each zygote takes memory, and notebooks may have many
/// Pythons.
const MOST_PYTHONS: usize = 2;

/// A zygote loads libraries only if this many bytes of memory are available: what all known libraries take.
const MEMORY_FOR_LIBRARIES: u64 = 1 << 30;

/// Libraries that no session has used yet are loaded only if this many bytes of memory are available.
const MEMORY_FOR_EXPECTED: u64 = 2 * MEMORY_FOR_LIBRARIES;

/// With less available memory, idle zygotes end.
const MEMORY_SHORT: u64 = MEMORY_FOR_LIBRARIES / 2;

/// A zygote is idle if no session has been forked from it for this long.
const IDLE: Duration = Duration::from_secs(600);

/// How long a session waits for a zygote.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the zygotes of a worker need to start sessions.
#[derive(Clone)]
pub(crate) struct Ground {
    pub(crate) config: Config,
    pub(crate) sandbox: Option<Arc<Sandbox>>,
    pub(crate) sharing: Sharing,
}

#[derive(Clone)]
enum State {
    Making,
    Failed,
    Warm(Arc<Zygote>),
}

pub(crate) struct Zygotes {
    warm: Mutex<HashMap<PathBuf, watch::Sender<State>>>,
    libraries: Mutex<Libraries>,
    /// Whether a lesson is about to begin.
    expects_people: AtomicBool,
    /// Background work that makes zygotes and prepares the next sessions.
    tasks: Mutex<JoinSet<()>>,
    /// The last field, because the sandbox, when it is dropped, waits until the control groups in the other fields are
    /// gone.
    ground: Ground,
}

impl Zygotes {
    pub(crate) fn open(ground: Ground) -> Arc<Self> {
        let libraries = Libraries::open(&ground.config);
        Arc::new(Self {
            warm: Mutex::default(),
            libraries: Mutex::new(libraries),
            expects_people: AtomicBool::new(false),
            tasks: Mutex::default(),
            ground,
        })
    }

    /// The zygote of this Python, if there is one. Waits for the first one while it is being made, because that is no
    /// slower than a fresh start.
    pub(crate) async fn warm(&self, python: &Path) -> Option<Arc<Zygote>> {
        let mut state = lock(&self.warm).get(python)?.subscribe();
        let made = state.wait_for(|state| !matches!(state, State::Making));
        match &*tokio::time::timeout(PATIENCE, made).await.ok()?.ok()? {
            State::Warm(zygote) if zygote.is_alive() => Some(zygote.clone()),
            _ => None,
        }
    }

    /// Makes the first zygote of this Python, with the modules that every session needs. One with libraries follows.
    pub(crate) async fn begin(self: &Arc<Self>, python: &Path) {
        // A zygote runs outside the sandbox, where it would not find an image's libraries.
        let sandbox = self.ground.sandbox.as_ref();
        if sandbox.is_some_and(|sandbox| sandbox.is_of_image(python)) {
            return;
        }
        {
            let mut warm = lock(&self.warm);
            let has_memory =
                |state: &&watch::Sender<State>| !matches!(*state.borrow(), State::Failed);
            let count = warm.values().filter(has_memory).count();
            let is_full = count >= MOST_PYTHONS + self.ground.config.environments.len();
            if !self.ground.config.warm_starts || is_full || warm.contains_key(python) {
                return;
            }
            warm.insert(python.to_owned(), watch::Sender::new(State::Making));
        }
        match self.make(python, &[]).await {
            Ok(()) => {
                if self.expects_people.load(Relaxed) {
                    self.guess(python).await;
                }
                if !lock(&self.libraries).wanted(python).is_empty() {
                    self.load(python);
                }
            }
            Err(error) => {
                tracing::warn!("Sessions start without a prepared process: {error}");
                self.set(python, State::Failed);
            }
        }
    }

    /// Loads libraries for a lesson that is about to begin, so that its first cells start fast.
    pub(crate) fn expect_people(self: &Arc<Self>) {
        if !self.expects_people.swap(true, Relaxed) {
            let pythons: Vec<_> = lock(&self.warm).keys().cloned().collect();
            for python in pythons {
                self.expect(&python);
            }
        }
    }

    /// Prepares for sessions of this Python. If no session of it was observed, they will probably use the libraries
    /// that are installed.
    pub(crate) fn expect(self: &Arc<Self>, python: &Path) {
        let (zygotes, python) = (self.clone(), python.to_owned());
        self.spawn(async move {
            let state = lock(&zygotes.warm)
                .get(&python)
                .map(watch::Sender::subscribe);
            let Some(mut state) = state else { return };
            // A first zygote that is still being made has no libraries.
            let made = state
                .wait_for(|state| !matches!(state, State::Making))
                .await;
            let is_warm = made.is_ok_and(|state| matches!(*state, State::Warm(_)));
            if is_warm && zygotes.guess(&python).await {
                zygotes.load(&python);
            }
        });
    }

    /// Guesses which libraries sessions of this Python will use. Returns whether more libraries should be loaded now.
    async fn guess(&self, python: &Path) -> bool {
        let has_room = host_memory::available_bytes() >= MEMORY_FOR_EXPECTED;
        if !has_room || lock(&self.libraries).has_past(python) {
            return false;
        }
        match libraries::installed(python).await {
            Ok(installed) => lock(&self.libraries).expect(python, installed),
            Err(error) => {
                tracing::warn!(
                    "Failed to find out which libraries {} has: {error}",
                    python.display()
                );
                false
            }
        }
    }

    /// Must be called when a session has run a cell. Prepares the next session. (Done earlier, this would take processor
    /// time from the cell.)
    ///
    /// `changed`: the session's kernel, if its mappings have changed. Finds out which libraries it has loaded, so that
    /// later sessions can have them.
    pub(crate) fn learn(self: &Arc<Self>, python: &Path, changed: Option<Pid>) {
        if !self.ground.config.warm_starts {
            return;
        }
        self.prepare_next(python);
        let has_news = changed.is_some_and(|kernel| lock(&self.libraries).learn(python, kernel));
        let state = lock(&self.warm)
            .get(python)
            .map(|state| state.borrow().clone());
        match state {
            None => self.begin_soon(python),
            Some(State::Warm(zygote)) if has_news || !zygote.is_alive() => self.load(python),
            Some(_) => {}
        }
    }

    /// Prepares what the next session of this Python needs, in the background.
    pub(crate) fn prepare_next(self: &Arc<Self>, python: &Path) {
        let state = lock(&self.warm)
            .get(python)
            .map(|state| state.borrow().clone());
        let Some(State::Warm(zygote)) = state else {
            return;
        };
        let sandbox = self.ground.sandbox.clone();
        self.spawn(async move {
            if let Err(error) = zygote.prepare_next(sandbox.as_deref()).await {
                tracing::warn!("The next session starts without preparation: {error}");
            }
        });
    }

    /// [`Self::begin`], in the background.
    pub(crate) fn begin_soon(self: &Arc<Self>, python: &Path) {
        let (zygotes, python) = (self.clone(), python.to_owned());
        self.spawn(async move { zygotes.begin(&python).await });
    }

    /// Makes a zygote with the wanted libraries in the background. It then replaces the present one.
    fn load(self: &Arc<Self>, python: &Path) {
        if host_memory::available_bytes() < MEMORY_FOR_LIBRARIES {
            tracing::info!(
                "Sessions start without prepared libraries, because too little memory is available"
            );
            return;
        }
        let (zygotes, python) = (self.clone(), python.to_owned());
        self.spawn(async move {
            loop {
                let wanted = lock(&zygotes.libraries).wanted(&python);
                match zygotes.make(&python, &wanted).await {
                    Ok(()) => return,
                    Err(ZygoteError::Library { library, why }) => {
                        tracing::warn!("Sessions cannot be prepared with {library}: it {why}");
                        lock(&zygotes.libraries).leave_out(&python, &library);
                    }
                    Err(error) => {
                        tracing::warn!("Sessions start without prepared libraries: {error}");
                        return;
                    }
                }
            }
        });
    }

    async fn make(
        self: &Arc<Self>,
        python: &Path,
        libraries: &[String],
    ) -> Result<(), ZygoteError> {
        let zygote = Zygote::start(&self.ground, python, libraries).await?;
        trial::run(&self.ground, python, &zygote).await?;
        if !libraries.is_empty() {
            tracing::info!(
                "Sessions start with these libraries loaded: {}",
                libraries.join(", ")
            );
        }
        self.set(python, State::Warm(Arc::new(zygote)));
        self.prepare_next(python);
        Ok(())
    }

    /// From now on, sessions of this Python start as fresh processes. `why` is for the log.
    pub(crate) fn give_up(&self, python: &Path, why: &dyn std::error::Error) {
        tracing::warn!(
            "Sessions start without a prepared process, because a fork of one failed: {why}"
        );
        self.set(python, State::Failed);
    }

    /// Drops the zygote of a Python, because no further session of this Python will start. Sessions that the zygote has
    /// forked continue.
    pub(crate) fn forget(&self, python: &Path) {
        self.set(python, State::Failed);
    }

    /// Ends idle zygotes if memory is short. Sessions that they have forked continue. A Python gets another zygote when
    /// its next session has run a cell.
    pub(crate) fn make_room(&self, available_bytes: u64) {
        end_idle(&mut lock(&self.warm), available_bytes);
    }

    fn set(&self, python: &Path, state: State) {
        if let Some(known) = lock(&self.warm).get(python) {
            known.send_replace(state);
        }
    }

    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(work);
    }
}

fn end_idle(warm: &mut HashMap<PathBuf, watch::Sender<State>>, available_bytes: u64) {
    if available_bytes >= MEMORY_SHORT {
        return;
    }
    warm.retain(|python, state| {
        let is_idle = matches!(&*state.borrow(), State::Warm(zygote) if zygote.idle() >= IDLE);
        if is_idle {
            let python = python.display();
            tracing::info!("The next session of {python} starts without a prepared process, because memory is short");
        }
        !is_idle
    });
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn idle_zygotes_end_when_memory_is_short() {
        let folder = tempfile::tempdir().unwrap();
        let (idle, busy) = (Path::new("/idle"), Path::new("/busy"));
        let zygote = || Arc::new(Zygote::idle_process(folder.path()));
        let mut warm = HashMap::new();
        let mut add =
            |python: &Path, state| warm.insert(python.to_owned(), watch::Sender::new(state));
        add(idle, State::Warm(zygote()));
        add(Path::new("/failed"), State::Failed);
        tokio::time::advance(IDLE).await;
        add(busy, State::Warm(zygote()));
        end_idle(&mut warm, MEMORY_SHORT);
        assert_eq!(warm.len(), 3);
        end_idle(&mut warm, MEMORY_SHORT - 1);
        assert_eq!(warm.len(), 2);
        assert!(!warm.contains_key(idle));
        assert!(warm.contains_key(busy));
    }
}
