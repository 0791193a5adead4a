//! The worker between a broker that follows a script and real IPython kernels.
#![allow(clippy::unwrap_used)]

mod broker;
mod cells;
mod connection;
mod faults;
mod files;
mod floods;
mod harness;
mod lanes;
mod real;
mod sessions;
