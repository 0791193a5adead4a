//! What staff have changed in addition to the file of courses.

use super::{
    StoreError, Writer,
    columns::{account, count, number},
    statement::{Statement, sql},
};
use baton_broker_queue::{
    Account,
    courses::{Allowance, Changes},
};
use baton_protocol::api::CourseChange;

pub(super) async fn load(writer: &mut Writer) -> Result<Changes, StoreError> {
    let mut changes = Changes::default();
    let courses = sql("SELECT course, change FROM course_changes");
    for row in writer.fetch(courses).await? {
        let damaged = |_| StoreError::Damaged {
            what: "a change of a course",
        };
        let change: String = row.get("change")?;
        let change = serde_json::from_str(&change).map_err(damaged)?;
        changes.courses.insert(row.get("course")?, change);
    }
    let workers = sql("SELECT name, paused FROM worker_changes");
    for row in writer.fetch(workers).await? {
        changes.workers.insert(row.get("name")?, row.get("paused")?);
    }
    let allowances = sql("SELECT owner, course, extra_ms, until_ms, person FROM allowances");
    for row in writer.fetch(allowances).await? {
        let allowance = Allowance {
            extra_ms: count(row.get("extra_ms")?)?,
            until_ms: row.get("until_ms")?,
            by: row.get("person")?,
        };
        changes.allowances.0.insert(account(&row)?, allowance);
    }
    Ok(changes)
}

pub(super) fn change_worker(name: &str, paused: &Option<String>) -> Statement {
    sql("INSERT INTO worker_changes (name, paused) VALUES (?, ?)
         ON CONFLICT (name) DO UPDATE SET paused = excluded.paused")
    .bind(name)
    .bind(paused.clone())
}

pub(super) fn change_course(course: &str, change: &CourseChange) -> Result<Statement, StoreError> {
    let text = serde_json::to_string(change).map_err(|_| StoreError::Damaged {
        what: "a change of a course",
    })?;
    let insert = sql("INSERT INTO course_changes (course, change) VALUES (?, ?)
         ON CONFLICT (course) DO UPDATE SET change = excluded.change");
    Ok(insert.bind(course).bind(text))
}

pub(super) fn allow(account: &Account, allowance: &Allowance) -> Statement {
    sql("INSERT INTO allowances (owner, course, extra_ms, until_ms, person) VALUES (?, ?, ?, ?, ?)")
        .bind_account(account)
        .bind(number(allowance.extra_ms))
        .bind(allowance.until_ms)
        .bind(allowance.by.clone())
}

/// Deletes the account's allowance and those that have ended.
pub(super) fn forget_allowances(account: &Account, at_ms: i64) -> Statement {
    sql("DELETE FROM allowances WHERE until_ms <= ? OR (owner = ? AND course = ?)")
        .bind(at_ms)
        .bind_account(account)
}
