//! What staff did and changed.

use super::{Store, StoreError, read::count, write::number};
use crate::{courses::Changes, people::Identity};
use baton_protocol::api;
use sqlx::{QueryBuilder, Row, Sqlite, SqliteConnection, sqlite::SqliteRow};

/// One act of one person.
#[derive(Debug, Clone)]
pub(crate) struct AuditEntry {
    pub(crate) at_ms: i64,
    /// `None`: the broker's own token.
    pub(crate) person: Option<String>,
    pub(crate) action: api::Action,
    /// Empty for workers.
    pub(crate) course: String,
    pub(crate) subject: String,
    pub(crate) detail: Option<String>,
}

/// With the number under which the next part of a list begins.
#[derive(Debug)]
pub(crate) struct AuditRow {
    pub(crate) number: u64,
    pub(crate) entry: AuditEntry,
}

impl Store {
    /// Newest first: of all courses for admins, of their own for staff.
    pub(crate) async fn audit(
        &self,
        seen_by: &Identity,
        course: Option<&str>,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new(
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
        let rows = query.build().fetch_all(&self.readers).await?;
        rows.iter().map(audit_row).collect()
    }
}

pub(super) async fn changes(reader: &mut SqliteConnection) -> Result<Changes, StoreError> {
    let mut changes = Changes::default();
    let courses: Vec<(String, String)> =
        sqlx::query_as("SELECT course, change FROM course_changes")
            .fetch_all(&mut *reader)
            .await?;
    for (course, change) in courses {
        let damaged = |_| StoreError::Damaged {
            what: "a change of a course",
        };
        let change = serde_json::from_str(&change).map_err(damaged)?;
        changes.courses.insert(course, change);
    }
    let workers: Vec<(String, Option<String>)> =
        sqlx::query_as("SELECT name, paused FROM worker_changes")
            .fetch_all(&mut *reader)
            .await?;
    changes.workers = workers.into_iter().collect();
    Ok(changes)
}

pub(super) async fn record(
    connection: &mut SqliteConnection,
    entry: &AuditEntry,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO audit (at_ms, person, action, course, subject, detail) VALUES (?, ?, ?, ?, ?, ?)",
    )
    .bind(entry.at_ms)
    .bind(&entry.person)
    .bind(entry.action.name())
    .bind(&entry.course)
    .bind(&entry.subject)
    .bind(&entry.detail)
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn change_worker(
    connection: &mut SqliteConnection,
    name: &str,
    paused: Option<&str>,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO worker_changes (name, paused) VALUES (?, ?)
         ON CONFLICT (name) DO UPDATE SET paused = excluded.paused",
    )
    .bind(name)
    .bind(paused)
    .execute(connection)
    .await?;
    Ok(())
}

pub(super) async fn change_course(
    connection: &mut SqliteConnection,
    course: &str,
    change: &api::CourseChange,
) -> Result<(), StoreError> {
    let text = serde_json::to_string(change).map_err(|_| StoreError::Damaged {
        what: "a change of a course",
    })?;
    sqlx::query(
        "INSERT INTO course_changes (course, change) VALUES (?, ?)
         ON CONFLICT (course) DO UPDATE SET change = excluded.change",
    )
    .bind(course)
    .bind(text)
    .execute(connection)
    .await?;
    Ok(())
}

fn audit_row(row: &SqliteRow) -> Result<AuditRow, StoreError> {
    let action: &str = row.try_get("action")?;
    let damaged = StoreError::Damaged { what: "an action" };
    Ok(AuditRow {
        number: count(row.try_get("number")?)?,
        entry: AuditEntry {
            at_ms: row.try_get("at_ms")?,
            person: row.try_get("person")?,
            action: api::Action::from_name(action).ok_or(damaged)?,
            course: row.try_get("course")?,
            subject: row.try_get("subject")?,
            detail: row.try_get("detail")?,
        },
    })
}
