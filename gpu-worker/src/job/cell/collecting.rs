//! Collects the state that a cell leaves: reads it from the session and moves it to where the proxy can fetch it.

use crate::{
    context::Context,
    messages,
    mirror::{self, MirrorError},
    session::Session,
    transfer::{NotTransferred, Transport, send_patiently},
};
use baton_chunks::Ledger;
use baton_protocol::{JobKind, RemoteError, State};
use baton_transport::{Changes, TransferError};
use futures_util::future::BoxFuture;

/// The state that was read from the session, and the changes to files.
pub(super) type Collected = (
    Result<(State, Ledger), NotTransferred>,
    Result<mirror::Collected, MirrorError>,
);

/// Begins to collect what the cell changed. The session waits meanwhile, so it holds exactly
/// what the cell left.
pub(super) fn begin(
    context: &Context,
    kind: JobKind,
    session: &mut Session,
    transport: &Transport,
    changes: Changes,
) -> Result<BoxFuture<'static, Collected>, RemoteError> {
    if changes.snapshot.messages != changes.base.messages {
        let what = "The session and the worker count messages differently";
        return Err(messages::session_failed(kind, what));
    }
    let state = send_patiently(context.access.clone(), transport.clone(), changes);
    let kernel = session.kernel();
    let mirror = session.mirror.as_mut();
    let files = mirror.map(|mirror| mirror::collect(mirror, kernel, kind));
    let files = async move {
        match files {
            Some(files) => files.await,
            None => Ok(mirror::Collected::default()),
        }
    };
    Ok(Box::pin(async move { tokio::join!(state, files) }))
}

/// State and files, or why the cell ends without them.
pub(super) fn all_of(
    kind: JobKind,
    collected: Collected,
) -> Result<(State, Ledger, mirror::Collected), RemoteError> {
    let (message, error) = match collected {
        (Ok((state, ledger)), Ok(files)) => return Ok((state, ledger, files)),
        (Err(error @ NotTransferred::Failed(TransferError::TooManyObjects)), _) => {
            (messages::state_too_large(kind), error.to_string())
        }
        (Err(error), _) => (messages::state_lost(kind, &error), error.to_string()),
        (Ok(_), Err(error)) => (
            messages::files_not_collected(kind, &error),
            error.to_string(),
        ),
    };
    tracing::warn!(error, "The cell's results could not be collected");
    Err(message)
}
