//! Where the broker keeps chunks.

use std::{fmt, str::FromStr};

/// Where the broker keeps chunks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ChunkPlace {
    /// In a folder of its own, and the bytes go through it.
    #[default]
    Folder,
    /// In a bucket that notebooks and workers reach by themselves.
    Objects(ObjectAddress),
}

/// `s3://BUCKET/PREFIX`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectAddress {
    pub(crate) bucket: String,
    pub(crate) prefix: String,
}

/// What the address does not say: region, endpoint and credentials, by the names of AWS's environment variables.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ObjectOptions(Vec<(String, String)>);

impl ObjectOptions {
    /// Those of the variables that are meant for AWS's own programs, too.
    pub fn of(variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let is_meant = |(name, _): &(String, String)| name.starts_with("AWS_");
        Self(variables.into_iter().filter(is_meant).collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

/// They are secret.
impl fmt::Debug for ObjectOptions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ObjectOptions(hidden)")
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0:?} is neither `folder` nor the address of a bucket, such as s3://BUCKET/PREFIX")]
pub struct ChunkPlaceError(String);

impl FromStr for ChunkPlace {
    type Err = ChunkPlaceError;

    fn from_str(text: &str) -> Result<Self, ChunkPlaceError> {
        if text == "folder" {
            return Ok(Self::Folder);
        }
        let wrong = || ChunkPlaceError(text.to_owned());
        let address = text.strip_prefix("s3://").ok_or_else(wrong)?;
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
        write!(formatter, "s3://{}", self.bucket)?;
        match self.prefix.is_empty() {
            true => Ok(()),
            false => write!(formatter, "/{}", self.prefix),
        }
    }
}
