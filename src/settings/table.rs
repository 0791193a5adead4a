//! The description of a setting, without its value.

use super::{ProcessEnvironment, value::Shape};

/// These commands, and all that ask the broker or act on it.
macro_rules! and_clients {
    ($($command:literal),*) => {
        &[
            $($command,)*
            "status", "doctor", "jobs", "workers", "courses", "usage", "explain", "cancel", "hold", "release", "front",
            "drain", "resume", "course", "audit", "grant", "publish", "pools", "states", "plan", "bench latency", "env",
        ]
    };
}
pub(super) use and_clients;

pub(crate) struct Setting {
    /// The key in the configuration file; the part before the dot is the section.
    pub(crate) key: &'static str,
    /// The flag on the command line, without the dashes.
    pub(crate) flag: Option<&'static str>,
    /// The commands that take the flag.
    pub(crate) commands: &'static [&'static str],
    pub(crate) default: DefaultText,
    pub(crate) secret: bool,
    pub(crate) expected: &'static str,
    pub(crate) shape: Shape,
    /// Full sentences for `--help` and for the reference.
    pub(crate) help: &'static str,
}

pub(crate) enum DefaultText {
    Text(&'static str),
    /// Depends on the user or the machine, as `described` explains.
    Computed {
        text: fn(&ProcessEnvironment) -> String,
        described: &'static str,
    },
    /// Not set; `described` explains what happens then.
    Nothing {
        described: &'static str,
    },
}

impl DefaultText {
    pub(crate) fn text(&self, process: &ProcessEnvironment) -> String {
        match self {
            Self::Text(text) => (*text).to_owned(),
            Self::Computed { text, .. } => text(process),
            Self::Nothing { .. } => String::new(),
        }
    }

    pub(crate) fn described(&self) -> &'static str {
        match self {
            Self::Text(text) => text,
            Self::Computed { described, .. } | Self::Nothing { described } => described,
        }
    }
}

impl Setting {
    /// The environment variable: `BATON_WORKER_SLOTS` for `worker.slots`.
    pub(crate) fn variable(&self) -> String {
        format!("BATON_{}", self.key.replace('.', "_").to_uppercase())
    }
}
