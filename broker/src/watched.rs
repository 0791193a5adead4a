//! A settings file that is read again whenever it changes. If a new version is invalid, the
//! previous one stays in use.

use anyhow::Context;
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{MissedTickBehavior, interval},
};

const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Differs between two versions of a file: modification time in s and ns, size, inode.
type Stamp = (i64, i64, u64, u64);

pub(crate) struct Watched<T> {
    /// `None` for settings that never change.
    file: Option<SettingsFile<T>>,
    newest: watch::Sender<Arc<T>>,
}

struct SettingsFile<T> {
    path: PathBuf,
    read: fn(&Path) -> anyhow::Result<T>,
    seen: Mutex<Stamp>,
}

impl<T> Watched<T> {
    pub(crate) fn open(
        path: PathBuf,
        read: fn(&Path) -> anyhow::Result<T>,
    ) -> anyhow::Result<Self> {
        let failed = || format!("Failed to use {}", path.display());
        let seen = stamp(&path).with_context(failed)?;
        let content = read(&path).with_context(failed)?;
        Ok(Self {
            file: Some(SettingsFile {
                path,
                read,
                seen: Mutex::new(seen),
            }),
            newest: watch::Sender::new(Arc::new(content)),
        })
    }

    /// Settings without a file.
    pub(crate) fn constant(content: T) -> Self {
        Self {
            file: None,
            newest: watch::Sender::new(Arc::new(content)),
        }
    }

    /// Checks the file first, which takes a system call.
    pub(crate) fn newest(&self) -> Arc<T> {
        self.look();
        Arc::clone(&self.newest.borrow())
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<T>> {
        self.newest.subscribe()
    }

    /// Checks the file regularly, for subscribers. Runs until it is dropped.
    pub(crate) async fn keep(&self) {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.look();
        }
    }

    fn look(&self) {
        let Some(SettingsFile { path, read, seen }) = &self.file else {
            return;
        };
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        // A missing file is probably about to be replaced. Until then its last contents stay in use.
        let Ok(now) = stamp(path) else { return };
        if now == std::mem::replace(&mut *seen, now) {
            return;
        }
        match read(path) {
            Ok(content) => {
                self.newest.send_replace(Arc::new(content));
                tracing::info!("{} was reloaded", path.display());
            }
            Err(error) => tracing::error!(
                "{} cannot be used; keeping its previous contents: {error:#}",
                path.display()
            ),
        }
    }
}

fn stamp(path: &Path) -> io::Result<Stamp> {
    let metadata = fs::metadata(path)?;
    Ok((
        metadata.mtime(),
        metadata.mtime_nsec(),
        metadata.size(),
        metadata.ino(),
    ))
}
