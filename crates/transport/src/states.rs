//! Saved states, which a person keeps at the broker under a name.
//!
//! Like chunk requests, all of these may be repeated without harm.

use crate::{ChunkClient, LinkError};
use baton_protocol::{JobId, SavedState, api, decode, encode};
use bytes::Bytes;
use reqwest::Method;

const STATES: &str = "/v1/states";
const ATTACHABLE: &str = "/v1/attachable";

/// Stores a state in place of one of the same name. The broker must already have its chunks.
pub async fn save(
    client: &ChunkClient,
    name: &str,
    state: &SavedState,
) -> Result<api::SavedState, LinkError> {
    let body = with_state(client, Method::PUT, name, Bytes::from(encode(state))).await?;
    json(&body)
}

pub async fn load(client: &ChunkClient, name: &str) -> Result<SavedState, LinkError> {
    let body = with_state(client, Method::GET, name, Bytes::new()).await?;
    Ok(decode(&body)?)
}

pub async fn delete(client: &ChunkClient, name: &str) -> Result<(), LinkError> {
    with_state(client, Method::DELETE, name, Bytes::new())
        .await
        .map(drop)
}

/// The person's saved states, sorted by name.
pub async fn all(client: &ChunkClient) -> Result<Vec<api::SavedState>, LinkError> {
    let body = client.repeat(Method::GET, STATES, Bytes::new()).await?;
    json(&body)
}

/// The person's jobs that another kernel can attach.
pub async fn attachable(client: &ChunkClient) -> Result<Vec<api::AttachableJob>, LinkError> {
    let body = client.repeat(Method::GET, ATTACHABLE, Bytes::new()).await?;
    json(&body)
}

/// Cancels such a job if it runs, and deletes its state.
pub async fn discard(client: &ChunkClient, job: JobId) -> Result<(), LinkError> {
    let path = format!("{ATTACHABLE}/{job}");
    client.repeat(Method::DELETE, &path, Bytes::new()).await?;
    Ok(())
}

async fn with_state(
    client: &ChunkClient,
    method: Method,
    name: &str,
    body: Bytes,
) -> Result<Bytes, LinkError> {
    // Any other text would result in another address.
    if !SavedState::is_name(name) {
        return Err(LinkError::Answer("this is not a valid name for a state"));
    }
    client
        .repeat(method, &format!("{STATES}/{name}"), body)
        .await
}

fn json<Answer: serde::de::DeserializeOwned>(body: &[u8]) -> Result<Answer, LinkError> {
    serde_json::from_slice(body).map_err(|_| LinkError::Answer("it is not the expected JSON"))
}
