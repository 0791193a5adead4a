//! A state that a person saved under a name, for a later kernel.

use crate::Manifest;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The only message of an object table, and what a kernel must know before it reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedState {
    pub about: AboutState,
    pub manifest: Manifest,
}

impl SavedState {
    /// The limit for a state's name, in characters.
    pub const LONGEST_NAME: usize = 64;

    /// Whether this is a valid name for a state. The name is part of the state's address.
    #[must_use]
    pub fn is_name(name: &str) -> bool {
        let fits = |letter: char| letter.is_alphanumeric() || "._-".contains(letter);
        let letters = name.chars().count();
        (1..=Self::LONGEST_NAME).contains(&letters)
            && name.chars().all(fits)
            && !matches!(name, "." | "..")
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AboutState {
    /// The version of the message format, which grows with each incompatible change.
    pub format: u32,
    /// The version of Baton that saved it.
    pub baton: String,
    /// `major.minor`.
    pub python: String,
    pub variables: Vec<String>,
    /// Packages that were imported, with their versions.
    pub packages: BTreeMap<String, String>,
    /// The variables that could not be saved, with the reasons.
    #[serde(default)]
    pub left_out: BTreeMap<String, String>,
    /// The notebook that it was saved in.
    #[serde(default)]
    pub notebook: Option<String>,
    /// For a job: the folder in which its notebook kernel started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
}
