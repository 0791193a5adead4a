//! SQL that both engines understand, with its values.
//!
//! A `?` stands for a value. Where the engines differ, their migrations define what is missing
//! (both have a function `hex`). All integers are 64 bits wide.

use super::StoreError;
use baton_broker_queue::Account;
use baton_protocol::{ChunkHash, JobId};
use std::borrow::Cow;
use uuid::Uuid;

#[derive(Debug, Clone)]
pub(super) struct Statement {
    pub(super) sql: Cow<'static, str>,
    pub(super) values: Vec<Value>,
    /// This statement must change exactly one row, that of this job.
    pub(super) changes: Option<JobId>,
}

/// Each variant has its own null, because PostgreSQL needs its type.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Integer(Option<i64>),
    Real(f64),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
}

pub(super) fn sql(text: impl Into<Cow<'static, str>>) -> Statement {
    Statement {
        sql: text.into(),
        values: Vec::new(),
        changes: None,
    }
}

impl Statement {
    /// Binds the next `?` of the text.
    pub(super) fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.push(value.into());
        self
    }

    /// Binds the next two `?`, which stand for owner and course.
    pub(super) fn bind_account(self, account: &Account) -> Self {
        self.bind(&account.owner).bind(&account.course)
    }

    /// The statement fails with [`StoreError::Conflict`] unless it changes one row.
    pub(super) fn changing(mut self, job: JobId) -> Self {
        self.changes = Some(job);
        self
    }

    pub(super) fn push(&mut self, text: &str) -> &mut Self {
        self.sql.to_mut().push_str(text);
        self
    }

    pub(super) fn push_bind(&mut self, value: impl Into<Value>) -> &mut Self {
        self.values.push(value.into());
        self.push("?")
    }

    pub(super) fn push_statement(&mut self, other: &Self) -> &mut Self {
        self.values.extend_from_slice(&other.values);
        self.push(&other.sql)
    }

    /// Appends `(?, ?, ?)`.
    pub(super) fn push_list<V: Into<Value>>(
        &mut self,
        values: impl IntoIterator<Item = V>,
    ) -> &mut Self {
        let mut before = "(";
        for value in values {
            self.push(before).push_bind(value);
            before = ", ";
        }
        self.push(")")
    }
}

/// Checks that a statement changed what it must change.
pub(super) fn check(changes: Option<JobId>, rows_affected: u64) -> Result<(), StoreError> {
    match changes {
        Some(job) if rows_affected != 1 => Err(StoreError::Conflict { job }),
        _ => Ok(()),
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Integer(Some(value))
    }
}

impl From<u32> for Value {
    fn from(value: u32) -> Self {
        Self::Integer(Some(value.into()))
    }
}

impl From<Option<i64>> for Value {
    fn from(value: Option<i64>) -> Self {
        Self::Integer(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::Text(Some(value.to_owned()))
    }
}

impl From<&String> for Value {
    fn from(value: &String) -> Self {
        Self::Text(Some(value.clone()))
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(Some(value))
    }
}

impl From<Option<String>> for Value {
    fn from(value: Option<String>) -> Self {
        Self::Text(value)
    }
}

impl From<Uuid> for Value {
    fn from(value: Uuid) -> Self {
        value.as_bytes().as_slice().into()
    }
}

impl From<&ChunkHash> for Value {
    fn from(value: &ChunkHash) -> Self {
        value.0.as_slice().into()
    }
}

impl From<&[u8]> for Value {
    fn from(value: &[u8]) -> Self {
        Self::Bytes(Some(value.to_vec()))
    }
}

impl From<Vec<u8>> for Value {
    fn from(value: Vec<u8>) -> Self {
        Self::Bytes(Some(value))
    }
}

impl From<Option<Vec<u8>>> for Value {
    fn from(value: Option<Vec<u8>>) -> Self {
        Self::Bytes(value)
    }
}
