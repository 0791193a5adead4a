//! Where chunks are stored: the setting and its addresses.

use std::{fmt, str::FromStr};

/// Where chunks are stored.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ChunkPlace {
    /// In the broker's own folder; their bytes go through the broker.
    #[default]
    Folder,
    /// In a bucket that notebooks and workers access directly.
    Objects(ObjectAddress),
}

/// The protocol of an object store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectKind {
    /// Amazon's, which many other stores also support.
    S3,
    /// Azure Blob Storage.
    Azure,
    /// Google Cloud Storage.
    Google,
}

impl ObjectKind {
    const ALL: [Self; 3] = [Self::S3, Self::Azure, Self::Google];

    /// The scheme of its addresses.
    fn scheme(self) -> &'static str {
        match self {
            Self::S3 => "s3",
            Self::Azure => "az",
            Self::Google => "gs",
        }
    }

    /// The prefix of its environment variables.
    fn variables(self) -> &'static str {
        match self {
            Self::S3 => "AWS_",
            Self::Azure => "AZURE_",
            Self::Google => "GOOGLE_",
        }
    }
}

/// `s3://BUCKET/PREFIX`, `az://CONTAINER/PREFIX` or `gs://BUCKET/PREFIX`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectAddress {
    pub(crate) kind: ObjectKind,
    /// Azure calls it a container.
    pub(crate) bucket: String,
    pub(crate) prefix: String,
}

impl ObjectAddress {
    #[must_use]
    pub fn kind(&self) -> ObjectKind {
        self.kind
    }
}

/// Endpoint and credentials, which are not in the address. They have the names of the provider's
/// own environment variables.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ObjectOptions(Vec<(String, String)>);

impl ObjectOptions {
    /// Selects the variables that the providers' own programs also use.
    pub fn of(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let is_meant = |(name, _): &(String, String)| {
            let mut kinds = ObjectKind::ALL.into_iter();
            kinds.any(|kind| name.starts_with(kind.variables()))
        };
        Self(variables.into_iter().filter(is_meant).collect())
    }

    pub(crate) fn of_kind(&self, kind: ObjectKind) -> impl Iterator<Item = (&str, &str)> {
        let all = self.0.iter();
        all.map(|(name, value)| (name.as_str(), value.as_str()))
            .filter(move |(name, value)| name.starts_with(kind.variables()) && !value.is_empty())
    }
}

/// Hides the values, which are secret.
impl fmt::Debug for ObjectOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ObjectOptions(hidden)")
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} is neither `folder` nor the address of a bucket, such as s3://BUCKET/PREFIX, az://CONTAINER/PREFIX or gs://BUCKET/PREFIX"
)]
pub struct ChunkPlaceError(String);

impl FromStr for ChunkPlace {
    type Err = ChunkPlaceError;

    fn from_str(text: &str) -> Result<Self, ChunkPlaceError> {
        if text == "folder" {
            return Ok(Self::Folder);
        }
        let wrong = || ChunkPlaceError(text.to_owned());
        let (scheme, address) = text.split_once("://").ok_or_else(wrong)?;
        let mut kinds = ObjectKind::ALL.into_iter();
        let kind = kinds.find(|kind| kind.scheme() == scheme);
        let kind = kind.ok_or_else(wrong)?;
        let (bucket, prefix) = address.split_once('/').unwrap_or((address, ""));
        let is_plain = |part: &str, more: &[u8]| {
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || more.contains(&byte);
            part.bytes().all(is_plain)
        };
        let prefix = prefix.trim_end_matches('/');
        let are_parts = prefix.is_empty()
            || prefix
                .split('/')
                .all(|part| !["", ".", ".."].contains(&part));
        let is_address = !bucket.is_empty()
            && is_plain(bucket, b".-_")
            && is_plain(prefix, b".-_/")
            && are_parts;
        if !is_address {
            return Err(wrong());
        }
        Ok(Self::Objects(ObjectAddress {
            kind,
            bucket: bucket.to_owned(),
            prefix: prefix.to_owned(),
        }))
    }
}

impl fmt::Display for ChunkPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder => formatter.write_str("folder"),
            Self::Objects(address) => address.fmt(formatter),
        }
    }
}

impl fmt::Display for ObjectAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}://{}", self.kind.scheme(), self.bucket)?;
        match self.prefix.is_empty() {
            true => Ok(()),
            false => write!(formatter, "/{}", self.prefix),
        }
    }
}
