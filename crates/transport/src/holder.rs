//! The *memory* transport: state stays in the process that packed it, and a process on the same
//! machine fetches the file.
//!
//! The proxy holds the state ([`MemoryHolder`]). The worker fetches it ([`fetch`]) and returns the
//! cell's changes the same way ([`deposit`]). So one socket serves both directions, and a worker
//! knows whether its result has arrived before it releases the session's memory. Files pass from
//! process to process without being copied.
//!
//! **Invariant:** a held state stays available until its [`HeldMemory`] is dropped, however often it is
//! fetched: a job may be assigned to another worker before it has started.

mod client;
mod entries;

use self::entries::Entries;
use crate::frames::{FrameError, split};
use baton_chunks::Bundle;
use baton_protocol::{
    HeldKey, Holder,
    memory::{FromHolder, ToHolder},
};
use nix::unistd::geteuid;
use std::{
    fs::Permissions,
    io,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::{Arc, OnceLock},
};
use tokio::{
    net::{UnixListener, UnixStream},
    task::JoinSet,
};

pub use self::client::{Unreachable, deposit, fetch};

/// The transports that state may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TransportChoice {
    /// The fastest that both ends have.
    #[default]
    Auto,
    /// Always through the broker.
    Http,
}

/// Files in memory that others may fetch.
#[derive(Clone)]
pub struct MemoryHolder {
    address: Holder,
    entries: Arc<Entries>,
}

impl MemoryHolder {
    /// Listens in `folder`, which only this user can enter. The owner of the holder polls the
    /// returned future alongside its own work; it never ends.
    pub fn open(folder: &Path) -> io::Result<(Self, impl Future<Output = ()> + use<>)> {
        let path = folder.join("state");
        let socket = path.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
        let address = Holder {
            host: host()?,
            socket: socket.to_owned(),
        };
        let listener = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let entries = Arc::<Entries>::default();
        let serving = serve(listener, entries.clone());
        Ok((Self { address, entries }, serving))
    }

    #[must_use]
    pub fn address(&self) -> &Holder {
        &self.address
    }

    /// Any process that knows the key can fetch this until the returned value is dropped.
    #[must_use]
    pub fn hold(&self, bundle: Bundle) -> HeldMemory {
        let key = HeldKey::random();
        self.entries.insert(key, bundle);
        HeldMemory {
            key,
            entries: self.entries.clone(),
        }
    }
}

/// Keeps a state, and the results that are deposited for it.
pub struct HeldMemory {
    key: HeldKey,
    entries: Arc<Entries>,
}

impl HeldMemory {
    #[must_use]
    pub fn key(&self) -> HeldKey {
        self.key
    }

    /// Drops the state, which is no longer fetched; results may still arrive.
    pub fn keep_for_results(&self) {
        self.entries.drop_state(self.key);
    }

    /// Takes the result that a worker deposited under this key.
    #[must_use]
    pub fn take_result(&self, result: HeldKey) -> Option<Bundle> {
        self.entries.take_result(self.key, result)
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.entries.remove(self.key);
    }
}

/// Identifies one boot of this machine among all machines.
pub fn host() -> io::Result<String> {
    static HOST: OnceLock<String> = OnceLock::new();
    if let Some(host) = HOST.get() {
        return Ok(host.clone());
    }
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(HOST.get_or_init(|| text.trim().to_owned()).clone())
}

async fn serve(listener: UnixListener, entries: Arc<Entries>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if is_trusted(&stream) => {
                    connections.spawn(answer(stream, entries.clone()));
                }
                Ok(_) => tracing::warn!("A process of another user tried to open the socket of this notebook's state"),
                Err(error) => {
                    tracing::warn!(%error, "The socket of this notebook's state failed");
                    // For example out of descriptors; other tasks may release some.
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Whether the peer belongs to this user, or to the administrator, who can read all memory anyway.
fn is_trusted(stream: &UnixStream) -> bool {
    let own = geteuid();
    stream
        .peer_cred()
        .is_ok_and(|peer| peer.uid() == own.as_raw() || peer.uid() == 0)
}

async fn answer(stream: UnixStream, entries: Arc<Entries>) {
    if let Err(error) = answer_one(stream, &entries).await {
        tracing::warn!(%error, "Failed to give a worker state");
    }
}

async fn answer_one(stream: UnixStream, entries: &Entries) -> Result<(), FrameError> {
    let (mut reader, mut writer) = split(stream);
    let Some((message, file)) = reader.receive_with_file().await? else {
        return Ok(());
    };
    match message {
        ToHolder::Fetch { key } => match entries.get(key) {
            Some(bundle) => {
                let (content, file) = (bundle.content(), bundle.file());
                writer
                    .send_with_file(&client::Answer::Bundle(content), file)
                    .await
            }
            None => writer.send(&FromHolder::Unknown {}).await,
        },
        ToHolder::Deposit {
            key,
            result,
            bundle,
        } => {
            let received = file.map(|file| Bundle::receive(bundle, file));
            let taken = match received {
                Some(Ok(bundle)) => entries.put_result(key, result, bundle),
                Some(Err(error)) => {
                    tracing::warn!(%error, "Ignored an invalid result of a worker");
                    false
                }
                None => false,
            };
            let answer = match taken {
                true => FromHolder::Taken {},
                false => FromHolder::Unknown {},
            };
            writer.send(&answer).await
        }
    }
}
