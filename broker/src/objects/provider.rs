//! The differences between object stores: how the broker signs a grant, and what the store then enforces.
//!
//! Every store refuses a second upload to the same key, other methods, other keys and expired
//! grants. Not every store can fix the length of an upload ([`Provider::fixes_length`]).

use super::ObjectsError;
use baton_transport::tls;
use futures_util::future::BoxFuture;
use object_store::{
    ClientConfigKey, ClientOptions, ObjectStore, RetryConfig,
    client::{HttpClient, HttpConnector},
    path::Path,
};
use reqwest::Url;
use std::{path::PathBuf, time::Duration};

/// How long a grant is valid. This is shorter than the shortest term after which a sweep may delete its object.
pub(super) const GRANT_LIFETIME: Duration = Duration::from_secs(300);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time limit for one request of the broker to the store. Its caller retries.
const PATIENCE: Duration = Duration::from_secs(20);

/// A URL, and the headers that a request to it must have.
pub(super) struct Signed {
    pub(super) url: Url,
    pub(super) headers: Vec<(String, String)>,
}

pub(super) trait Provider: Send + Sync {
    /// The store, for the broker's own requests.
    fn store(&self) -> &dyn ObjectStore;

    /// Whether the store refuses an upload whose length differs from its grant's. If not, the
    /// broker looks for such uploads itself, and limits the number of pending uploads.
    fn fixes_length(&self) -> bool;

    /// Signs a request to upload this many bytes, once.
    fn sign_upload<'a>(
        &'a self,
        path: &'a Path,
        bytes: u64,
    ) -> BoxFuture<'a, Result<Signed, ObjectsError>>;

    fn sign_download<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, Result<Url, ObjectsError>>;
}

pub(super) fn retry() -> RetryConfig {
    RetryConfig {
        max_retries: 2,
        retry_timeout: PATIENCE,
        ..RetryConfig::default()
    }
}

/// Creates HTTP clients that check the store's certificate as everywhere else in Baton.
#[derive(Debug)]
pub(super) struct Connector {
    pub(super) ca_file: Option<PathBuf>,
}

impl Connector {
    pub(super) fn client(&self, allow_http: bool) -> Result<reqwest::Client, object_store::Error> {
        let failed = |source| object_store::Error::Generic {
            store: "connection",
            source,
        };
        let tls = tls::client(self.ca_file.as_deref()).map_err(|error| failed(error.into()))?;
        reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .https_only(!allow_http)
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(PATIENCE)
            .tls_backend_preconfigured(tls)
            .build()
            .map_err(|error| failed(error.into()))
    }
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allow_http = options.get_config_value(&ClientConfigKey::AllowHttp);
        let client = self.client(allow_http.as_deref() == Some("true"))?;
        Ok(HttpClient::new(client))
    }
}
