//! Long lists in pages.

use super::ApiError;
use baton_protocol::api::Page;

const USUAL: u32 = 50;
const MOST: u32 = 500;

/// The size of a page.
pub(super) fn size(limit: Option<u32>) -> Result<u32, ApiError> {
    match limit.unwrap_or(USUAL) {
        size @ 1..=MOST => Ok(size),
        _ => Err(ApiError::Query(format!("`limit` must be from 1 to {MOST}"))),
    }
}

/// Makes a page of rows. The caller must have fetched one row more than `size`, which shows whether
/// there are more.
pub(super) fn page<Row, Item>(
    mut rows: Vec<Row>,
    size: u32,
    cursor: impl Fn(&Row) -> String,
    item: impl FnMut(Row) -> Item,
) -> Page<Item> {
    let more = rows.len() > size as usize;
    rows.truncate(size as usize);
    let last = rows.last().filter(|_| more);
    Page {
        next: last.map(cursor),
        items: rows.into_iter().map(item).collect(),
    }
}

/// A list that fits into one page.
pub(super) fn whole<Item>(items: Vec<Item>) -> Page<Item> {
    Page { items, next: None }
}

pub(super) fn wrong_cursor() -> ApiError {
    ApiError::Query("`after` must be the `next` of an earlier answer".to_owned())
}
