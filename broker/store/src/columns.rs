//! Conversions between values and columns.

use super::{StoreError, row::Row};
use baton_broker_queue::{Account, StopReason};
use baton_protocol::{CellKey, GroupId, JobKind, Outcome};
use uuid::Uuid;

pub(super) fn kind(row: &Row) -> Result<JobKind, StoreError> {
    let name: String = row.get("job_kind")?;
    JobKind::from_name(&name).ok_or(StoreError::Damaged { what: "a kind" })
}

pub(super) fn group(row: &Row) -> Result<Option<GroupId>, StoreError> {
    let group: Option<Vec<u8>> = row.get("job_group")?;
    group.map(|_| id(row, "job_group").map(GroupId)).transpose()
}

pub(super) fn account(row: &Row) -> Result<Account, StoreError> {
    Ok(Account {
        owner: row.get("owner")?,
        course: row.get("course")?,
    })
}

pub(super) fn id(row: &Row, column: &str) -> Result<Uuid, StoreError> {
    let bytes: Vec<u8> = row.get(column)?;
    Uuid::from_slice(&bytes).map_err(|_| StoreError::Damaged {
        what: "an identifier",
    })
}

/// A number of at most 32 bits.
pub(super) fn small(row: &Row, column: &str) -> Result<Option<u32>, StoreError> {
    let value: Option<i64> = row.get(column)?;
    let damaged = |_| StoreError::Damaged {
        what: "a number that is too large",
    };
    value.map(u32::try_from).transpose().map_err(damaged)
}

pub(super) fn count(value: i64) -> Result<u64, StoreError> {
    u64::try_from(value).map_err(|_| StoreError::Damaged {
        what: "a negative number",
    })
}

pub(super) fn outcome(row: &Row) -> Result<Option<Outcome>, StoreError> {
    let outcome: Option<String> = row.get("outcome")?;
    outcome
        .map(|name| Outcome::from_name(&name).ok_or(StoreError::Damaged { what: "an outcome" }))
        .transpose()
}

pub(super) fn stopped(row: &Row) -> Result<Option<StopReason>, StoreError> {
    let stopped: Option<String> = row.get("stopped")?;
    let damaged = |_| StoreError::Damaged {
        what: "why a job was stopped",
    };
    let parsed = stopped.map(|text| serde_json::from_str(&text));
    parsed.transpose().map_err(damaged)
}

/// The engines' integers are signed. Counts stay far below 2^63; a larger measured number is clamped.
pub(super) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(super) fn cell_key(row: &Row) -> Result<Option<CellKey>, StoreError> {
    let key: Option<Vec<u8>> = row.get("cell_key")?;
    let known = |key: Vec<u8>| key.try_into().map(CellKey);
    let damaged = |_| StoreError::Damaged {
        what: "a cell's key",
    };
    key.map(known).transpose().map_err(damaged)
}
