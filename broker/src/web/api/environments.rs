//! Environments that workers offer, and the locks with which notebooks build the same.

use super::{ApiError, Refusal, ask, paging};
use crate::{engine::Event, web::Shared};
use axum::{
    Json,
    extract::{Path, State},
};
use baton_broker_queue::Overview;
use baton_protocol::{
    Environment,
    api::{EnvironmentLock, EnvironmentOffer, EnvironmentOverview, Page},
};
use std::collections::BTreeMap;

/// Environments that workers offer or have offered, by name
#[utoipa::path(get, path = "/v1/environments", operation_id = "environments",
    responses((status = 200, body = Page<EnvironmentOverview>, description = "The answer"), Refusal))]
pub(super) async fn list(
    State(shared): State<Shared>,
) -> Result<Json<Page<EnvironmentOverview>>, ApiError> {
    let stored = shared.store.environments().locks().await?;
    let locks = stored
        .into_iter()
        .map(|row| (row.environment, Some(row.digest)));
    let mut locks: BTreeMap<String, Option<String>> = locks.collect();
    let overview = ask(&shared, Event::Overview).await?;
    for (_, environment) in offered(&overview) {
        locks.entry(environment.name.clone()).or_default();
    }
    let environments = locks.into_iter().map(|(name, lock)| EnvironmentOverview {
        workers: offered(&overview)
            .filter(|(_, offered)| offered.name == name)
            .map(|(worker, offered)| EnvironmentOffer {
                worker: worker.to_owned(),
                lock: offered.lock.clone(),
                python_version: offered.python_version.clone(),
                state: offered.state.clone(),
            })
            .collect(),
        environment: name,
        lock,
    });
    Ok(Json(paging::whole(environments.collect())))
}

/// The lock of an environment
#[utoipa::path(get, path = "/v1/environments/{environment}/lock", operation_id = "environment_lock",
    params(("environment" = String, Path)),
    responses((status = 200, body = EnvironmentLock, description = "The answer"), Refusal))]
pub(super) async fn lock(
    State(shared): State<Shared>,
    Path(name): Path<String>,
) -> Result<Json<EnvironmentLock>, ApiError> {
    let overview = ask(&shared, Event::Overview).await?;
    let mut ready = offered(&overview)
        .filter(|(_, offered)| offered.name == name && offered.is_ready())
        .filter_map(|(_, offered)| offered.python_version.clone());
    let python_version = ready.next();
    match shared.store.environments().lock(&name).await? {
        Some((row, lock)) => Ok(Json(EnvironmentLock {
            environment: name,
            digest: row.digest,
            lock,
            seen_ms: row.seen_ms,
            python_version,
        })),
        None if offered(&overview).any(|(_, offered)| offered.name == name) => {
            Err(ApiError::NoLock { name })
        }
        None => Err(ApiError::UnknownEnvironment { name }),
    }
}

/// All offered environments, each with the name of its worker.
fn offered(overview: &Overview) -> impl Iterator<Item = (&str, &Environment)> {
    overview.workers.iter().flat_map(|worker| {
        let environments = worker.machine.environments.iter();
        environments.map(|environment| (worker.name.as_str(), environment))
    })
}
