//! The notebook's folder ("home"), and its mirror on a machine that cannot access it.
//!
//! ```text
//!        home (proxy)                                     mirror (worker)
//! list ── listing ──────────────────────────────────────> sync: folders, links, placeholders
//! read <─ "this file is opened" ── contents ────────────> fill a placeholder
//! commit <────────────────────────────────── changes ──── scan: what a cell wrote, moved, removed
//! ```
//!
//! A placeholder has the name, size, time and permissions of a file, but none of its bytes. The
//! worker fills it before the first read. A cell's changes are staged first, then put in place by
//! renaming, and can be undone until they are kept.
//!
//! Everything except `transfer` blocks; callers run it where blocking is allowed.
//!
//! **Invariant:** everything in the two folders is reached through an open descriptor of them ([`Folder`]).
//! Nothing outside of them is written, and nothing outside is read, except a file that one of the student's
//! links leads to. A folder that is gone, replaced or unreadable is never treated as empty.

mod content;
mod copy_rules;
mod errors;
mod folder;
mod home;
mod links;
mod mirror;
mod places;
mod root;
mod transfer;
mod trash;
mod walk;

pub use content::{ContentReader, ContentWriter, read_chunk};
pub use errors::FilesError;
pub use folder::{Folder, Handle, Place, Status};
pub use home::commit::{Committed, commit};
pub use home::listing::{HomeListing, MOST_LISTED, Seen, list, open_listed, stamp};
pub use home::staging::Staging;
pub use mirror::compare::{Difference, Found};
pub use mirror::placeholders::{Filling, Placeholder, Placeholders};
pub use mirror::{Mirror, Scan};
pub use root::Root;
pub use transfer::{
    open_changes, open_payload, read_file, send_payload, small_payload, write_file,
};
pub use trash::{Kept, Trash, TrashLimits, Was};
pub use walk::STAGING;
