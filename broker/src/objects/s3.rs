//! Stores with Amazon's protocol. An upload grant fixes the length, and a header permits it to
//! create but not to overwrite.

mod presign;

pub(super) use presign::with_headers;

use super::{
    ObjectsError,
    provider::{Connector, GRANT_LIFETIME, Provider, Signed, retry},
};
use futures_util::future::BoxFuture;
use object_store::{
    ObjectStore,
    aws::{AmazonS3, AmazonS3Builder},
    path::Path,
    signer::{SignedUrlOptions, Signer},
};
use reqwest::{
    Method, Url,
    header::{CONTENT_LENGTH, HeaderValue, IF_NONE_MATCH},
};

pub(super) fn open<'a>(
    bucket: &str,
    options: impl Iterator<Item = (&'a str, &'a str)>,
    connector: Connector,
) -> Result<AmazonS3, ObjectsError> {
    let mut builder = AmazonS3Builder::new();
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

impl Provider for AmazonS3 {
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
            let only_new = SignedUrlOptions::new()
                .with_signed_header(IF_NONE_MATCH, HeaderValue::from_static("*"));
            let signing = self.signed_url_opts(Method::PUT, path, GRANT_LIFETIME, &only_new);
            let url = signing.await?;
            let credential = self.credentials().get_credential().await?;
            let length = bytes.to_string();
            let headers = [
                (CONTENT_LENGTH.as_str(), length.as_str()),
                (IF_NONE_MATCH.as_str(), "*"),
            ];
            let secret = &credential.secret_key;
            let url = with_headers(&url, &Method::PUT, secret, &headers);
            Ok(Signed {
                url: url.ok_or(ObjectsError::Sign)?,
                // The length is not listed here, because every request sends it anyway.
                headers: vec![(IF_NONE_MATCH.to_string(), "*".to_owned())],
            })
        })
    }

    fn sign_download<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, Result<Url, ObjectsError>> {
        Box::pin(async move { Ok(self.signed_url(Method::GET, path, GRANT_LIFETIME).await?) })
    }
}
