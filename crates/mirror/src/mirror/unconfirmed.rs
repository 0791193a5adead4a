//! What a mirror knew before the changes that it has sent, until it learns whether they were applied at home.
//!
//! **Invariant:** pure.

use super::{
    compare::{Difference, Known},
    removals::removed,
};
use baton_protocol::files::{Change, RelativePath};
use std::{
    collections::{BTreeMap, BTreeSet},
    slice,
};

#[derive(Default)]
pub(super) struct Unconfirmed {
    /// `None` for a path that was unknown.
    pub(super) before: BTreeMap<RelativePath, Option<Known>>,
    /// Names that a cell was proven to have removed.
    pub(super) removed: BTreeSet<RelativePath>,
}

impl Unconfirmed {
    /// These differences are being sent.
    pub(super) fn note(&mut self, sent: &[Difference], known: &BTreeMap<RelativePath, Known>) {
        for difference in sent {
            let from = match difference {
                Difference::Change(Change::Moved { from, .. }) => slice::from_ref(from),
                _ => &[],
            };
            for path in from.iter().chain([difference.path()]) {
                let before = || known.get(path).cloned();
                self.before.entry(path.clone()).or_insert_with(before);
            }
            self.removed.extend(removed(difference).cloned());
        }
    }
}
