//! Google Cloud Storage. Signed headers fix the length, and permit a grant to create but not to overwrite.

use super::{
    ObjectsError,
    provider::{Connector, GRANT_LIFETIME, Provider, Signed, retry},
};
use futures_util::future::BoxFuture;
use object_store::{
    ObjectStore,
    gcp::{GoogleCloudStorage, GoogleCloudStorageBuilder},
    path::Path,
    signer::{SignedUrlOptions, Signer},
};
use reqwest::{
    Method, Url,
    header::{HeaderName, HeaderValue},
};

/// <https://cloud.google.com/storage/docs/xml-api/reference-headers#xgoogcontentlengthrange>
const LENGTH_RANGE: &str = "x-goog-content-length-range";
/// The generation of the existing object; 0 means that there must be none.
const IF_GENERATION: &str = "x-goog-if-generation-match";

pub(super) fn open<'a>(
    bucket: &str,
    options: impl Iterator<Item = (&'a str, &'a str)>,
    connector: Connector,
) -> Result<GoogleCloudStorage, ObjectsError> {
    let mut builder = GoogleCloudStorageBuilder::new();
    for (key, value) in options {
        // The builder knows its own variables. Others are for other programs.
        if let Ok(key) = key.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    builder
        .with_bucket_name(bucket)
        .with_http_connector(connector)
        .with_retry(retry())
        .build()
        .map_err(ObjectsError::Settings)
}

impl Provider for GoogleCloudStorage {
    fn store(&self) -> &dyn ObjectStore {
        self
    }

    fn fixes_length(&self) -> bool {
        true
    }

    fn sign_upload<'a>(
        &'a self,
        path: &'a Path,
        bytes: u64,
    ) -> BoxFuture<'a, Result<Signed, ObjectsError>> {
        Box::pin(async move {
            let headers = [
                (LENGTH_RANGE, format!("{bytes},{bytes}")),
                (IF_GENERATION, "0".to_owned()),
            ];
            let mut options = SignedUrlOptions::new();
            for (name, value) in &headers {
                let value = HeaderValue::from_str(value).map_err(|_| ObjectsError::Sign)?;
                options = options.with_signed_header(HeaderName::from_static(name), value);
            }
            let signing = self.signed_url_opts(Method::PUT, path, GRANT_LIFETIME, &options);
            Ok(Signed {
                url: signing.await?,
                headers: headers.map(|(name, value)| (name.to_owned(), value)).into(),
            })
        })
    }

    fn sign_download<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, Result<Url, ObjectsError>> {
        Box::pin(async move { Ok(self.signed_url(Method::GET, path, GRANT_LIFETIME).await?) })
    }
}
