//! The notebook's folder itself.

mod arriving;
pub(crate) mod commit;
pub(crate) mod listing;
