//! A state that a person saved under a name, for a later kernel.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Manifest;

/// One whole message of an object table, and what a kernel must know before it reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedState {
    pub about: AboutState,
    pub manifest: Manifest,
}

impl SavedState {
    /// Of a name, in letters.
    pub const LONGEST_NAME: usize = 64;

    /// Whether a state may have this name, which is a part of its address.
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
    /// Of the message, counted up with each change that another version cannot read.
    pub format: u32,
    /// The version of Baton that saved it.
    pub baton: String,
    /// `major.minor`.
    pub python: String,
    pub variables: Vec<String>,
    /// Packages that were imported, with their versions.
    pub packages: BTreeMap<String, String>,
    /// What could not be saved, with the reasons.
    #[serde(default)]
    pub left_out: BTreeMap<String, String>,
    /// The notebook that it was saved in.
    #[serde(default)]
    pub notebook: Option<String>,
    /// Of a job: where its notebook kernel began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
}
