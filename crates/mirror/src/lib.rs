//! The notebook's folder, and its mirror on a machine that does not see it.
//!
//! ```text
//!        home (proxy)                                     mirror (worker)
//! list ── listing ──────────────────────────────────────> sync: folders, links, placeholders
//! read <─ "this file is opened" ── contents ────────────> fill a placeholder
//! commit <────────────────────────────────── changes ──── scan: what a cell wrote, moved, removed
//! ```
//!
//! A placeholder has name, size, time and permissions of a file, and none of its bytes. Whoever fills it before the
//! first read is the worker's business. What comes home is staged first, then put in place by renaming, and can be
//! undone until it is kept.
//!
//! Everything but `transfer` blocks; callers put it where blocking is allowed.
//!
//! **Invariant:** everything in the two folders is reached through an open descriptor of them ([`Folder`]). Nothing outside
//! of them is written, and nothing outside is read but a file to which a link of the student's leads. A folder that is gone, replaced or unreadable is never taken for an empty one.

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
pub use home::commit::{Committed, Staging};
pub use home::listing::{HomeListing, Seen, list, open_listed, stamp};
pub use mirror::compare::{Difference, Found};
pub use mirror::placeholders::{Placeholder, Placeholders};
pub use mirror::{Mirror, Scan};
pub use root::Root;
pub use transfer::{open_payload, read_file, send_payload, small_payload, write_file};
pub use trash::{Kept, Trash, TrashLimits, Was};
