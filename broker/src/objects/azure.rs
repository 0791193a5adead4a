//! Azure Blob Storage. A grant permits creating a blob but not overwriting it, and does not limit its length.

mod sas;
#[cfg(test)]
mod tests;

use super::{
    ObjectsError,
    provider::{Connector, GRANT_LIFETIME, Provider, Signed, retry},
};
use base64::{Engine, prelude::BASE64_STANDARD};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use object_store::{
    ClientConfigKey, ObjectStore,
    azure::{AzureConfigKey, AzureCredential, MicrosoftAzure, MicrosoftAzureBuilder},
    path::Path,
};
use reqwest::Url;
use sas::{DelegatedKey, Permission, Scope, SigningKey};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// How much the clocks of broker and store may differ.
const CLOCKS: Duration = Duration::from_secs(300);
/// For how long a key is requested, and for how long the broker uses it.
const KEY_LIFETIME: Duration = Duration::from_secs(24 * 3600);
const KEY_USE: Duration = Duration::from_secs(4 * 3600);
/// The longest error text, in characters.
const LONGEST_ANSWER: usize = 400;

pub(super) struct Azure {
    store: MicrosoftAzure,
    /// For requests that the crate does not offer.
    client: reqwest::Client,
    service: Url,
    account: String,
    container: String,
    account_key: Option<Arc<SigningKey>>,
    /// The key of an identity, and when to request a new one.
    delegated: Mutex<Option<(Arc<SigningKey>, Timestamp)>>,
}

impl Azure {
    pub(super) fn open<'a>(
        container: &str,
        options: impl Iterator<Item = (&'a str, &'a str)>,
        connector: Connector,
    ) -> Result<Self, ObjectsError> {
        let mut builder = MicrosoftAzureBuilder::new();
        for (key, value) in options {
            match key.to_ascii_lowercase().parse() {
                // The emulator has other addresses.
                Ok(AzureConfigKey::UseEmulator) => return Err(ObjectsError::Emulator),
                Ok(key) => builder = builder.with_config(key, value),
                // The builder knows its own variables. Others are for other programs.
                Err(_) => {}
            }
        }
        let set = |key| builder.get_config_value(&key);
        let account = set(AzureConfigKey::AccountName).ok_or(ObjectsError::NoAccount)?;
        let service = set(AzureConfigKey::Endpoint)
            .unwrap_or_else(|| format!("https://{account}.blob.core.windows.net"));
        let service = service.parse().map_err(|_| ObjectsError::Endpoint)?;
        let account_key = set(AzureConfigKey::AccessKey)
            .map(|key| BASE64_STANDARD.decode(key).map(SigningKey::Account))
            .transpose()
            .map_err(|_| ObjectsError::AccountKey)?
            .map(Arc::new);
        let allow_http = set(AzureConfigKey::Client(ClientConfigKey::AllowHttp));
        let client = connector
            .client(allow_http.as_deref() == Some("true"))
            .map_err(ObjectsError::Settings)?;
        let store = builder
            .with_container_name(container)
            .with_http_connector(connector)
            .with_retry(retry())
            .build()
            .map_err(ObjectsError::Settings)?;
        Ok(Self {
            store,
            client,
            service,
            account,
            container: container.to_owned(),
            account_key,
            delegated: Mutex::default(),
        })
    }

    async fn sign(&self, path: &Path, permission: Permission) -> Result<Url, ObjectsError> {
        let key = self.key().await?;
        let mut url = self.service.clone();
        url.path_segments_mut()
            .map_err(|()| ObjectsError::Endpoint)?
            .pop_if_empty()
            .push(&self.container)
            .extend(path.parts());
        let now = Timestamp::now();
        let scope = Scope {
            account: &self.account,
            container: &self.container,
            blob: path.as_ref(),
            permission,
            protocol: match self.service.scheme() {
                "https" => "https",
                _ => "https,http",
            },
            start: &text(now - CLOCKS),
            expiry: &text(now + GRANT_LIFETIME),
        };
        Ok(sas::sign(url, &key, &scope))
    }

    async fn key(&self) -> Result<Arc<SigningKey>, ObjectsError> {
        match &*self.store.credentials().get_credential().await? {
            AzureCredential::AccessKey(_) => self.account_key.clone().ok_or(ObjectsError::Sign),
            AzureCredential::BearerToken(token) => self.delegated_key(token).await,
            // A given signature cannot sign further ones.
            AzureCredential::SASToken(_) => Err(ObjectsError::Sign),
        }
    }

    async fn delegated_key(&self, token: &str) -> Result<Arc<SigningKey>, ObjectsError> {
        let now = Timestamp::now();
        {
            let delegated = self.delegated.lock();
            let delegated = delegated.unwrap_or_else(PoisonError::into_inner);
            if let Some((key, until)) = &*delegated
                && now < *until
            {
                return Ok(Arc::clone(key));
            }
        }
        let key = Arc::new(SigningKey::Delegated(self.ask_for_key(token, now).await?));
        let kept = Some((Arc::clone(&key), now + KEY_USE));
        *self
            .delegated
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = kept;
        Ok(key)
    }

    async fn ask_for_key(&self, token: &str, now: Timestamp) -> Result<DelegatedKey, ObjectsError> {
        let (start, expiry) = (text(now - CLOCKS), text(now + KEY_LIFETIME));
        let body = format!(
            "<?xml version=\"1.0\" encoding=\"utf-8\"?><KeyInfo><Start>{start}</Start><Expiry>{expiry}</Expiry></KeyInfo>"
        );
        let request = self
            .client
            .post(self.service.clone())
            .query(&[("restype", "service"), ("comp", "userdelegationkey")])
            .header("x-ms-version", sas::VERSION)
            .bearer_auth(token)
            .body(body);
        let failed = |error: reqwest::Error| ObjectsError::Key(error.without_url().to_string());
        let answer = request.send().await.map_err(failed)?;
        let status = answer.status();
        let answer = answer.text().await.map_err(failed)?;
        if !status.is_success() {
            let answer: String = answer.chars().take(LONGEST_ANSWER).collect();
            return Err(ObjectsError::Key(format!("{status}: {answer}")));
        }
        DelegatedKey::read(&answer).ok_or_else(|| ObjectsError::Key("it has no key".to_owned()))
    }
}

impl Provider for Azure {
    fn store(&self) -> &dyn ObjectStore {
        &self.store
    }

    fn fixes_length(&self) -> bool {
        false
    }

    fn sign_upload<'a>(
        &'a self,
        path: &'a Path,
        _bytes: u64,
    ) -> BoxFuture<'a, Result<Signed, ObjectsError>> {
        Box::pin(async move {
            Ok(Signed {
                url: self.sign(path, Permission::Create).await?,
                headers: vec![
                    ("x-ms-blob-type".to_owned(), "BlockBlob".to_owned()),
                    // With this header, the response distinguishes an existing blob from a missing permission.
                    ("if-none-match".to_owned(), "*".to_owned()),
                ],
            })
        })
    }

    fn sign_download<'a>(&'a self, path: &'a Path) -> BoxFuture<'a, Result<Url, ObjectsError>> {
        Box::pin(self.sign(path, Permission::Read))
    }
}

/// The format of times in the service.
fn text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
