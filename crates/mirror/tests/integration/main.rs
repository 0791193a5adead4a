//! A notebook's folder and its mirror, both on this machine.
#![allow(clippy::unwrap_used)]

mod conflicts;
mod contents;
mod faults;
mod hidden;
mod hostile;
mod kept;
mod listings;
mod lost;
mod pair;
mod random;
mod removals;
mod renamer;
mod trash;
mod unapplied;
