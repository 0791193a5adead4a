//! How much GPU time each person used.

use super::{ApiError, Asked, Refusal, paging};
use crate::web::{Caller, Shared};
use axum::{Extension, Json, extract::State};
use baton_broker_queue::Account;
use baton_broker_store::{UsageFilter, UsageRow};
use baton_protocol::api::{Page, Usage};
use jiff::{Unit, civil::Date};
use serde::Deserialize;
use utoipa::IntoParams;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UsageQuery {
    /// The first day, in UTC, for example `2026-11-16`.
    #[param(value_type = Option<String>, format = "date")]
    from: Option<String>,
    /// The last day.
    #[param(value_type = Option<String>, format = "date")]
    to: Option<String>,
    person: Option<String>,
    course: Option<String>,
    /// How many at most; 50 by default.
    #[param(minimum = 1, maximum = 500)]
    limit: Option<u32>,
    /// The `next` of the previous page.
    after: Option<String>,
}

/// GPU time by day, course and person
#[utoipa::path(get, path = "/v1/usage", operation_id = "usage", params(UsageQuery),
    responses((status = 200, body = Page<Usage>, description = "The answer"), Refusal))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Asked(asked): Asked<UsageQuery>,
) -> Result<Json<Page<Usage>>, ApiError> {
    let size = paging::size(asked.limit)?;
    let filter = asked.filter()?;
    let rows = shared
        .store
        .accounts()
        .usage(&caller.identity, &filter, size + 1)
        .await?;
    Ok(Json(paging::page(rows, size, cursor, usage)))
}

impl UsageQuery {
    fn filter(self) -> Result<UsageFilter, ApiError> {
        Ok(UsageFilter {
            from: self.from.map(|day| number_of(&day)).transpose()?,
            to: self.to.map(|day| number_of(&day)).transpose()?,
            person: self.person,
            course: self.course,
            after: self.after.map(|after| row_of(&after)).transpose()?,
        })
    }
}

fn cursor(row: &UsageRow) -> String {
    let UsageRow { day, account, .. } = row;
    serde_json::json!([day, account.course, account.owner]).to_string()
}

fn row_of(cursor: &str) -> Result<(i64, Account), ApiError> {
    let (day, course, owner) = serde_json::from_str(cursor).map_err(|_| paging::wrong_cursor())?;
    Ok((day, Account { owner, course }))
}

fn usage(row: UsageRow) -> Usage {
    Usage {
        day: day_of(row.day),
        person: row.account.owner,
        course: super::named(row.account.course),
        run_ms: row.run_ms,
        runs: row.runs,
    }
}

const FIRST: Date = Date::constant(1970, 1, 1);

fn number_of(day: &str) -> Result<i64, ApiError> {
    let wrong = || ApiError::Query(format!("{day:?} is not a day such as 2026-11-16"));
    let date: Date = day.parse().map_err(|_| wrong())?;
    let since = FIRST.until((Unit::Day, date)).map_err(|_| wrong())?;
    Ok(since.get_days().into())
}

pub(crate) fn day_of(number: i64) -> String {
    let days = jiff::Span::new().try_days(number);
    let day = days.and_then(|days| FIRST.checked_add(days));
    day.map_or_else(|_| String::new(), |day| day.to_string())
}
