//! A row that has left its statement.

use rusqlite::types::{FromSql, Value};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) struct SqliteRow {
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

    pub(crate) fn get<T: FromSql>(&self, column: &str) -> rusqlite::Result<T> {
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
