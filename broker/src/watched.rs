//! A settings file that is read again whenever it changes. If a new version is invalid, the
//! previous one stays in use. A version that is still being written is not read: many programs empty
//! a file before they write it, and for example an empty file of people is valid. In the same way, a
//! file that is missing for a moment is being replaced.

use anyhow::Context;
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};
use tokio::{
    sync::watch,
    time::{Instant, MissedTickBehavior, interval},
};

const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A version that has not changed for this long is complete.
const COMPLETE_AFTER: Duration = Duration::from_millis(200);

/// Differs between two versions of a file. The time of the last change is also that of a new owner
/// or mode, with which the file may be usable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    modified: SystemTime,
    changed: (i64, i64),
    bytes: u64,
    inode: u64,
}

pub(crate) struct Watched<T> {
    /// `None` for settings that never change.
    file: Option<SettingsFile<T>>,
    newest: watch::Sender<Arc<T>>,
}

struct SettingsFile<T> {
    path: PathBuf,
    read: fn(&Path) -> anyhow::Result<T>,
    seen: Mutex<Seen>,
}

struct Seen {
    /// The last version that was read; `None` if the file was missing.
    read: Option<Stamp>,
    /// A newer one, and when it was seen first.
    newer: Option<(Option<Stamp>, Instant)>,
}

impl<T> Watched<T> {
    pub(crate) fn open(
        path: PathBuf,
        read: fn(&Path) -> anyhow::Result<T>,
    ) -> anyhow::Result<Self> {
        let failed = || format!("Failed to use {}", path.display());
        let stamp = Stamp::of(&path).with_context(failed)?;
        let content = read(&path).with_context(failed)?;
        let seen = Seen {
            read: Some(stamp),
            newer: None,
        };
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
        let now = Stamp::of(path).ok();
        if now == seen.read || !seen.is_complete(now) {
            return;
        }
        let content = read(path);
        // Otherwise it was written again meanwhile.
        if Stamp::of(path).ok() != now {
            return;
        }
        seen.read = now;
        match content {
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

impl Seen {
    /// Whether this version has been unchanged for a while, as far as its time or two looks at it show.
    fn is_complete(&mut self, now: Option<Stamp>) -> bool {
        let known = self.newer.filter(|(newer, _)| *newer == now);
        let (_, since) = *self.newer.insert(known.unwrap_or((now, Instant::now())));
        let age = now.and_then(|now| SystemTime::now().duration_since(now.modified).ok());
        age.is_some_and(|age| age >= COMPLETE_AFTER) || since.elapsed() >= COMPLETE_AFTER
    }
}

impl Stamp {
    fn of(path: &Path) -> io::Result<Self> {
        let metadata = fs::metadata(path)?;
        Ok(Self {
            modified: metadata.modified()?,
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            bytes: metadata.size(),
            inode: metadata.ino(),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::os::unix::fs::PermissionsExt as _;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn a_file_is_not_read_while_it_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("people.toml");
        // The file server's clock is ahead, so the file's time does not show its age.
        let write = |text: &str, modified: SystemTime| {
            fs::write(&path, text).unwrap();
            let file = fs::File::options().append(true).open(&path).unwrap();
            file.set_modified(modified).unwrap();
        };
        let later = SystemTime::now() + Duration::from_secs(3600);
        write("ada", later);
        let watched = Watched::open(path.clone(), |path| Ok(fs::read_to_string(path)?)).unwrap();
        let moment = COMPLETE_AFTER / 2;
        let check = async |expected: &str| {
            assert_eq!(*watched.newest(), expected);
            advance(moment).await;
            assert_eq!(*watched.newest(), expected);
        };
        write("", later);
        check("ada").await;
        write("ada, bob", later);
        check("ada").await;
        advance(moment).await;
        check("ada, bob").await;
        // An empty file is valid.
        write("", later);
        check("ada, bob").await;
        advance(moment).await;
        check("").await;
        // The file's time shows that nothing has written to it for a while.
        write("eve", SystemTime::now() - COMPLETE_AFTER);
        check("eve").await;
    }

    /// The number of bytes of a file that only its owner may read.
    fn private_bytes(path: &Path) -> anyhow::Result<u64> {
        let metadata = fs::metadata(path)?;
        anyhow::ensure!(metadata.mode() & 0o077 == 0, "Other users can read it");
        Ok(metadata.size())
    }

    #[tokio::test(start_paused = true)]
    async fn a_file_with_a_new_mode_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("people.toml");
        let set_mode = |mode| {
            let changed = || fs::metadata(&path).unwrap().ctime_nsec();
            let before = changed();
            // Two changes within one tick of the file system's clock have the same time.
            while changed() == before {
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            }
        };
        let settle = async |watched: &Watched<u64>| {
            watched.newest();
            advance(COMPLETE_AFTER).await;
            *watched.newest()
        };
        fs::write(&path, "ada, bob").unwrap();
        set_mode(0o600);
        let watched = Watched::open(path.clone(), private_bytes).unwrap();
        assert_eq!(*watched.newest(), 8);
        fs::write(&path, "ada").unwrap();
        set_mode(0o644);
        assert_eq!(settle(&watched).await, 8);
        set_mode(0o600);
        assert_eq!(settle(&watched).await, 3);
    }

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_file_is_logged_once_and_read_when_it_returns() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .finish();
        let _logging = tracing::subscriber::set_default(subscriber);
        let lines = || String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let (path, aside) = (folder.path().join("courses"), folder.path().join("aside"));
        fs::write(&path, "ml").unwrap();
        let watched = Watched::open(path.clone(), |path| Ok(fs::read_to_string(path)?)).unwrap();
        fs::rename(&path, &aside).unwrap();
        assert_eq!(*watched.newest(), "ml");
        // It may be about to be replaced.
        assert_eq!(lines(), "");
        for _ in 0..3 {
            advance(COMPLETE_AFTER).await;
            assert_eq!(*watched.newest(), "ml");
        }
        assert_eq!(lines().matches("No such file").count(), 1, "{}", lines());
        fs::write(&aside, "ml and vision").unwrap();
        fs::rename(&aside, &path).unwrap();
        watched.newest();
        advance(COMPLETE_AFTER).await;
        assert_eq!(*watched.newest(), "ml and vision");
    }
}
