//! This user's broker: its folder, and how to reach it.

use crate::settings::{Settings, secrets};
use anyhow::Context;
use baton_protocol::{WorkerId, address::BrokerAddress};
use baton_transport::{
    Dial, Token,
    own_service::{answers, check_private},
};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc,
    sys::prctl,
};
use std::{
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use tempfile::NamedTempFile;

/// How long a second `baton up` waits for the first one to answer or to end.
const OTHER_TIMEOUT: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);

/// Where to connect: the configured broker, or else this user's own on this machine.
pub(crate) fn dial(settings: &Settings) -> anyhow::Result<Dial> {
    let configured = secrets::command_token(settings)?;
    Ok(match &settings.broker_address {
        Some(address) => Dial {
            address: address.clone(),
            token: configured,
            ca_file: settings.ca_file.clone(),
        },
        None => {
            let folder = RuntimeFolder::open(&settings.runtime_folder)?;
            Dial {
                address: BrokerAddress::Unix(folder.socket()),
                token: configured.or_else(|| folder.existing_token()),
                ca_file: None,
            }
        }
    })
}

/// Whether there is no broker to ask: none is configured, and this user's own does not run.
pub(crate) fn is_yet_to_start(settings: &Settings) -> bool {
    let own = RuntimeFolder::open(&settings.runtime_folder);
    settings.broker_address.is_none() && !own.is_ok_and(|folder| folder.has_broker())
}

/// Keeps other processes of this user, such as a worker's sessions, from reading this process's
/// memory and initial environment, which contain tokens. Also disables its core dumps.
pub(crate) fn hide_memory() -> anyhow::Result<()> {
    prctl::set_dumpable(false)
        .context("Failed to protect this program's memory from other processes")
}

/// The address of the dashboard, with the token if one is needed.
pub(crate) fn dashboard(settings: &Settings) -> Option<String> {
    match &settings.broker_address {
        Some(BrokerAddress::Http(url)) => Some(format!("{url}/")),
        Some(BrokerAddress::Unix(_)) => None,
        None => {
            let folder = RuntimeFolder::open(&settings.runtime_folder).ok()?;
            let url = fs::read_to_string(folder.dashboard_file()).ok()?;
            Some(url.trim().to_owned())
        }
    }
}

/// A folder that only this user may enter.
pub(crate) struct RuntimeFolder {
    path: PathBuf,
}

impl RuntimeFolder {
    /// Checks that the folder is safe, or does not exist yet.
    fn open(path: &Path) -> anyhow::Result<Self> {
        check_private(path)
            .map_err(|problem| anyhow::anyhow!("{problem}\nhint: {}", problem.hint()))?;
        let path = path.to_owned();
        Ok(Self { path })
    }

    /// Makes the folder, or checks that an existing one is safe.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .with_context(|| format!("Failed to create the runtime folder {}", path.display()))?;
        Self::open(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path.join("broker.sock")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.path.join("up.log")
    }

    /// The secret of this user's broker. It is made once and kept, so that clients still have the
    /// right one after a restart.
    pub(crate) fn token(&self) -> anyhow::Result<String> {
        token_in(&self.path.join("token"))
    }

    fn existing_token(&self) -> Option<Token> {
        let text = fs::read_to_string(self.path.join("token")).ok()?;
        Some(Token::new(&text))
    }

    /// Stores the address of the dashboard, with its token, for `baton status`.
    pub(crate) fn write_dashboard(&self, url: Option<&str>) -> anyhow::Result<()> {
        let path = self.dashboard_file();
        let failed = || format!("Failed to write {}", path.display());
        match url {
            Some(url) => write_private(&path, url).with_context(failed),
            None => match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    Err(error).with_context(failed)
                }
                _ => Ok(()),
            },
        }
    }

    /// The identity of a worker of this name here. A worker that was killed returns as the same
    /// one, so that the broker knows at once what was lost with its former process. A second one of
    /// the same name, while the first runs, is a new worker.
    pub(crate) fn worker(&self, name: Option<&str>) -> anyhow::Result<WorkerPlace> {
        let own = name.map(|name| format!("-{}", name.replace('/', "-")));
        let path = self.path.join(format!("worker{}", own.unwrap_or_default()));
        let failed = || format!("Failed to use {}", path.display());
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true);
        let mut file = private_file(&path, options).with_context(failed)?;
        if !lock_for_this_process(&file).with_context(failed)? {
            let id = WorkerId::random();
            return Ok(WorkerPlace { id, _alone: None });
        }
        let mut text = String::new();
        file.read_to_string(&mut text).with_context(failed)?;
        let id = match text.trim().parse() {
            Ok(former) => WorkerId(former),
            Err(_) => {
                let id = WorkerId::random();
                file.set_len(0).with_context(failed)?;
                file.write_all_at(id.to_string().as_bytes(), 0)
                    .with_context(failed)?;
                id
            }
        };
        let _alone = Some(file);
        Ok(WorkerPlace { id, _alone })
    }

    fn dashboard_file(&self) -> PathBuf {
        self.path.join("dashboard.url")
    }

    fn lock_file(&self) -> PathBuf {
        self.path.join("lock")
    }

    fn has_broker(&self) -> bool {
        answers(&self.path, &self.socket()).unwrap_or(false)
    }

    /// The process of the broker that answers; `None` if there is none.
    pub(crate) fn holder(&self) -> Option<u32> {
        if !self.has_broker() {
            return None;
        }
        fs::read_to_string(self.lock_file())
            .ok()?
            .trim()
            .parse()
            .ok()
    }

    /// The right to be this user's broker, until the file is dropped. `None`: another process has
    /// it and answers.
    pub(crate) fn lock(&self) -> anyhow::Result<Option<File>> {
        let path = self.lock_file();
        let mut file = private_file(&path, OpenOptions::new().write(true).create(true))
            .with_context(|| format!("Failed to open {}", path.display()))?;
        let deadline = Instant::now() + OTHER_TIMEOUT;
        loop {
            match file.try_lock() {
                Ok(()) => {
                    file.set_len(0)
                        .and_then(|()| writeln!(file, "{}", std::process::id()))
                        .with_context(|| format!("Failed to write {}", path.display()))?;
                    return Ok(Some(file));
                }
                Err(TryLockError::Error(error)) => {
                    return Err(error)
                        .with_context(|| format!("Failed to lock {}", path.display()));
                }
                Err(TryLockError::WouldBlock) => {}
            }
            if self.has_broker() {
                return Ok(None);
            }
            anyhow::ensure!(
                Instant::now() < deadline,
                "Another `baton up` of this user holds {} and does not answer",
                path.display()
            );
            std::thread::sleep(POLL);
        }
    }
}

/// The right to be this worker, until it is dropped.
pub(crate) struct WorkerPlace {
    pub(crate) id: WorkerId,
    _alone: Option<File>,
}

/// The secret in a file that only this user may read; creates a new one if there is none.
pub(crate) fn token_in(path: &Path) -> anyhow::Result<String> {
    if let Some(token) = secrets::private_token(path)? {
        return Ok(token);
    }
    let token = new_token();
    replace_private(path, &token)
        .with_context(|| format!("Failed to write the token file {}", path.display()))?;
    Ok(token)
}

pub(crate) fn new_token() -> String {
    let half = || uuid::Uuid::new_v4().simple();
    format!("{}{}", half(), half())
}

/// Returns `false` if another process has the lock. The lock ends with this process, even if a
/// child that it is starting lives on, because children do not inherit it.
fn lock_for_this_process(file: &File) -> io::Result<bool> {
    let whole_file = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    match fcntl(file, FcntlArg::F_SETLK(&whole_file)) {
        Ok(_) => Ok(true),
        Err(Errno::EACCES | Errno::EAGAIN) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn write_private(path: &Path, text: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    let mut file = private_file(path, options.write(true).create(true).truncate(true))?;
    writeln!(file, "{text}")
}

/// Writes a file that only this user can read. It is new, because a file that exists would keep its
/// mode.
pub(crate) fn replace_private(path: &Path, text: &str) -> io::Result<()> {
    let mut file = NamedTempFile::new_in(folder_of(path))?;
    writeln!(file, "{text}")?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

pub(crate) fn folder_of(path: &Path) -> &Path {
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    folder.unwrap_or(Path::new("."))
}

fn private_file(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    options.mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn commands_use_no_runtime_folder_that_others_can_enter() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("baton");
        assert!(RuntimeFolder::open(&path).is_ok(), "it does not exist yet");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let error = RuntimeFolder::open(&path).err().unwrap().to_string();
        assert!(error.contains("Other users can enter"), "{error}");
        assert!(error.contains("\nhint: "), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(RuntimeFolder::open(&path).is_ok());
    }
}
