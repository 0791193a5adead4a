//! Identifies people of a JupyterHub: asks the Hub to whom a token belongs, and caches the answer
//! for a short time.
//!
//! In: tokens from notebooks and browsers, and codes from the Hub's sign-in. Out: an [`Identity`],
//! no identity, or an error if the Hub does not answer.
//!
//! **Invariant:** a token is stored only as its hash and sent only to the Hub. The token of a
//! notebook server is accepted at only one place, which exchanges it for a sign-in.

mod person;
mod strangers;

use crate::people::hash_of;
use baton_broker_queue::Identity;
use baton_transport::tls::{self, TlsProblem};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use person::{HubPerson, Model, hub_person};
use reqwest::{Client, StatusCode, header};
use std::{
    collections::HashMap,
    net::IpAddr,
    path::Path,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use strangers::Strangers;
use tokio::{sync::Semaphore, time::Instant};

/// How long an old answer remains valid while the Hub is silent, for example because it restarts.
const SILENCE: Duration = Duration::from_secs(15 * 60);
/// The Hub answers from its database, so a longer silence means that it is down.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// Limits the load on the Hub when a whole class connects at once.
const QUESTIONS_AT_ONCE: usize = 8;
const MOST_KNOWN: usize = 10_000;
const LONGEST_TOKEN: usize = 512;

/// How to reach the Hub, and what its groups mean. Not `Debug`, because it holds the token.
#[derive(Clone)]
pub struct HubConfig {
    /// The Hub's API as the broker reaches it, such as `http://127.0.0.1:8081/hub/api`.
    pub api_url: String,
    /// The API token of the broker's service in the Hub.
    pub token: String,
    /// The name of that service.
    pub service: String,
    /// The Hub's API as browsers reach it. `None`: on the host of the pages, with the path of `api_url`.
    pub public_api_url: Option<String>,
    /// Where the Hub redirects people after the sign-in. `None`: `oauth_callback` below the prefix
    /// of the pages.
    pub callback_url: Option<String>,
    /// The names of the groups of a course's students and of its staff, with `{course}` for the course.
    pub student_groups: String,
    pub staff_groups: String,
    /// How long an answer of the Hub is cached.
    pub remembered: Duration,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum HubError {
    #[error("There is no safe connection to the JupyterHub, so no one can be identified: {0}")]
    Unsafe(TlsProblem),
    #[error("The JupyterHub does not answer, so no one can be identified")]
    Silent(#[source] reqwest::Error),
    #[error("The JupyterHub answered with status {0}, so no one can be identified")]
    Status(StatusCode),
    #[error("The JupyterHub's response cannot be read")]
    Answer(#[from] serde_json::Error),
}

/// Not `Debug`, because it holds the token.
pub(crate) struct Hub {
    config: HubConfig,
    client: Client,
    /// Limits queries about tokens that were valid when they were last looked up.
    questions: Semaphore,
    /// Limits queries about all other tokens, so that wrong tokens do not delay people who were here before.
    strangers: Strangers,
    /// The last answers of the Hub, by the hash of the token. `None` if the token is invalid.
    known: Mutex<HashMap<String, (Instant, Option<HubPerson>)>>,
}

impl Hub {
    pub(crate) fn new(mut config: HubConfig, ca_file: Option<&Path>) -> anyhow::Result<Self> {
        config
            .api_url
            .truncate(config.api_url.trim_end_matches('/').len());
        Ok(Self {
            config,
            // A proxy from the environment would see the tokens.
            client: Client::builder()
                .no_proxy()
                .tls_backend_preconfigured(tls::client(ca_file)?)
                .timeout(ANSWER_WITHIN)
                .redirect(reqwest::redirect::Policy::none())
                .build()?,
            questions: Semaphore::new(QUESTIONS_AT_ONCE),
            strangers: Strangers::new(),
            known: Mutex::default(),
        })
    }

    /// How long an answer of the Hub is cached.
    pub(crate) fn remembered(&self) -> Duration {
        self.config.remembered
    }

    /// The person of a token that the Hub made for this service. `None` if it is invalid, or also
    /// opens a notebook server.
    pub(crate) async fn of_token(
        &self,
        token: &str,
        from: Option<IpAddr>,
    ) -> Result<Option<Identity>, HubError> {
        let person = self.person(token, from).await?;
        let person = person.filter(|person| !person.has_server);
        Ok(person.map(|person| person.identity))
    }

    /// The person whose notebook server has this token.
    pub(crate) async fn of_server(
        &self,
        token: &str,
        from: Option<IpAddr>,
    ) -> Result<Option<Identity>, HubError> {
        let person = self.person(token, from).await?;
        let person = person.filter(|person| person.has_server);
        Ok(person.map(|person| person.identity))
    }

    async fn person(
        &self,
        token: &str,
        from: Option<IpAddr>,
    ) -> Result<Option<HubPerson>, HubError> {
        let plain = token.bytes().all(|letter| letter.is_ascii_graphic());
        if token.is_empty() || token.len() > LONGEST_TOKEN || !plain {
            return Ok(None);
        }
        let hash = hash_of(token);
        if let Some(known) = self.known(&hash, self.config.remembered) {
            return Ok(known);
        }
        // The semaphores are never closed.
        let _turn = match self.known(&hash, SILENCE) {
            Some(Some(_)) => (self.questions.acquire().await.ok(), None),
            _ => (None, Some(self.strangers.permit(from).await)),
        };
        if let Some(known) = self.known(&hash, self.config.remembered) {
            return Ok(known);
        }
        match self.ask(token).await {
            Ok(person) => {
                self.remember(hash, person.clone());
                Ok(person)
            }
            Err(error) => match self.known(&hash, SILENCE) {
                Some(Some(person)) => Ok(Some(person)),
                _ => Err(error),
            },
        }
    }

    pub(crate) fn forget(&self, token: &str) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(&hash_of(token));
    }

    fn known(&self, hash: &str, not_older: Duration) -> Option<Option<HubPerson>> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, person) = known.get(hash)?;
        (at.elapsed() < not_older).then(|| person.clone())
    }

    fn remember(&self, hash: String, person: Option<HubPerson>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_KNOWN {
            known.retain(|_, (at, person)| person.is_some() && at.elapsed() < SILENCE);
        }
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(hash, (Instant::now(), person));
    }

    async fn ask(&self, token: &str) -> Result<Option<HubPerson>, HubError> {
        let request = self
            .client
            .get(format!("{}/user", self.config.api_url))
            .header(header::AUTHORIZATION, format!("token {token}"));
        let response = request.send().await.map_err(failed)?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Ok(None),
            status => return Err(HubError::Status(status)),
        }
        let body = response.bytes().await.map_err(failed)?;
        let model: Model = serde_json::from_slice(&body)?;
        Ok(hub_person(model, &self.config))
    }

    /// Where a browser signs in with the Hub.
    pub(crate) fn sign_in_url(&self, state: &str, prefix: &str) -> String {
        let api = self.config.public_api_url.as_deref();
        let api = api.unwrap_or_else(|| path_of(&self.config.api_url));
        let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
        format!(
            "{api}/oauth2/authorize?response_type=code&client_id={}&redirect_uri={}&state={}",
            encoded(&self.client_id()),
            encoded(&self.callback_url(prefix)),
            encoded(state),
        )
    }

    /// Exchanges a code from the Hub's redirect for a token; `None` if the code is wrong.
    pub(crate) async fn token_for(
        &self,
        code: &str,
        prefix: &str,
    ) -> Result<Option<String>, HubError> {
        #[derive(serde::Deserialize)]
        struct Granted {
            access_token: String,
        }
        let url = format!("{}/oauth2/token", self.config.api_url);
        let request = self.client.post(url).form(&[
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", &self.callback_url(prefix)),
            ("client_id", &self.client_id()),
            ("client_secret", &self.config.token),
        ]);
        let response = request.send().await.map_err(failed)?;
        match response.status() {
            StatusCode::OK => {}
            status if status.is_client_error() => return Ok(None),
            status => return Err(HubError::Status(status)),
        }
        let body = response.bytes().await.map_err(failed)?;
        let granted: Granted = serde_json::from_slice(&body)?;
        Ok(Some(granted.access_token))
    }

    fn client_id(&self) -> String {
        format!("service-{}", self.config.service)
    }

    fn callback_url(&self, prefix: &str) -> String {
        let set = self.config.callback_url.clone();
        set.unwrap_or_else(|| format!("{prefix}/oauth_callback"))
    }
}

fn failed(error: reqwest::Error) -> HubError {
    match tls::problem(&error) {
        Some(problem) => HubError::Unsafe(problem),
        None => HubError::Silent(error),
    }
}

fn path_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/').map_or("", |start| &rest[start..])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use axum::{Json, Router, http::HeaderMap, routing::get};
    use std::{future::pending, sync::Arc};

    /// A Hub that knows one token and never answers about any other.
    async fn hub() -> Arc<Hub> {
        let user = async |headers: HeaderMap| {
            if headers[header::AUTHORIZATION] != "token of-ada" {
                return pending().await;
            }
            let scopes = ["access:services!service=baton"];
            let ada = serde_json::json!({ "kind": "user", "name": "ada", "scopes": scopes });
            Json(ada)
        };
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/user", get(user));
        tokio::spawn(async { axum::serve(listener, router).await });
        let hub = Hub::new(
            HubConfig {
                api_url: format!("http://{address}"),
                token: "secret".to_owned(),
                service: "baton".to_owned(),
                public_api_url: None,
                callback_url: None,
                student_groups: "{course}".to_owned(),
                staff_groups: "{course}-staff".to_owned(),
                remembered: Duration::ZERO,
            },
            None,
        );
        Arc::new(hub.unwrap())
    }

    #[tokio::test]
    async fn wrong_tokens_keep_nobody_out_who_has_been_here() {
        let hub = hub().await;
        assert!(hub.of_token("of-ada", None).await.unwrap().is_some());
        for number in 0..2 * QUESTIONS_AT_ONCE {
            let hub = Arc::clone(&hub);
            tokio::spawn(
                async move { hub.of_token(&format!("wrong-{number}"), None).await.is_ok() },
            );
        }
        while hub.strangers.has_room(None) {
            tokio::task::yield_now().await;
        }
        let again = tokio::time::timeout(ANSWER_WITHIN / 2, hub.of_token("of-ada", None));
        assert!(again.await.unwrap().unwrap().is_some());
    }

    #[test]
    fn the_hub_is_on_the_host_of_the_pages() {
        assert_eq!(path_of("http://127.0.0.1:8081/hub/api"), "/hub/api");
        assert_eq!(path_of("http://hub:8081/base/hub/api"), "/base/hub/api");
        assert_eq!(path_of("http://hub"), "");
    }
}
