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
    "0019_stop_reasons",
];

/// Migrates the database to this version.
pub(super) fn run(connection: &mut Connection) -> Result<(), StoreError> {
    Ok(Migrations::from_slice(MIGRATIONS).to_latest(connection)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use baton_broker_queue::StopReason;

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

    #[test]
    fn a_sentence_about_a_stopped_job_becomes_a_reason() {
        let mut connection = Connection::open_in_memory().unwrap();
        let older = Migrations::from_slice(MIGRATIONS);
        older.to_version(&mut connection, 18).unwrap();
        for (job, stopped) in [
            (1, "'tia stopped this cell'"),
            (
                2,
                "'The cell was stopped because the notebook had lost its connection'",
            ),
            (3, "NULL"),
        ] {
            let values =
                format!("x'0{job}', {job}, x'02', 'a', 'ada', '', 'started', x'00', 5, {stopped}");
            let insert = format!(
                "INSERT INTO jobs (job, sequence, notebook, notebook_name, owner, course, state, priority,
                 submitted_ms, stopped) VALUES ({values})"
            );
            connection.execute(&insert, []).unwrap();
        }
        run(&mut connection).unwrap();
        let sql = "SELECT stopped FROM jobs ORDER BY sequence";
        let mut query = connection.prepare(sql).unwrap();
        let stopped = query.query_map([], |row| row.get::<_, Option<String>>(0));
        let stopped: Vec<Option<StopReason>> = stopped
            .unwrap()
            .map(|text| {
                text.unwrap()
                    .map(|text| serde_json::from_str(&text).unwrap())
            })
            .collect();
        let staff = StopReason::Staff {
            person: None,
            reason: None,
        };
        let away = StopReason::NotebookAway {};
        assert_eq!(stopped, [Some(staff), Some(away), None]);
    }
}
