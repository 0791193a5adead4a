//! Signals that ask the program to end.

use std::io;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Ctrl-C, SIGTERM and the end of the terminal mean the same. Listens from its creation on.
pub(crate) struct EndSignals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl EndSignals {
    pub(crate) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    pub(crate) async fn received(&mut self) {
        let name = tokio::select! {
            _ = self.interrupt.recv() => "Ctrl-C",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hangup.recv() => "SIGHUP",
        };
        tracing::info!("Stopping because of {name}");
    }

    /// Ignores the end of the terminal from which the program was started.
    pub(crate) async fn received_without_terminal(&mut self) {
        let name = loop {
            tokio::select! {
                _ = self.interrupt.recv() => break "SIGINT",
                _ = self.terminate.recv() => break "SIGTERM",
                _ = self.hangup.recv() => {}
            }
        };
        tracing::info!("Stopping because of {name}");
    }
}
