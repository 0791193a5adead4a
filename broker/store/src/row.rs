//! A row of either engine.

use super::StoreError;
use rusqlite::types::{FromSql, Value};
use sqlx::{Postgres, postgres::PgRow};
use std::sync::Arc;

#[derive(Debug)]
pub(super) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

/// A type that both engines can return.
pub(super) trait Column:
    FromSql + for<'row> sqlx::Decode<'row, Postgres> + sqlx::Type<Postgres>
{
}

impl<T> Column for T where T: FromSql + for<'row> sqlx::Decode<'row, Postgres> + sqlx::Type<Postgres>
{}

impl Row {
    pub(super) fn get<T: Column>(&self, column: &str) -> Result<T, StoreError> {
        Ok(match self {
            Self::Sqlite(row) => row.get(column)?,
            Self::Postgres(row) => sqlx::Row::try_get(row, column)?,
        })
    }
}

/// A row that no longer depends on its statement.
#[derive(Debug)]
pub(super) struct SqliteRow {
    columns: Arc<[String]>,
    values: Vec<Value>,
}

impl SqliteRow {
    pub(super) fn read(columns: &Arc<[String]>, row: &rusqlite::Row<'_>) -> rusqlite::Result<Self> {
        let values = (0..columns.len()).map(|column| row.get(column));
        Ok(Self {
            values: values.collect::<Result<_, _>>()?,
            columns: Arc::clone(columns),
        })
    }

    /// The bytes of its texts and blobs.
    pub(super) fn bytes(&self) -> usize {
        let bytes = |value: &Value| match value {
            Value::Text(text) => text.len(),
            Value::Blob(blob) => blob.len(),
            Value::Null | Value::Integer(_) | Value::Real(_) => 0,
        };
        self.values.iter().map(bytes).sum()
    }

    fn get<T: FromSql>(&self, column: &str) -> rusqlite::Result<T> {
        let found = self
            .columns
            .iter()
            .zip(&self.values)
            .position(|(name, _)| name == column);
        let index = found.ok_or_else(|| rusqlite::Error::InvalidColumnName(column.to_owned()))?;
        let value = &self.values[index];
        T::column_result(value.into()).map_err(|error| {
            rusqlite::Error::FromSqlConversionFailure(index, value.data_type(), error.into())
        })
    }
}
