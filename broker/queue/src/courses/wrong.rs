//! An invalid field of a request.

/// A field with an invalid value, and what is wrong, such as `reason` and `is missing`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {says}")]
pub struct Wrong {
    pub field: &'static str,
    pub says: String,
}

impl Wrong {
    pub fn new(field: &'static str, says: impl Into<String>) -> Self {
        let says = says.into();
        Self { field, says }
    }
}
