//! Chunks in an object store: a bucket that speaks S3's protocol.
//!
//! The broker signs one request for each chunk that somebody may upload or read ([`Grant`]), and they move the bytes
//! themselves. It asks the store for the size of an object and reads one only if a reader reports it as damaged.
//!
//! **Invariant:** nothing here decides who may have a chunk; keys name no person.

mod address;
mod presign;
mod room;
#[cfg(test)]
mod tests;

pub use address::{ChunkPlace, ChunkPlaceError, ObjectAddress, ObjectOptions};

use baton_broker_store::ObjectRow;
use baton_protocol::{ChunkHash, Grant};
use baton_transport::tls;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream, stream::BoxStream};
use object_store::{
    ClientConfigKey, ClientOptions, ObjectMeta, ObjectStore, ObjectStoreExt, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder},
    client::{HttpClient, HttpConnector},
    path::Path,
    signer::{SignedUrlOptions, Signer},
};
use reqwest::{
    Method,
    header::{HeaderValue, IF_NONE_MATCH},
};
use room::Room;
use std::{path::PathBuf, time::Duration};

/// How long a grant is good for. Shorter than the shortest time after which a sweep may delete what it is for.
const GRANT_LIFETIME: Duration = Duration::from_secs(300);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the store may take for one request of the broker. Whoever waits for it asks again.
const PATIENCE: Duration = Duration::from_secs(20);
/// How much of an error is shown; the store's answer is part of it.
const LONGEST_CAUSE: usize = 400;
/// Requests to the store at a time, for one request to the broker.
const PARALLEL: usize = 16;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ObjectsError {
    #[error("The object store's settings are not complete: {0}")]
    Settings(object_store::Error),
    /// Shown without the layers above its cause, which repeat it.
    #[error("The object store does not work: {}", cause_of(.0))]
    Store(object_store::Error),
    #[error("The object store's credentials cannot be used to sign requests")]
    Sign,
    #[error("The object store returned other bytes than were written")]
    Changed,
}

impl From<object_store::Error> for ObjectsError {
    fn from(error: object_store::Error) -> Self {
        Self::Store(error)
    }
}

fn cause_of(error: &object_store::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string().chars().take(LONGEST_CAUSE).collect()
}

pub(crate) struct Objects {
    store: AmazonS3,
    prefix: Path,
    pub(crate) limit_bytes: u64,
    pub(crate) room: Room,
}

/// Writes, reads and deletes an object at this address, and signs a request.
///
/// # Errors
/// When the broker could not use the store.
pub async fn check_objects(
    address: &ObjectAddress,
    options: &ObjectOptions,
    ca_file: Option<PathBuf>,
) -> anyhow::Result<()> {
    Ok(Objects::open(address, options, ca_file, u64::MAX)?
        .check()
        .await?)
}

/// What lies in the bucket.
pub(crate) struct Listed {
    /// `None`: it has no name of a chunk.
    pub(crate) row: Option<ObjectRow>,
    pub(crate) path: Path,
    pub(crate) modified_ms: i64,
}

impl Objects {
    pub(crate) fn open(
        address: &ObjectAddress,
        options: &ObjectOptions,
        ca_file: Option<PathBuf>,
        limit_bytes: u64,
    ) -> Result<Self, ObjectsError> {
        let retry = RetryConfig {
            max_retries: 2,
            retry_timeout: PATIENCE,
            ..RetryConfig::default()
        };
        let mut builder = AmazonS3Builder::new();
        for (key, value) in options.iter() {
            // What it does not know is for other programs.
            if let Ok(key) = key.to_ascii_lowercase().parse() {
                builder = builder.with_config(key, value);
            }
        }
        let store = builder
            .with_bucket_name(&address.bucket)
            .with_http_connector(Connector { ca_file })
            .with_retry(retry)
            .build()
            .map_err(ObjectsError::Settings)?;
        Ok(Self {
            store,
            prefix: Path::from(address.prefix.as_str()),
            limit_bytes,
            room: Room::new(limit_bytes),
        })
    }

    /// Writes, reads and deletes an object.
    pub(crate) async fn check(&self) -> Result<(), ObjectsError> {
        let path = self
            .prefix
            .clone()
            .join(format!("check-{}", uuid::Uuid::new_v4().simple()));
        let written = Bytes::from_static(b"Baton checks that this store works.");
        self.store.put(&path, written.clone().into()).await?;
        let read = self.store.get(&path).await?.bytes().await?;
        self.sign(Method::GET, &path, None).await?;
        self.store.delete(&path).await?;
        match read == written {
            true => Ok(()),
            false => Err(ObjectsError::Changed),
        }
    }

    /// Lets whoever has it upload so many bytes, once.
    pub(crate) async fn upload_grant(&self, to: &ObjectRow) -> Result<Grant, ObjectsError> {
        let url = self
            .sign(Method::PUT, &self.path(to), Some(to.bytes))
            .await?;
        // The length is a header of each request.
        Ok(grant(
            to,
            url,
            vec![(IF_NONE_MATCH.to_string(), "*".to_owned())],
        ))
    }

    pub(crate) async fn download_grant(&self, of: &ObjectRow) -> Result<Grant, ObjectsError> {
        let url = self.sign(Method::GET, &self.path(of), None).await?;
        Ok(grant(of, url, Vec::new()))
    }

    async fn sign(
        &self,
        method: Method,
        path: &Path,
        bytes: Option<u64>,
    ) -> Result<reqwest::Url, ObjectsError> {
        let Some(bytes) = bytes else {
            return Ok(self.store.signed_url(method, path, GRANT_LIFETIME).await?);
        };
        let only_new = SignedUrlOptions::new()
            .with_signed_header(IF_NONE_MATCH, HeaderValue::from_static("*"));
        let signing = self
            .store
            .signed_url_opts(method.clone(), path, GRANT_LIFETIME, &only_new);
        let url = signing.await?;
        let credential = self.store.credentials().get_credential().await?;
        let length = bytes.to_string();
        let headers = [("content-length", length.as_str()), ("if-none-match", "*")];
        presign::with_headers(&url, &method, &credential.secret_key, &headers)
            .ok_or(ObjectsError::Sign)
    }

    /// Those of the objects that are there, with their sizes.
    pub(crate) async fn sizes(
        &self,
        rows: Vec<ObjectRow>,
    ) -> Result<Vec<(ObjectRow, Option<u64>)>, ObjectsError> {
        let size = async |row: ObjectRow| match self.store.head(&self.path(&row)).await {
            Ok(meta) => Ok((row, Some(meta.size))),
            Err(object_store::Error::NotFound { .. }) => Ok((row, None)),
            Err(error) => Err(error.into()),
        };
        stream::iter(rows)
            .map(size)
            .buffer_unordered(PARALLEL)
            .try_collect()
            .await
    }

    /// Whether the object is there and has the bytes that its chunk is named for.
    pub(crate) async fn is_sound(&self, row: &ObjectRow) -> Result<bool, ObjectsError> {
        let object = match self.store.get(&self.path(row)).await {
            Err(object_store::Error::NotFound { .. }) => return Ok(false),
            object => object?,
        };
        // It is not read if it is larger than a chunk.
        if object.meta.size != row.bytes {
            return Ok(false);
        }
        let bytes = object.bytes().await?;
        let hash = tokio::task::spawn_blocking(move || baton_chunks::hash(&bytes)).await;
        Ok(hash.is_ok_and(|hash| hash == row.hash))
    }

    /// Returns how many were not deleted, which the next look at the bucket finds.
    pub(crate) async fn delete(&self, rows: Vec<ObjectRow>) -> usize {
        let paths: Vec<Path> = rows.iter().map(|row| self.path(row)).collect();
        self.delete_paths(paths).await
    }

    pub(crate) async fn delete_paths(&self, paths: Vec<Path>) -> usize {
        let delete = async |path: Path| match self.store.delete(&path).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => 0,
            Err(error) => {
                tracing::error!("An object cannot be deleted: {error}");
                1
            }
        };
        stream::iter(paths)
            .map(delete)
            .buffer_unordered(PARALLEL)
            .fold(0, async |failed, one| failed + one)
            .await
    }

    /// All that lies below the prefix, a page at a time.
    pub(crate) fn list(&self) -> BoxStream<'_, Result<Listed, ObjectsError>> {
        let listed = |meta: ObjectMeta| Listed {
            row: named(&meta),
            modified_ms: meta.last_modified.timestamp_millis(),
            path: meta.location,
        };
        let all = self.store.list(Some(&self.prefix));
        all.map_ok(listed).map_err(ObjectsError::from).boxed()
    }

    fn path(&self, row: &ObjectRow) -> Path {
        let hash = row.hash.to_string();
        let folder = self.prefix.clone().join(&hash[..2]);
        folder.join(format!("{hash}.{}", row.object))
    }
}

fn grant(row: &ObjectRow, url: reqwest::Url, headers: Vec<(String, String)>) -> Grant {
    Grant {
        chunk: row.hash,
        bytes: row.bytes,
        url: url.into(),
        headers,
    }
}

fn named(meta: &ObjectMeta) -> Option<ObjectRow> {
    let (hash, object) = meta.location.filename()?.split_once('.')?;
    let hash: ChunkHash = hash.parse().ok()?;
    Some(ObjectRow {
        hash,
        object: object.to_owned(),
        bytes: meta.size,
    })
}

/// The store's certificate is checked as everything else in Baton is.
#[derive(Debug)]
struct Connector {
    ca_file: Option<PathBuf>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let failed = |source| object_store::Error::Generic {
            store: "S3",
            source,
        };
        let allow_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let tls = tls::client(self.ca_file.as_deref()).map_err(|error| failed(error.into()))?;
        let client = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .https_only(allow_http.as_deref() != Some("true"))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(PATIENCE)
            .tls_backend_preconfigured(tls)
            .build()
            .map_err(|error| failed(error.into()))?;
        Ok(HttpClient::new(client))
    }
}
