//! Scheduling decisions that more than one program makes or simulates.
//!
//! [`queue`] orders waiting jobs, assigns them to workers and estimates when the others start; the broker acts on it.
//! [`pools`] says how many workers each pool should have.
//! [`arbiter`] shares one GPU between sessions; the worker acts on it. `plan` simulates both.
//!
//! **Invariant:** pure; no clock, no I/O, cannot fail.

pub mod arbiter;
pub mod pools;
pub mod queue;
