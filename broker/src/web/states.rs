//! Saved states: `GET /v1/states`, and `PUT`, `GET`, `DELETE /v1/states/{name}`.
//!
//! A state belongs to one person in one course. The response for another person's state is the same
//! as for a missing one. It is encoded as its notebook's proxy sent it. The broker reads only which
//! chunks it names, not their contents.
//!
//! **Invariant:** a state is stored as a whole. It replaces one of the same name only if all of its
//! chunks exist and belong to its person.

use super::{
    Shared,
    chunk_error::ChunkError,
    chunks::{self, OnAccount, Party},
};
use crate::{
    clock::unix_ms,
    web::{ApiError, api::Refusal},
};
use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, FromRequestParts, Path, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
    routing::get,
};
use baton_broker_queue::Account;
use baton_broker_store::StateRow;
use baton_humanize::one_line;
use baton_protocol::{Bound, ChunkHash, SavedState, api, decode_bounded};
use std::collections::BTreeMap;
use utoipa::OpenApi;

/// The largest list of chunks in a state, which names about 100 GB.
const LARGEST_STATE: usize = 8 << 20;
/// For one person in one course.
const MOST_STATES: usize = 100;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/v1/states", get(list))
        .route("/v1/states/{name}", get(load).put(save).delete(delete))
        .layer(DefaultBodyLimit::max(LARGEST_STATE))
}

/// The operations that people may use without a notebook, for the API's document.
#[derive(OpenApi)]
#[openapi(paths(list, delete))]
pub(crate) struct Description;

#[derive(Debug, thiserror::Error)]
enum SavedStateError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error(transparent)]
    Chunks(#[from] ChunkError),
}

impl IntoResponse for SavedStateError {
    fn into_response(self) -> Response {
        match self {
            Self::Api(error) => error.into_response(),
            Self::Chunks(error) => error.into_response(),
        }
    }
}

impl From<baton_broker_store::StoreError> for SavedStateError {
    fn from(error: baton_broker_store::StoreError) -> Self {
        Self::Chunks(error.into())
    }
}

/// The person whose states or jobs a request is about.
pub(super) struct OfPerson(pub(super) Account);

impl FromRequestParts<Shared> for OfPerson {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, shared: &Shared) -> Result<Self, Response> {
        // A worker must not access what the people of its jobs have saved.
        let found = OnAccount::of(parts, shared, Party::without_notebook).await?;
        Ok(Self(found.account))
    }
}

/// Your saved states in a course, by name
///
/// `%gpu_save` in a notebook creates them. A person in several courses must name one.
#[utoipa::path(get, path = "/v1/states", operation_id = "states",
    params(("course" = Option<String>, Query)),
    responses((status = 200, body = [api::SavedState], description = "The answer"), Refusal))]
async fn list(
    State(shared): State<Shared>,
    OfPerson(account): OfPerson,
) -> Result<Json<Vec<api::SavedState>>, SavedStateError> {
    Ok(Json(shared.store.states().of(&account).await?))
}

async fn load(
    State(shared): State<Shared>,
    OfPerson(account): OfPerson,
    Path(name): Path<String>,
) -> Result<Vec<u8>, SavedStateError> {
    let state = shared.store.states().body(&account, &name).await?;
    Ok(state.ok_or(ApiError::UnknownState { name })?)
}

/// Delete a saved state of yours
///
/// The space of its data is free some minutes later.
#[utoipa::path(delete, path = "/v1/states/{name}", operation_id = "delete_state",
    params(("name" = String, Path), ("course" = Option<String>, Query)),
    responses((status = 204, description = "It is deleted"), Refusal))]
async fn delete(
    State(shared): State<Shared>,
    OfPerson(account): OfPerson,
    Path(name): Path<String>,
) -> Result<StatusCode, SavedStateError> {
    match shared.store.states().delete(&account, &name).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(ApiError::UnknownState { name }.into()),
    }
}

async fn save(
    State(shared): State<Shared>,
    OfPerson(account): OfPerson,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Json<api::SavedState>, SavedStateError> {
    if !SavedState::is_name(&name) {
        let text = format!(
            "a state's name has 1 to {} letters, digits, dots, hyphens and underscores",
            SavedState::LONGEST_NAME
        );
        return Err(ApiError::Body(text).into());
    }
    let state: SavedState =
        decode_bounded(&body, Bound::MESSAGE.elements).map_err(ChunkError::from)?;
    let others = shared.store.states().of(&account).await?;
    if others.len() >= MOST_STATES && others.iter().all(|other| other.name != name) {
        return Err(ApiError::StateLimit { most: MOST_STATES }.into());
    }
    // Checked before the chunks: this request adds only the list of them.
    let quota = shared.quotas.take(&account.owner, body.len() as u64);
    if let Some(exceeded) = quota.await.map_err(ChunkError::from)? {
        return Err(ChunkError::of_quota(&account, exceeded).into());
    }
    let named: BTreeMap<ChunkHash, u64> = state.manifest.sized_chunks().collect();
    let hashes: Vec<ChunkHash> = named.into_keys().collect();
    let held = chunks::keep(&shared, &account, &hashes).await?;
    let mut missing = hashes.len() - held.len();
    if missing == 0 {
        // Before the answer, because the notebook may end as soon as it reads that the state is saved.
        missing = chunks::sync(&shared, &hashes).await?;
    }
    if missing > 0 {
        return Err(ApiError::ChunksMissing { missing }.into());
    }
    let entry = api::SavedState {
        name,
        notebook: state.about.notebook.as_deref().map(one_line),
        saved_ms: unix_ms(),
        bytes: held.values().sum(),
        variables: state.about.variables.len() as u64,
    };
    let row = StateRow {
        entry: entry.clone(),
        body: body.into(),
        chunks: hashes,
    };
    shared.store.states().save(&account, &row).await?;
    Ok(Json(entry))
}
