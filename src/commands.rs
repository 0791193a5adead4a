//! One module for each command.

pub(crate) mod act;
pub(crate) mod ask;
pub(crate) mod bench;
pub(crate) mod broker;
pub(crate) mod chunks;
pub(crate) mod config;
pub(crate) mod course;
pub(crate) mod doctor;
pub(crate) mod env;
pub(crate) mod files;
pub(crate) mod grant;
pub(crate) mod install;
mod join;
pub(crate) mod kernel;
pub(crate) mod login;
pub(crate) mod people;
pub(crate) mod plan;
pub(crate) mod pools;
pub(crate) mod program;
pub(crate) mod publish;
pub(crate) mod run;
pub(crate) mod states;
pub(crate) mod status;
pub(crate) mod up;
mod when;
pub(crate) mod worker;
