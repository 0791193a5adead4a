//! Logging to stderr.

use crate::settings::ProcessEnvironment;
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// `BATON_LOG` selects what is logged; `default` applies without it.
pub(crate) fn to_stderr(process: &ProcessEnvironment, default: &str) {
    let said = process.variable("BATON_LOG");
    let filter = said.map(EnvFilter::try_new);
    let wrong = matches!(filter, Some(Err(_)));
    let filter = match filter {
        Some(Ok(filter)) => filter,
        _ => EnvFilter::new(default),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    if wrong {
        tracing::warn!("BATON_LOG is not valid; logging at {default}");
    }
}
