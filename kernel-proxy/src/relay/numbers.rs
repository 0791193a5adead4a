//! In which order the kernel made its messages.

/// What a message's id says: `jupyter_client` counts the messages of a session, `SESSION_PID_NUMBER`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MessageNumber {
    session: String,
    number: u64,
}

impl MessageNumber {
    /// `None` for an id of another form.
    pub(crate) fn read(message_id: &str) -> Option<Self> {
        let (session, number) = message_id.rsplit_once('_')?;
        Some(Self {
            session: session.to_owned(),
            number: number.parse().ok()?,
        })
    }

    /// Whether it may come after the other. Numbers of different sessions say nothing.
    pub(super) fn may_follow(&self, other: &Self) -> bool {
        self.session != other.session || self.number >= other.number
    }
}
