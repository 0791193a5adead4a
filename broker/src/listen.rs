//! The address at which the broker listens, and the lock that makes it the only broker on its database.

use anyhow::Context;
use baton_protocol::address::BrokerAddress;
use std::{
    fs::{self, File},
    io::{ErrorKind, Read as _, Write as _},
    net::SocketAddr,
    os::unix::{
        fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
        net::UnixStream,
    },
    path::{Path, PathBuf},
};
use tokio::net::{TcpListener, UnixListener};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A socket that only this user can open.
    Unix(PathBuf),
    /// An address. It needs a token if others can reach it.
    Tcp(SocketAddr),
}

pub(crate) enum Listener {
    Unix(UnixListener, SocketFile),
    Tcp(TcpListener),
}

/// Removes the socket file on drop, unless another broker's is there.
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: Option<u64>,
}

impl SocketFile {
    fn of(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            inode: inode(path),
        }
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if inode(&self.path) == self.inode {
            // If this fails, the next broker detects the stale socket.
            drop(fs::remove_file(&self.path));
        }
    }
}

fn inode(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path)
        .ok()
        .map(|metadata| metadata.ino())
}

/// Without encryption, others on the network could read tokens, code and variables.
pub(crate) fn ensure_private(
    address: SocketAddr,
    encrypted: bool,
    behind_tls_proxy: bool,
) -> anyhow::Result<()> {
    anyhow::ensure!(
        encrypted || behind_tls_proxy || address.ip().is_loopback(),
        "{address} is reachable from other machines without encryption; tokens, code and variables would be readable\n\
         hint: set broker.tls_certificate and broker.tls_key; or broker.behind_tls_proxy = true behind a proxy \
         with TLS or in an encrypted network; or listen on 127.0.0.1"
    );
    Ok(())
}

/// `encrypted`: whether the listener is wrapped in TLS.
pub(crate) async fn bind(
    listen: &Listen,
    has_token: bool,
    encrypted: bool,
) -> anyhow::Result<(Listener, BrokerAddress)> {
    match listen {
        Listen::Unix(path) => {
            let listener = bind_private(path)
                .with_context(|| format!("Failed to listen on {}", path.display()))?;
            let address = BrokerAddress::Unix(path.clone());
            Ok((Listener::Unix(listener, SocketFile::of(path)), address))
        }
        Listen::Tcp(address) => {
            anyhow::ensure!(
                has_token || address.ip().is_loopback(),
                "{address} is reachable from other machines, and anyone who connects can run code on the workers: set a token, or listen on 127.0.0.1"
            );
            if !has_token {
                tracing::warn!(
                    "Without a token, every user of this machine can run code through this broker"
                );
            }
            let listener = TcpListener::bind(address)
                .await
                .with_context(|| format!("Failed to listen on {address}"))?;
            let bound = listener.local_addr().context("Failed to read the port")?;
            let scheme = if encrypted { "https" } else { "http" };
            let address = BrokerAddress::Http(format!("{scheme}://{bound}"));
            Ok((Listener::Tcp(listener), address))
        }
    }
}

/// Binds inside a private folder and then moves the socket, so that others can never connect.
fn bind_private(path: &Path) -> anyhow::Result<UnixListener> {
    if UnixStream::connect(path).is_ok() {
        anyhow::bail!("Another broker is listening there");
    }
    let folder = path.parent().context("The socket has no folder")?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)?;
    let unique = uuid::Uuid::new_v4().simple().to_string();
    let private = folder.join(format!(".{}", &unique[..6]));
    fs::DirBuilder::new().mode(0o700).create(&private)?;
    let bound = bind_and_move(&private.join("s"), path);
    fs::remove_dir_all(&private)?;
    bound
}

fn bind_and_move(private: &Path, path: &Path) -> anyhow::Result<UnixListener> {
    let listener = UnixListener::bind(private)?;
    fs::set_permissions(private, fs::Permissions::from_mode(0o600))?;
    fs::rename(private, path)?;
    Ok(listener)
}

/// Locks the database, because two brokers on it would both assign the same jobs. Held until dropped.
pub(crate) fn lock(database: &Path) -> anyhow::Result<File> {
    let path = database.with_added_extension("lock");
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(folder)
            .with_context(|| format!("Failed to create {}", folder.display()))?;
    }
    let mut file = File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .with_context(|| format!("Failed to open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0)
                .and_then(|()| writeln!(file, "{}", std::process::id()))
                .with_context(|| format!("Failed to write {}", path.display()))?;
            Ok(file)
        }
        Err(fs::TryLockError::WouldBlock) => {
            let mut holder = String::new();
            let process = match file.read_to_string(&mut holder) {
                Ok(1..) => format!(" (process {})", holder.trim()),
                _ => String::new(),
            };
            anyhow::bail!("Another broker{process} uses {}", database.display())
        }
        Err(fs::TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => {
            tracing::warn!(
                "{} cannot be locked: start no second broker on it",
                path.display()
            );
            Ok(file)
        }
        Err(fs::TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("Failed to lock {}", path.display()))
        }
    }
}
