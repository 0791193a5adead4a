//! Who cancelled cells, and what staff have done.

use super::{
    Store, StoreError,
    columns::{count, number},
    row::Row,
    statement::{Statement, sql},
};
use baton_broker_queue::{AuditEntry, Identity};
use baton_protocol::api;

/// The most entries that are deleted at once.
const DELETED_AT_ONCE: u32 = 1000;

/// A row of the audit log, with the number at which the next page begins.
#[derive(Debug)]
pub struct AuditRow {
    pub number: u64,
    pub entry: AuditEntry,
}

/// A handle of the store for the audit log.
#[derive(Clone, Copy)]
pub struct AuditLog<'store>(pub(super) &'store Store);

impl AuditLog<'_> {
    /// Newest first. Admins see all courses, and staff their own.
    pub async fn entries(
        self,
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
        query.push(" ORDER BY number DESC LIMIT ").push_bind(limit);
        self.0.list_for_pages(query, audit_row).await
    }

    /// Deletes old ones of the oldest entries. No index has their times.
    pub async fn delete_old(self, before_ms: i64) -> Result<(), StoreError> {
        let delete = sql(
            "DELETE FROM audit WHERE at_ms < ? AND number IN (SELECT number FROM audit ORDER BY number LIMIT ?)",
        );
        let delete = delete.bind(before_ms).bind(DELETED_AT_ONCE);
        self.0.writer().await?.apply(vec![delete]).await
    }
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
