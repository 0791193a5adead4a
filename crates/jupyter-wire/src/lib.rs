//! Jupyter's wire: connection files, frames, signatures, kernels as children and as servers.
//!
//! A relay uses [`wire`] to find the ends of messages and [`message`] to make its own; whoever starts a kernel uses
//! [`process`], [`folder`] and, to talk with the Python inside, [`shim`].
//!
//! **Invariant:** a message that somebody else made is never written anew.

pub mod connection;
pub mod folder;
pub mod message;
pub mod process;
pub mod shim;
pub mod wire;
