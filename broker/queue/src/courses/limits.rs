//! The time limits of a course: that of cells that ask for none, and the longest that cells may ask for.
//!
//! One rule holds for the courses file and for changes by staff: the usual limit is never above the
//! longest one. If only one of them is set, the other one, which comes from elsewhere, gives way.
//!
//! **Invariant:** pure.

/// `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) usual_ms: Option<u64>,
    pub(super) longest_ms: Option<u64>,
}

impl Limits {
    /// Sets those that are given.
    pub(super) fn with(self, usual: Option<Option<u64>>, longest: Option<Option<u64>>) -> Self {
        let changed = Self {
            usual_ms: usual.unwrap_or(self.usual_ms),
            longest_ms: longest.unwrap_or(self.longest_ms),
        };
        let (Some(usual_ms), Some(longest_ms)) = (changed.usual_ms, changed.longest_ms) else {
            return changed;
        };
        match (usual, longest) {
            (None, Some(_)) => Self {
                usual_ms: Some(usual_ms.min(longest_ms)),
                ..changed
            },
            _ => Self {
                longest_ms: Some(longest_ms.max(usual_ms)),
                ..changed
            },
        }
    }
}
