//! The packages that cells can use: environments that administrators name, and the locks from which
//! they are built.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The limit for an environment's name, in characters.
pub const LONGEST_ENVIRONMENT_NAME: usize = 64;
/// The limit for all files of a lock together.
pub const LARGEST_LOCK_BYTES: usize = 4 << 20;

/// One environment that a worker offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Environment {
    pub name: String,
    /// The hash of the lock from which it is built; absent if the administrator installed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// For example `3.13`; absent until it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python_version: Option<String>,
    pub state: EnvironmentState,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EnvironmentState {
    /// It is being built or tested.
    Preparing {},
    /// Cells can run in it.
    Ready {},
    /// No cell can run in it.
    Failed { reason: String },
}

impl Environment {
    #[must_use]
    pub fn is_ready(&self) -> bool {
        matches!(self.state, EnvironmentState::Ready {})
    }

    #[must_use]
    pub fn has_failed(&self) -> bool {
        matches!(self.state, EnvironmentState::Failed { .. })
    }
}

/// For lists: `ml101 (Python 3.13)`, `ml101: being prepared`, `ml101: failed (no disk)`.
impl fmt::Display for Environment {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match (&self.state, &self.python_version) {
            (EnvironmentState::Ready {}, Some(version)) => {
                write!(text, "{name} (Python {version})")
            }
            (EnvironmentState::Ready {}, None) => text.write_str(name),
            (EnvironmentState::Preparing {}, _) => write!(text, "{name}: being prepared"),
            (EnvironmentState::Failed { reason }, _) => write!(text, "{name}: failed ({reason})"),
        }
    }
}

/// Whether this is a valid name for an environment. Folders and kernels get the same name.
#[must_use]
pub fn is_environment_name(name: &str) -> bool {
    let is_plain = |letter: u8| letter.is_ascii_alphanumeric() || b"-_.".contains(&letter);
    let begins = |first: &u8| first.is_ascii_alphanumeric();
    name.len() <= LONGEST_ENVIRONMENT_NAME
        && name.as_bytes().first().is_some_and(begins)
        && name.bytes().all(is_plain)
}

/// The files from which an environment is built, the same everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Lock {
    pub kind: LockKind,
    /// Sorted by name: the lock itself, and the files that belong to it.
    pub files: Vec<LockFile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LockKind {
    /// `uv.lock` and `pyproject.toml`.
    Uv,
    /// `requirements.txt` with hashes.
    Requirements,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct LockFile {
    pub name: String,
    pub text: String,
}

impl Lock {
    #[must_use]
    pub fn bytes(&self) -> usize {
        let files = self.files.iter();
        files.map(|file| file.name.len() + file.text.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_environments_are_names_of_folders() {
        for name in ["ml101", "ml-101_b.2", "A", "7"] {
            assert!(is_environment_name(name), "{name}");
        }
        let long = "a".repeat(LONGEST_ENVIRONMENT_NAME + 1);
        for name in ["", ".", "..", "-f", "a/b", "a b", "ä", &long] {
            assert!(!is_environment_name(name), "{name}");
        }
    }
}
