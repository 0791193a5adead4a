//! Messages to systemd for a service with `Type=notify`. Without systemd they have no effect.

use sd_notify::NotifyState;

/// The service is ready.
pub(crate) fn serves(status: &str) {
    notify(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The status that `systemctl status` shows.
pub(crate) fn does(status: &str) {
    notify(&[NotifyState::Status(status)]);
}

/// The service was asked to end.
pub(crate) fn ends() {
    notify(&[NotifyState::Stopping]);
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("Failed to notify systemd: {error}");
    }
}
