//! Scheduling decisions that more than one program makes or simulates.
//!
//! [`queue`] orders waiting jobs, assigns them to workers and estimates when the others start; the broker
//! carries that out. [`pools`] computes how many workers each pool should have. [`arbiter`] shares one GPU
//! between sessions; the worker carries that out. `plan` simulates queue and arbiter.
//!
//! **Invariant:** pure; no clock, no I/O, cannot fail.

pub mod arbiter;
pub mod pools;
pub mod queue;
