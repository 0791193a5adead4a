//! The notebook's folder itself: what is in it (`listing`), what cells have sent (`staging`,
//! `arriving`), and how that becomes part of it (`commit`).

mod arriving;
pub(crate) mod commit;
pub(crate) mod listing;
pub(crate) mod staging;
mod undo;
