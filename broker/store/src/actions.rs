//! What staff have done and changed.

use super::{
    Store, StoreError, Writer,
    columns::{account, count, number},
    row::Row,
    statement::{Statement, sql},
};
use baton_broker_queue::{
    Account, AuditEntry, Identity,
    courses::{Allowance, Changes},
};
use baton_protocol::api;

/// A row of the audit log, with the number at which the next page begins.
#[derive(Debug)]
pub struct AuditRow {
    pub number: u64,
    pub entry: AuditEntry,
}

impl Store {
    /// Newest first. Admins see all courses, and staff their own.
    pub async fn audit(
        &self,
        seen_by: &Identity,
        course: Option<&str>,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, StoreError> {
        let mut query = sql(
            "SELECT number, at_ms, person, action, course, subject, detail FROM audit WHERE 1 = 1",
        );
        if let Some((_, courses)) = seen_by.sees_only() {
            query.push(" AND (1 = 0");
            for course in courses {
                query.push(" OR course = ").push_bind(course.to_owned());
            }
            query.push(")");
        }
        if let Some(course) = course {
            query.push(" AND course = ").push_bind(course.to_owned());
        }
        if let Some(before) = before {
            query.push(" AND number < ").push_bind(number(before));
        }
        query
            .push(" ORDER BY number DESC LIMIT ")
            .push_bind(i64::from(limit));
        let rows = self.fetch(query).await?;
        rows.iter().map(audit_row).collect()
    }
}

pub(super) async fn changes(writer: &mut Writer) -> Result<Changes, StoreError> {
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

pub(super) fn record(entry: &AuditEntry) -> Statement {
    sql(
        "INSERT INTO audit (at_ms, person, action, course, subject, detail) VALUES (?, ?, ?, ?, ?, ?)",
    )
    .bind(entry.at_ms)
    .bind(entry.person.clone())
    .bind(entry.action.name())
    .bind(&entry.course)
    .bind(&entry.subject)
    .bind(entry.detail.clone())
}

pub(super) fn change_worker(name: &str, paused: Option<String>) -> Statement {
    sql("INSERT INTO worker_changes (name, paused) VALUES (?, ?)
         ON CONFLICT (name) DO UPDATE SET paused = excluded.paused")
    .bind(name)
    .bind(paused)
}

pub(super) fn change_course(
    course: &str,
    change: &api::CourseChange,
) -> Result<Statement, StoreError> {
    let text = serde_json::to_string(change).map_err(|_| StoreError::Damaged {
        what: "a change of a course",
    })?;
    let insert = sql("INSERT INTO course_changes (course, change) VALUES (?, ?)
         ON CONFLICT (course) DO UPDATE SET change = excluded.change");
    Ok(insert.bind(course).bind(text))
}

pub(super) fn allow(account: &Account, allowance: &Allowance) -> Statement {
    sql("INSERT INTO allowances (owner, course, extra_ms, until_ms, person) VALUES (?, ?, ?, ?, ?)")
        .bind(&account.owner)
        .bind(&account.course)
        .bind(number(allowance.extra_ms))
        .bind(allowance.until_ms)
        .bind(allowance.by.clone())
}

/// Deletes the account's allowance and those that have ended.
pub(super) fn forget_allowances(account: &Account, at_ms: i64) -> Statement {
    sql("DELETE FROM allowances WHERE until_ms <= ? OR (owner = ? AND course = ?)")
        .bind(at_ms)
        .bind(&account.owner)
        .bind(&account.course)
}

fn audit_row(row: &Row) -> Result<AuditRow, StoreError> {
    let action: String = row.get("action")?;
    let damaged = StoreError::Damaged { what: "an action" };
    Ok(AuditRow {
        number: count(row.get("number")?)?,
        entry: AuditEntry {
            at_ms: row.get("at_ms")?,
            person: row.get("person")?,
            action: api::Action::from_name(&action).ok_or(damaged)?,
            course: row.get("course")?,
            subject: row.get("subject")?,
            detail: row.get("detail")?,
        },
    })
}
