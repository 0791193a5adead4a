//! The order in which the kernel made its messages.

/// The number in a message id, `SESSION_PID_NUMBER`: `jupyter_client` counts the messages of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MessageNumber {
    session: String,
    number: u64,
}

impl MessageNumber {
    /// Returns `None` for an id of another form.
    pub(crate) fn read(message_id: &str) -> Option<Self> {
        let (session, number) = message_id.rsplit_once('_')?;
        Some(Self {
            session: session.to_owned(),
            number: number.parse().ok()?,
        })
    }

    /// Whether this message may come after the other. Numbers of different sessions cannot be compared.
    pub(super) fn may_follow(&self, other: &Self) -> bool {
        self.session != other.session || self.number >= other.number
    }
}
