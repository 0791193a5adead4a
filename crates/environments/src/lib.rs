//! Environments that are built from locks, on workers and beside notebooks, with the same packages on both.
//!
//! In: a lock, and a program that installs packages (`uv`). Out: a Python with the packages of the
//! lock, Baton's own packages, and their dependencies.
//!
//! ```text
//! lock ──> folder (who builds, and whether it is complete) ──> build (the steps) ──> Python
//! ```
//!
//! **Invariant:** an environment is used only after its last step has marked it as complete.

mod build;
mod errors;
mod folder;
mod lock;
mod packages;
mod uv;

pub use build::{Builder, OWN_PACKAGES, Runner, Step, build};
pub use errors::BuildError;
pub use folder::{CompleteEnvironment, EnvironmentFolder, Folder, FolderError, Taken, Vacant};
pub use lock::{LockError, digest, read_lock};
pub use packages::{installed, packages_of, site_packages};
pub use uv::{UvMissing, find_uv};
