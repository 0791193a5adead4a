//! Collects the state that a cell leaves: reads it from the session and moves it to where the proxy can fetch it.

use crate::{
    context::Context,
    messages,
    mirror::{self, MirrorError},
    session::Session,
    transfer::{NotTransferred, Transport, send_patiently},
};
use baton_chunks::Ledger;
use baton_protocol::{RemoteError, State, outbox::state_bytes};
use baton_transport::Changes;
use futures_util::future::BoxFuture;

/// A larger state does not fit into one message.
const LARGEST_STATE_BYTES: usize = 48 << 20;

/// The state that was read from the session, and the changes to files.
pub(super) type Collected = (
    Result<(State, Ledger), NotTransferred>,
    Result<mirror::Collected, MirrorError>,
);

/// Begins to collect what the cell changed. The session waits meanwhile, so it holds exactly
/// what the cell left.
pub(super) fn begin(
    context: &Context,
    session: &mut Session,
    transport: &Transport,
    changes: Changes,
) -> Result<BoxFuture<'static, Collected>, RemoteError> {
    if changes.snapshot.messages != changes.base.messages {
        let what = "The session and the worker count messages differently";
        return Err(messages::session_failed(what));
    }
    let state = send_patiently(context.access.clone(), transport.clone(), changes);
    let kernel = session.kernel();
    let mirror = session.mirror.as_mut();
    let files = mirror.map(|mirror| mirror::collect(mirror, kernel));
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
    collected: Collected,
) -> Result<(State, Ledger, mirror::Collected), RemoteError> {
    let (message, error) = match collected {
        (Ok((state, ledger)), Ok(files)) => {
            let bytes = state_bytes(&state);
            return match bytes > LARGEST_STATE_BYTES {
                true => Err(messages::state_too_large(bytes)),
                false => Ok((state, ledger, files)),
            };
        }
        (Err(error), _) => (messages::state_lost(&error), error.to_string()),
        (Ok(_), Err(error)) => (messages::files_not_collected(&error), error.to_string()),
    };
    tracing::warn!(error, "The cell's results could not be collected");
    Err(message)
}
