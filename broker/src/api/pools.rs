//! Pools: what they have, what they lack, and what admins do to them.

use super::{ApiError, Refusal, paging};
use crate::{
    dispatch::NotDone,
    engine::unix_ms,
    http::{Caller, Shared},
    pools::Request,
    store::{AuditEntry, Write},
};
use axum::{
    Extension, Json,
    extract::{Path, State},
};
use baton_protocol::api::{Action, Page, Pool, PoolTest};
use tokio::sync::oneshot;

/// Pools of workers, in the order of the settings
#[utoipa::path(get, path = "/v1/pools", operation_id = "pools",
    responses((status = 200, body = Page<Pool>, description = "The answer"), Refusal))]
pub(super) async fn list(State(shared): State<Shared>) -> Result<Json<Page<Pool>>, ApiError> {
    Ok(Json(paging::whole(shared.pools.all().to_vec())))
}

/// Let a pool that is paused start workers again
///
/// For admins.
#[utoipa::path(post, path = "/v1/pools/{pool}/resume", operation_id = "resume_pool", params(("pool" = String, Path)),
    responses((status = 200, body = Pool, description = "The pool now"), Refusal))]
pub(super) async fn resume(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(pool): Path<String>,
) -> Result<Json<Pool>, ApiError> {
    let resumed = ask(&shared, &caller, &pool, Request::Resume).await?;
    let entry = AuditEntry {
        at_ms: unix_ms(),
        person: caller.identity.person().map(str::to_owned),
        action: Action::Resume,
        course: String::new(),
        subject: format!("pool {pool}"),
        detail: None,
    };
    shared.store.apply(&[Write::Audit(entry)]).await?;
    Ok(Json(resumed))
}

/// What the commands of a pool are, without running them
///
/// For admins.
#[utoipa::path(post, path = "/v1/pools/{pool}/test", operation_id = "test_pool", params(("pool" = String, Path)),
    responses((status = 200, body = PoolTest, description = "The commands"), Refusal))]
pub(super) async fn test(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(pool): Path<String>,
) -> Result<Json<PoolTest>, ApiError> {
    ask(&shared, &caller, &pool, Request::Test).await.map(Json)
}

async fn ask<Answer>(
    shared: &Shared,
    caller: &Caller,
    pool: &str,
    request: impl FnOnce(String, oneshot::Sender<Option<Answer>>) -> Request,
) -> Result<Answer, ApiError> {
    if !caller.identity.may_steer_workers() {
        return Err(NotDone::AdminsOnly.into());
    }
    let unknown = || NotDone::UnknownPool(pool.to_owned());
    if !shared.pools.names.iter().any(|known| known == pool) {
        return Err(unknown().into());
    }
    let (sender, answer) = oneshot::channel();
    let sent = shared.pools.requests.send(request(pool.to_owned(), sender));
    sent.await.map_err(|_| ApiError::Ending)?;
    let answer = answer.await.map_err(|_| ApiError::Ending)?;
    Ok(answer.ok_or_else(unknown)?)
}
