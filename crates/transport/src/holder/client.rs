//! The worker's end of the memory transport.

use super::host;
use crate::frames::{FrameError, split};
use baton_chunks::{Bundle, StateError};
use baton_protocol::{
    HeldKey, Holder,
    memory::{self, FromHolder, ToHolder},
};
use nix::unistd::geteuid;
use serde::Serialize;
use std::{
    os::fd::{BorrowedFd, OwnedFd},
    time::Duration,
};
use tokio::net::UnixStream;

/// A proxy on this machine answers at once.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why state cannot be fetched from memory. Another transport may still work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unreachable {
    #[error("It is on another machine")]
    OtherHost,
    #[error("Its socket cannot be used")]
    Socket(#[source] std::io::Error),
    #[error("Its socket belongs to another user")]
    OtherUser,
    #[error(transparent)]
    Frame(#[from] FrameError),
    #[error("It does not answer")]
    Silent,
    #[error("It does not have the requested state, or no longer has it")]
    Unknown,
    #[error(transparent)]
    State(#[from] StateError),
}

/// The most frequent message of both sides, borrowed because it may be large.
#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Answer<'a> {
    Bundle(&'a memory::Bundle),
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
enum Question<'a> {
    Deposit {
        key: HeldKey,
        result: HeldKey,
        bundle: &'a memory::Bundle,
    },
}

/// Fetches the file that the proxy holds under this key.
pub async fn fetch(holder: &Holder, key: HeldKey) -> Result<Bundle, Unreachable> {
    match ask(holder, &ToHolder::Fetch { key }, None).await? {
        (FromHolder::Bundle(content), Some(file)) => Ok(Bundle::receive(content, file)?),
        _ => Err(Unreachable::Unknown),
    }
}

/// Deposits a cell's changes at the proxy that holds the cell's state. Returns the key of the result there.
pub async fn deposit(
    holder: &Holder,
    key: HeldKey,
    bundle: &Bundle,
) -> Result<HeldKey, Unreachable> {
    let result = HeldKey::random();
    let question = Question::Deposit {
        key,
        result,
        bundle: bundle.content(),
    };
    match ask(holder, &question, Some(bundle.file())).await? {
        (FromHolder::Taken {}, _) => Ok(result),
        _ => Err(Unreachable::Unknown),
    }
}

async fn ask(
    holder: &Holder,
    question: &impl Serialize,
    file: Option<BorrowedFd<'_>>,
) -> Result<(FromHolder, Option<OwnedFd>), Unreachable> {
    if host().map_err(Unreachable::Socket)? != holder.host {
        return Err(Unreachable::OtherHost);
    }
    let answer = async {
        let stream = UnixStream::connect(&holder.socket)
            .await
            .map_err(Unreachable::Socket)?;
        check_owner(&stream)?;
        let (mut reader, mut writer) = split(stream);
        match file {
            Some(file) => writer.send_with_file(question, file).await?,
            None => writer.send(question).await?,
        }
        let answer = reader.receive_with_file().await?;
        answer.ok_or(Unreachable::Unknown)
    };
    tokio::time::timeout(PATIENCE, answer)
        .await
        .map_err(|_| Unreachable::Silent)?
}

/// A worker that serves one user talks only to that user's processes; an administrator's worker
/// serves all users.
fn check_owner(stream: &UnixStream) -> Result<(), Unreachable> {
    let own = geteuid();
    let peer = stream.peer_cred().map_err(Unreachable::Socket)?;
    (own.is_root() || peer.uid() == own.as_raw())
        .then_some(())
        .ok_or(Unreachable::OtherUser)
}
