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
    "0018_indexes_of_pages",
];

/// Migrates the database to this version.
pub(super) fn run(connection: &mut Connection) -> Result<(), StoreError> {
    Ok(Migrations::from_slice(MIGRATIONS).to_latest(connection)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_database_of_any_older_version_keeps_its_jobs() {
        for version in 1..MIGRATIONS.len() {
            let mut connection = Connection::open_in_memory().unwrap();
            let older = Migrations::from_slice(MIGRATIONS);
            older.to_version(&mut connection, version).unwrap();
            let job = "INSERT INTO jobs (job, sequence, notebook, notebook_name, owner, course, state, priority, submitted_ms)
                       VALUES (x'01', 1, x'02', 'a.ipynb', 'ada', '', 'queued', x'00', 5)";
            connection.execute(job, []).unwrap();
            run(&mut connection).unwrap();
            let jobs = connection.query_row("SELECT COUNT(*) FROM jobs", [], |row| row.get(0));
            assert_eq!(jobs, Ok(1), "from version {version}");
        }
    }
}
