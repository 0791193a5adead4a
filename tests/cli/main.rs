#![allow(clippy::unwrap_used)]

mod ask;
mod broker;
mod config;
mod doctor;
mod files;
mod home;
mod install;
mod kernel;
mod people;
mod plan;
mod run;
mod up;
