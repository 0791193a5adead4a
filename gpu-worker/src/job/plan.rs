//! Whether a session can continue from the state on which a manifest builds.
//!
//! **Invariant:** pure.

use baton_protocol::StateVersion;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plan {
    /// The session holds exactly the state that the manifest continues.
    Continue,
    /// The manifest builds on nothing: start a new session.
    StartFresh,
    /// No session here has the state on which the manifest builds: ask for a complete one.
    AskForState,
}

/// `held` is the version that the notebook's session holds, if the notebook has a session that holds any.
pub(crate) fn plan(held: Option<StateVersion>, base: StateVersion) -> Plan {
    if base.messages == 0 {
        Plan::StartFresh
    } else if held == Some(base) {
        Plan::Continue
    } else {
        Plan::AskForState
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_protocol::TableId;

    #[test]
    fn only_exactly_the_state_will_do() {
        let table = TableId::random();
        let version = |messages| StateVersion { table, messages };
        let other = StateVersion {
            table: TableId::random(),
            messages: 4,
        };
        assert_eq!(plan(Some(version(4)), version(4)), Plan::Continue);
        assert_eq!(plan(Some(version(2)), version(4)), Plan::AskForState);
        assert_eq!(plan(Some(version(6)), version(4)), Plan::AskForState);
        assert_eq!(plan(Some(other), version(4)), Plan::AskForState);
        assert_eq!(plan(None, version(4)), Plan::AskForState);
        assert_eq!(plan(None, version(0)), Plan::StartFresh);
        assert_eq!(plan(Some(version(0)), version(0)), Plan::StartFresh);
    }
}
