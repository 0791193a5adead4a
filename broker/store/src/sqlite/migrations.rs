//! The schema of the database. A released file is never changed; each later change is a new file.

use crate::StoreError;
use rusqlite::Connection;
use rusqlite_migration::{M, Migrations};

macro_rules! migrations {
    ($($name:literal),* $(,)?) => {
        &[$(M::up(include_str!(concat!("../../migrations/sqlite/", $name, ".sql")))),*]
    };
}

const MIGRATIONS: &[M<'_>] = migrations![
    "0001_jobs",
    "0002_actions",
    "0003_holders",
    "0004_gpu_use",
    "0005_public_files",
    "0006_sign_ins",
    "0007_pools",
    "0008_kinds_of_jobs",
    "0009_states",
    "0010_chunks_of_states",
    "0011_objects",
    "0012_orphans",
    "0013_groups_of_jobs",
    "0014_environments",
    "0015_pending_objects",
    "0016_answers",
    "0017_allowances",
];

/// Migrates the database to this version.
pub(super) fn run(connection: &mut Connection) -> Result<(), StoreError> {
    Ok(Migrations::from_slice(MIGRATIONS).to_latest(connection)?)
}
