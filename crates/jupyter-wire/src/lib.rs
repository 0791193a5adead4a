//! Jupyter's wire: connection files, frames, signatures, kernels as children and as servers.
//!
//! A relay uses [`wire`] to find the ends of messages and [`message`] to make its own. Code that
//! starts a kernel uses [`process`], [`folder`] and, to talk to the Python code inside, [`shim`].
//!
//! **Invariant:** a message from another program is never rewritten.

pub mod connection;
pub mod folder;
pub mod message;
pub mod process;
pub mod shim;
pub mod wire;
