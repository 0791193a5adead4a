//! Chunks in an object store.
//!
//! The broker signs one request for each chunk that a client may upload or read ([`Grant`]), and
//! clients move the bytes themselves. The broker asks the store for the sizes of objects. It reads
//! an object only if a reader reports it as damaged. The differences between stores are in
//! [`provider`] and the modules of the kinds.
//!
//! **Invariant:** nothing here decides who may have a chunk, and no key contains a person's name.

mod address;
mod azure;
mod google;
mod provider;
mod s3;
mod space;
#[cfg(test)]
mod tests;

pub use address::{ChunkPlace, ChunkPlaceError, ObjectAddress, ObjectKind, ObjectOptions};

use azure::Azure;
use baton_broker_store::ObjectRow;
use baton_humanize::root_cause;
use baton_protocol::{ChunkHash, Grant};
use baton_transport::{LinkError, ObjectClient};
use bytes::Bytes;
use futures_util::{
    StreamExt, TryStreamExt,
    stream::{self, BoxStream},
};
use object_store::{ObjectMeta, ObjectStoreExt, path::Path};
use provider::{Connector, Provider, Signed};
use space::Space;
use std::path::PathBuf;

/// The longest error text to show, in characters. It includes the store's response.
const LONGEST_CAUSE: usize = 400;
/// Concurrent requests to the store for one request to the broker.
const PARALLEL: usize = 16;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ObjectsError {
    #[error("The object store's settings are not complete: {0}")]
    Settings(object_store::Error),
    #[error("AZURE_STORAGE_ACCOUNT_NAME is missing in the broker's environment")]
    NoAccount,
    #[error("AZURE_STORAGE_ACCOUNT_KEY is not an account's key, which is in base64")]
    AccountKey,
    #[error(
        "AZURE_STORAGE_ENDPOINT is not an address, such as https://ACCOUNT.blob.core.windows.net"
    )]
    Endpoint,
    #[error(
        "AZURE_STORAGE_USE_EMULATOR does not work here\nhint: set AZURE_STORAGE_ENDPOINT instead, to http://127.0.0.1:10000/ACCOUNT"
    )]
    Emulator,
    #[error("The object store did not provide a key for signing requests: {0}")]
    Key(String),
    /// Shows only the innermost cause, because each layer above it repeats the text.
    #[error("The object store does not work: {}", cause_of(.0))]
    Store(object_store::Error),
    #[error("The object store's credentials cannot be used to sign requests")]
    Sign,
    #[error("The object store does not have what was written")]
    Lost,
    /// An error that notebooks and workers would also get.
    #[error(transparent)]
    Client(#[from] LinkError),
}

impl From<object_store::Error> for ObjectsError {
    fn from(error: object_store::Error) -> Self {
        Self::Store(error)
    }
}

fn cause_of(error: &object_store::Error) -> String {
    let text = root_cause(error).to_string();
    text.chars().take(LONGEST_CAUSE).collect()
}

pub(crate) struct Objects {
    provider: Box<dyn Provider>,
    prefix: Path,
    ca_file: Option<PathBuf>,
    pub(crate) limit_bytes: u64,
    pub(crate) space: Space,
}

/// Checks an object store: writes, reads, lists and deletes an object, as notebooks, workers and the broker do.
///
/// # Errors
/// Returns an error if the store cannot be used: a [`LinkError`] if notebooks and workers cannot use it.
pub async fn check_objects(
    address: &ObjectAddress,
    options: &ObjectOptions,
    ca_file: Option<PathBuf>,
) -> anyhow::Result<()> {
    let objects = Objects::open(address, options, ca_file, u64::MAX)?;
    match objects.check().await {
        // The same error as a notebook would get.
        Err(ObjectsError::Client(error)) => Err(error.into()),
        checked => Ok(checked?),
    }
}

/// An object in the bucket.
pub(crate) struct Listed {
    /// `None` if its name is not that of a chunk.
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
        Ok(Self {
            provider: open_provider(address, options, ca_file.clone())?,
            prefix: Path::from(address.prefix.as_str()),
            ca_file,
            limit_bytes,
            space: Space::new(limit_bytes),
        })
    }

    /// Writes, reads, lists and deletes an object. Uses grants where notebooks and workers do.
    pub(crate) async fn check(&self) -> Result<(), ObjectsError> {
        let bytes = Bytes::from_static(b"Baton checks that this store works.");
        let row = ObjectRow {
            hash: baton_chunks::hash(&bytes),
            object: uuid::Uuid::new_v4().simple().to_string(),
            bytes: bytes.len() as u64,
        };
        let client = ObjectClient::new(self.ca_file.as_deref())?;
        let grant = self.upload_grant(&row).await?;
        client.put(vec![grant], &[(row.hash, bytes)]).await?;
        let grant = self.download_grant(&row).await?;
        client.get(vec![grant], |_, _| Ok(())).await?;
        let path = self.path(&row);
        let listed = self.list().try_next().await;
        self.provider.store().delete(&path).await?;
        match listed? {
            Some(_) => Ok(()),
            None => Err(ObjectsError::Lost),
        }
    }

    /// Whether an upload grant fixes the length, so that the store refuses a larger object.
    pub(crate) fn fixes_length(&self) -> bool {
        self.provider.fixes_length()
    }

    /// A grant to upload this many bytes, once.
    pub(crate) async fn upload_grant(&self, to: &ObjectRow) -> Result<Grant, ObjectsError> {
        let signed = self.provider.sign_upload(&self.path(to), to.bytes).await?;
        Ok(grant(to, signed))
    }

    pub(crate) async fn download_grant(&self, of: &ObjectRow) -> Result<Grant, ObjectsError> {
        let signed = Signed {
            url: self.provider.sign_download(&self.path(of)).await?,
            headers: Vec::new(),
        };
        Ok(grant(of, signed))
    }

    /// Signs several grants, in the same order. Some kinds of credentials need a request to their
    /// provider for each.
    pub(crate) async fn upload_grants(
        &self,
        to: Vec<ObjectRow>,
    ) -> Result<Vec<Grant>, ObjectsError> {
        let sign = async |row: ObjectRow| self.upload_grant(&row).await;
        let signing = stream::iter(to).map(sign).buffered(PARALLEL);
        signing.try_collect().await
    }

    /// Like [`Self::upload_grants`].
    pub(crate) async fn download_grants(
        &self,
        of: Vec<ObjectRow>,
    ) -> Result<Vec<Grant>, ObjectsError> {
        let sign = async |row: ObjectRow| self.download_grant(&row).await;
        let signing = stream::iter(of).map(sign).buffered(PARALLEL);
        signing.try_collect().await
    }

    /// The size of each object; `None` if it does not exist.
    pub(crate) async fn sizes(
        &self,
        rows: Vec<ObjectRow>,
    ) -> Result<Vec<(ObjectRow, Option<u64>)>, ObjectsError> {
        let size = async |row: ObjectRow| match self.provider.store().head(&self.path(&row)).await {
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

    /// Whether the object exists and its bytes have the hash of its chunk.
    pub(crate) async fn is_sound(&self, row: &ObjectRow) -> Result<bool, ObjectsError> {
        let object = match self.provider.store().get(&self.path(row)).await {
            Err(object_store::Error::NotFound { .. }) => return Ok(false),
            object => object?,
        };
        // An object of another size is not read, because it may be huge.
        if object.meta.size != row.bytes {
            return Ok(false);
        }
        let bytes = object.bytes().await?;
        let hash = tokio::task::spawn_blocking(move || baton_chunks::hash(&bytes)).await;
        Ok(hash.is_ok_and(|hash| hash == row.hash))
    }

    /// Returns how many could not be deleted. The next listing of the bucket finds these.
    pub(crate) async fn delete(&self, rows: Vec<ObjectRow>) -> usize {
        let paths: Vec<Path> = rows.iter().map(|row| self.path(row)).collect();
        self.delete_paths(paths).await
    }

    pub(crate) async fn delete_paths(&self, paths: Vec<Path>) -> usize {
        let delete = async |path: Path| match self.provider.store().delete(&path).await {
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

    /// All objects below the prefix. They are listed in pages.
    pub(crate) fn list(&self) -> BoxStream<'_, Result<Listed, ObjectsError>> {
        let listed = |meta: ObjectMeta| Listed {
            row: named(&meta),
            modified_ms: meta.last_modified.timestamp_millis(),
            path: meta.location,
        };
        let all = self.provider.store().list(Some(&self.prefix));
        all.map_ok(listed).map_err(ObjectsError::from).boxed()
    }

    fn path(&self, row: &ObjectRow) -> Path {
        let hash = row.hash.to_string();
        let folder = self.prefix.clone().join(&hash[..2]);
        folder.join(format!("{hash}.{}", row.object))
    }
}

fn open_provider(
    address: &ObjectAddress,
    options: &ObjectOptions,
    ca_file: Option<PathBuf>,
) -> Result<Box<dyn Provider>, ObjectsError> {
    let (bucket, connector) = (address.bucket.as_str(), Connector { ca_file });
    let options = options.of_kind(address.kind);
    Ok(match address.kind {
        ObjectKind::S3 => Box::new(s3::open(bucket, options, connector)?),
        ObjectKind::Azure => Box::new(Azure::open(bucket, options, connector)?),
        ObjectKind::Google => Box::new(google::open(bucket, options, connector)?),
    })
}

fn grant(row: &ObjectRow, signed: Signed) -> Grant {
    Grant {
        chunk: row.hash,
        bytes: row.bytes,
        url: signed.url.into(),
        headers: signed.headers,
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
