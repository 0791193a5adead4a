//! The host's memory, in which the card and its work lie.

mod sys;

pub(crate) use sys::{HostFunction, add, call, copy, fill, map_numbers, number_at, read};
