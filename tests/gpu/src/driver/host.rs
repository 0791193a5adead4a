//! The host's memory, in which the card and its work lie.

mod sys;

pub(crate) use sys::{
    HostFunction, READ_WRITE, SHARED, add, call, copy, fill, map_numbers, mmap, number_at, read,
};
