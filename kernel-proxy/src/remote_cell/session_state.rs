//! What the notebook's session holds, judged by what the proxy has sent.

use baton_chunks::Ledger;
use baton_protocol::{StateVersion, TableId};

/// What the session holds once it has applied all messages so far.
#[derive(Clone)]
pub(super) struct SessionState {
    pub(super) version: StateVersion,
    pub(super) ledger: Ledger,
}

impl SessionState {
    pub(super) fn new() -> Self {
        Self {
            version: StateVersion {
                table: TableId::random(),
                messages: 0,
            },
            ledger: Ledger::default(),
        }
    }

    /// What the session holds once it has applied one more message.
    pub(super) fn after(before: StateVersion, ledger: Ledger) -> Self {
        Self {
            version: before.after_message(),
            ledger,
        }
    }
}
