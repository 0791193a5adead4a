//! The *object_store* transport: transfers chunks to and from a store outside the broker, each with
//! a grant from the broker.
//!
//! **Invariant:** requests only go to the address of a grant, which is valid for one chunk and a
//! few minutes. Redirects are not followed, and the store never gets the broker's token.

use crate::{LinkError, api::cause_of, dial::CONNECT_TIMEOUT, tls};
use baton_protocol::{CHUNK_BYTES, ChunkHash, Grant};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use reqwest::{Body, Client, Method, RequestBuilder, Response, StatusCode, Url, redirect::Policy};
use std::{path::Path, time::Duration};

/// The longest pause in the store's answer.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// The number of chunks to transfer at a time; all of them are in memory.
const PARALLEL: usize = 8;

/// Azure's error for an object that exists already; other stores answer 412.
const EXISTS: &str = "BlobAlreadyExists";

/// The most bytes of a refusal to read.
const LONGEST_REFUSAL: usize = 16 << 10;

#[derive(Debug, Clone)]
pub struct ObjectClient {
    client: Client,
}

impl ObjectClient {
    /// Checks the store's certificate with the same authorities as the broker's.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub fn new(ca_file: Option<&Path>) -> Result<Self, LinkError> {
        let client = Client::builder()
            .no_proxy()
            .redirect(Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .tls_backend_preconfigured(tls::client(ca_file)?)
            .build();
        match client {
            Ok(client) => Ok(Self { client }),
            Err(_) => Err(LinkError::Answer(
                "the object store's address cannot be used",
            )),
        }
    }

    /// Uploads the chunks that have a grant. If the store refuses one, which it may already have,
    /// the others are uploaded all the same.
    ///
    /// # Errors
    /// If the store cannot be used, is full, or refuses a grant.
    pub async fn put(
        &self,
        grants: Vec<Grant>,
        chunks: &[(ChunkHash, Bytes)],
    ) -> Result<(), LinkError> {
        let put = async |grant: Grant| {
            let named = chunks.iter().find(|(hash, _)| *hash == grant.chunk);
            match named {
                Some((_, bytes)) if bytes.len() as u64 == grant.bytes => {
                    self.put_one(&grant, bytes.clone()).await
                }
                _ => Err(LinkError::Answer("a grant is for another chunk")),
            }
        };
        let mut uploads = stream::iter(grants).map(put).buffer_unordered(PARALLEL);
        let mut refused = Ok(());
        while let Some(uploaded) = uploads.next().await {
            match uploaded {
                Err(LinkError::ObjectRefused { .. }) if refused.is_err() => {}
                Err(error @ LinkError::ObjectRefused { .. }) => refused = Err(error),
                uploaded => uploaded?,
            }
        }
        refused
    }

    async fn put_one(&self, grant: &Grant, bytes: Bytes) -> Result<(), LinkError> {
        let request = self.request(Method::PUT, grant)?.body(Body::from(bytes));
        self.send(request, grant).await.map(drop)
    }

    /// Fetches and verifies all of these chunks. Passes each to `each` once, in order, even if
    /// later ones do not arrive.
    ///
    /// # Errors
    /// If the store cannot be used, refuses a grant, or does not have a chunk.
    pub async fn get(
        &self,
        grants: Vec<Grant>,
        mut each: impl FnMut(ChunkHash, Bytes) -> Result<(), LinkError>,
    ) -> Result<(), LinkError> {
        let get = async |grant: Grant| {
            let chunk = self.get_one(&grant).await?;
            Ok::<_, LinkError>((grant.chunk, chunk))
        };
        let mut chunks = stream::iter(grants).map(get).buffered(PARALLEL);
        while let Some((hash, chunk)) = chunks.try_next().await? {
            each(hash, chunk)?;
        }
        Ok(())
    }

    async fn get_one(&self, grant: &Grant) -> Result<Bytes, LinkError> {
        let hash = grant.chunk;
        let answer = self.send(self.request(Method::GET, grant)?, grant).await;
        let mut answer = match answer {
            Err(LinkError::ObjectRefused { status: 404, .. }) => {
                return Err(LinkError::DamagedChunk { hash });
            }
            answer => answer?,
        };
        let mut bytes = BytesMut::new();
        while let Some(part) = answer.chunk().await.map_err(|error| broke(grant, error))? {
            bytes.extend_from_slice(&part);
            if bytes.len() > CHUNK_BYTES {
                return Err(LinkError::DamagedChunk { hash });
            }
        }
        match baton_chunks::hash(&bytes) == hash {
            true => Ok(bytes.freeze()),
            false => Err(LinkError::DamagedChunk { hash }),
        }
    }

    fn request(&self, method: Method, grant: &Grant) -> Result<RequestBuilder, LinkError> {
        let url: Result<Url, _> = grant.url.parse();
        let Ok(url) = url else {
            return Err(LinkError::Answer("a grant has no valid address"));
        };
        let mut request = self.client.request(method, url);
        for (name, value) in &grant.headers {
            request = request.header(name, value);
        }
        Ok(request)
    }

    async fn send(&self, request: RequestBuilder, grant: &Grant) -> Result<Response, LinkError> {
        let answer = request.send().await.map_err(|error| broke(grant, error))?;
        let status = answer.status();
        if status.is_success() {
            return Ok(answer);
        }
        let code = code_of(answer).await;
        let host = host(grant);
        let is_full = status == StatusCode::INSUFFICIENT_STORAGE
            || code.contains("Quota")
            || code.contains("StorageFull");
        if is_full {
            return Err(LinkError::StoreFull {
                text: format!("the object store at {host} answered {code}"),
            });
        }
        let status = status.as_u16();
        match status {
            _ if code == EXISTS => Err(LinkError::ObjectRefused { host, status, code }),
            // S3 answers the same when it conflicts with another upload of the same object.
            408 | 409 | 425 | 429 | 500.. => Err(LinkError::ObjectStore {
                host,
                reason: format!("it answered {status} {code}"),
            }),
            _ => Err(LinkError::ObjectRefused { host, status, code }),
        }
    }
}

fn host(grant: &Grant) -> String {
    let url: Option<Url> = grant.url.parse().ok();
    let host = url
        .as_ref()
        .and_then(|url| Some((url.host_str()?, url.port())));
    match host {
        Some((host, Some(port))) => format!("{host}:{port}"),
        Some((host, None)) => host.to_owned(),
        None => String::new(),
    }
}

fn broke(grant: &Grant, error: reqwest::Error) -> LinkError {
    let host = host(grant);
    if let Some(problem) = tls::problem(&error) {
        return LinkError::UnsafeStore { host, problem };
    }
    let reason = match error.is_timeout() {
        true => "it does not answer".to_owned(),
        false => cause_of(error),
    };
    LinkError::ObjectStore { host, reason }
}

/// The error's name, such as `SlowDown`, which is in the answers of all stores.
async fn code_of(mut answer: Response) -> String {
    let mut body = Vec::new();
    while let Ok(Some(part)) = answer.chunk().await {
        body.extend_from_slice(&part);
        if body.len() > LONGEST_REFUSAL {
            break;
        }
    }
    let body = String::from_utf8_lossy(&body);
    let code = body
        .split_once("<Code>")
        .and_then(|(_, rest)| rest.split_once("</Code>"));
    let code = code.map_or("", |(code, _)| code);
    let is_letter = |letter: &char| letter.is_ascii_alphanumeric();
    code.chars().take(80).filter(is_letter).collect()
}
