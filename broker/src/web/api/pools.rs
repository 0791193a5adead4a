//! Pools: their workers, the number they should have, and actions of admins.

use super::{ApiError, Refusal, actions::Body, paging};
use crate::{
    clock::unix_ms,
    engine::Leadership,
    pools::Request,
    web::{Caller, Shared},
};
use axum::{
    Extension, Json,
    extract::{Path, State},
};
use baton_broker_queue::{AuditEntry, NotDone, Write};
use baton_protocol::api::{Action, JoinPool, Joined, Page, Pool, PoolTest, Scale};
use tokio::sync::oneshot;
use utoipa::OpenApi;

/// The operations for programs with their own kinds of tokens.
#[derive(OpenApi)]
#[openapi(paths(scale, join))]
pub(super) struct ForPrograms;

/// Pools of workers, in the order of the settings
#[utoipa::path(get, path = "/v1/pools", operation_id = "pools",
    responses((status = 200, body = Page<Pool>, description = "The answer"), Refusal))]
pub(super) async fn list(State(shared): State<Shared>) -> Result<Json<Page<Pool>>, ApiError> {
    Ok(Json(paging::whole(shared.pools.all())))
}

/// Let a paused pool start workers again
///
/// For admins.
#[utoipa::path(post, path = "/v1/pools/{pool}/resume", operation_id = "resume_pool", params(("pool" = String, Path)),
    responses((status = 200, body = Pool, description = "The pool after the change"), Refusal))]
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

/// The commands of a pool, without running them
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

/// How many workers a pool should have
///
/// For admins and programs that start workers, such as an autoscaler.
#[utoipa::path(get, path = "/v1/scale/{pool}", operation_id = "scale", params(("pool" = String, Path)),
    responses((status = 200, body = Scale, description = "The current numbers"), Refusal))]
pub(super) async fn scale(
    State(shared): State<Shared>,
    Path(name): Path<String>,
) -> Result<Json<Scale>, ApiError> {
    let pools = shared.pools.all();
    // The numbers are unknown after a start and on a follower.
    let leads = *shared.leadership.borrow() == Leadership::Leader;
    if !shared.pools.handles.is_empty() && (pools.is_empty() || !leads) {
        return Err(ApiError::NotCounted);
    }
    let pool = pools.iter().find(|pool| pool.pool == name);
    let pool = pool.ok_or_else(|| NotDone::UnknownPool(name.clone()))?;
    Ok(Json(Scale {
        pool: name,
        wanted: pool.wanted,
        processes: pool.wanted.saturating_add(pool.leaving),
    }))
}

/// Join a pool as a worker
///
/// For workers that something else starts, with the token of their pool. The response has a token
/// for this worker only.
#[utoipa::path(post, path = "/v1/pools/{pool}/workers", operation_id = "join_pool", params(("pool" = String, Path)),
    request_body = JoinPool,
    responses((status = 200, body = Joined, description = "The worker's name, token and settings"), Refusal))]
pub(super) async fn join(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Path(pool): Path<String>,
    Body(join): Body<JoinPool>,
) -> Result<Json<Joined>, ApiError> {
    if !caller.identity.may_join(&pool) {
        return Err(match caller.identity.joins() {
            Some(own) => ApiError::OnlyJoins {
                pool: own.to_owned(),
            },
            None => ApiError::NotAWorker,
        });
    }
    let joined = put(&shared, &pool, |answer| Request::Join(join, answer));
    Ok(Json(joined.await??))
}

async fn ask<Answer>(
    shared: &Shared,
    caller: &Caller,
    pool: &str,
    request: impl FnOnce(oneshot::Sender<Answer>) -> Request,
) -> Result<Answer, ApiError> {
    if !caller.identity.may_steer_workers() {
        return Err(NotDone::AdminsOnly.into());
    }
    put(shared, pool, request).await
}

/// Sends a request to a pool and waits for the reply.
async fn put<Answer>(
    shared: &Shared,
    name: &str,
    request: impl FnOnce(oneshot::Sender<Answer>) -> Request,
) -> Result<Answer, ApiError> {
    let pool = shared.pools.named(name);
    let pool = pool.ok_or_else(|| NotDone::UnknownPool(name.to_owned()))?;
    let (sender, answer) = oneshot::channel();
    let sent = pool.requests.send(request(sender));
    sent.await.map_err(|_| ApiError::Ending)?;
    answer.await.map_err(|_| ApiError::NotCounted)
}
