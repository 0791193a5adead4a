//! What systemd hears of a service whose unit is `Type=notify`. Without systemd it is told to nobody.

use sd_notify::NotifyState;

/// From now on the service can be used.
pub(crate) fn serves(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// For `systemctl status`.
pub(crate) fn does(status: &str) {
    tell(&[NotifyState::Status(status)]);
}

/// It was asked to end.
pub(crate) fn ends() {
    tell(&[NotifyState::Stopping]);
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("Failed to notify systemd: {error}");
    }
}
