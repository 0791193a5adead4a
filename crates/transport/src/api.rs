//! HTTP requests to the broker; its refusals become errors.

use crate::{Dial, LinkError, TokenProblem, dial::CONNECT_TIMEOUT, tls};
use baton_humanize::root_cause;
use baton_protocol::{address::BrokerAddress, api::Problem};
use bytes::Bytes;
use reqwest::{
    Client, Method, RequestBuilder, Response, StatusCode,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use serde::{Serialize, de::DeserializeOwned};
use std::time::Duration;

mod exchange;

pub(crate) use exchange::authorization;

/// The longest pause in the broker's answer.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// The longest pause that is observed, even if the broker asks for more.
const LONGEST_RETRY: Duration = Duration::from_secs(60);

/// How much of a refusal's text is kept.
const LONGEST_TEXT: usize = 1000;

#[derive(Debug, Clone)]
pub struct Api {
    client: Client,
    dial: Dial,
}

impl Api {
    pub fn new(dial: &Dial) -> Result<Self, LinkError> {
        let mut builder = Client::builder()
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .tcp_nodelay(true)
            .tls_backend_preconfigured(dial.accepted()?);
        if let BrokerAddress::Unix(path) = &dial.address {
            builder = builder.unix_socket(path.as_path());
        }
        let dial = dial.clone();
        match builder.build() {
            Ok(client) => Ok(Self { client, dial }),
            Err(source) => Err(unreachable(&dial, source)),
        }
    }

    /// Returns the body of a page, for example `/health/live`.
    pub async fn get(&self, path: &str) -> Result<Bytes, LinkError> {
        let response = self.send(self.request(Method::GET, path), path).await?;
        response.bytes().await.map_err(|error| self.broke(error))
    }

    /// Returns the answer to a query below `/v1`.
    pub async fn ask<Answer: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
    ) -> Result<Answer, LinkError> {
        let mut request = self.request(Method::GET, path);
        if !query.is_empty() {
            request = request.query(query);
        }
        self.answer(request, path).await
    }

    /// Carries out an action below `/v1` and returns its result.
    pub async fn act<Body: Serialize, Answer: DeserializeOwned>(
        &self,
        path: &str,
        body: &Body,
    ) -> Result<Answer, LinkError> {
        let body = serde_json::to_vec(body)
            .map_err(|_| LinkError::Answer("the request cannot be encoded as JSON"))?;
        let request = self
            .request(Method::POST, path)
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        self.answer(request, path).await
    }

    pub(crate) async fn answer<Answer: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        path: &str,
    ) -> Result<Answer, LinkError> {
        let response = self.send(request, path).await?;
        let body = response.bytes().await.map_err(|error| self.broke(error))?;
        serde_json::from_slice(&body).map_err(|_| LinkError::Answer("it is not the expected JSON"))
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, self.dial.url(path))
    }

    /// Sends a request with the caller's token. The broker's refusals become errors.
    pub(crate) async fn send(
        &self,
        request: RequestBuilder,
        path: &str,
    ) -> Result<Response, LinkError> {
        let request = match Box::pin(authorization(&self.dial)).await? {
            Some(authorization) => request.header(AUTHORIZATION, authorization),
            None => request,
        };
        let response = request.send().await.map_err(|error| self.broke(error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let address = self.dial.address.clone();
        let is_problem = response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind == "application/problem+json");
        let after = response.headers().get(RETRY_AFTER).cloned();
        let text = response.text().await.unwrap_or_default();
        if status == StatusCode::TOO_MANY_REQUESTS
            && let Some(error) = too_much(text.as_bytes(), after.as_ref())
        {
            return Err(error);
        }
        let problem = is_problem.then(|| serde_json::from_str::<Problem>(&text).ok());
        let problem = problem.flatten();
        let of_token = TokenProblem::of(self.dial.token.as_ref(), problem.as_ref());
        let text = match problem {
            Some(problem) if problem.kind == Problem::UNKNOWN_CHUNK => {
                return Err(LinkError::UnknownChunk);
            }
            Some(problem) if problem.kind == Problem::FORBIDDEN || is_refusal(status) => {
                return Err(LinkError::Refused { problem });
            }
            Some(problem) => problem.detail,
            None => text.trim().chars().take(LONGEST_TEXT).collect(),
        };
        Err(match status {
            StatusCode::UNAUTHORIZED if self.dial.was_exchanged() => {
                LinkError::Forgotten { address }
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => LinkError::Unauthorized {
                address,
                problem: of_token,
            },
            StatusCode::INSUFFICIENT_STORAGE => LinkError::StoreFull { text },
            StatusCode::NOT_FOUND => LinkError::NotFound {
                address,
                path: path.to_owned(),
            },
            _ => LinkError::Status {
                status: status.as_u16(),
                text,
            },
        })
    }

    pub(crate) fn broke(&self, error: reqwest::Error) -> LinkError {
        if error.is_timeout() {
            return self.dial.no_answer();
        }
        unreachable(&self.dial, error)
    }
}

fn is_refusal(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND | StatusCode::CONFLICT
    )
}

/// The refusal in a body; `None` if the body is not the broker's.
pub(crate) fn refused(body: &[u8]) -> Option<LinkError> {
    let problem = serde_json::from_slice(body).ok()?;
    Some(LinkError::Refused { problem })
}

/// The reason why the broker cannot serve at the moment; `None` if the body gives no such reason.
pub(crate) fn unable(body: &[u8]) -> Option<LinkError> {
    let problem: Problem = serde_json::from_slice(body).ok()?;
    (problem.kind == Problem::NO_DESCRIPTORS).then_some(LinkError::Unable { problem })
}

/// The broker's limit on requests; `None` if the body is not the broker's.
pub(crate) fn too_much(body: &[u8], after: Option<&HeaderValue>) -> Option<LinkError> {
    let problem = serde_json::from_slice(body).ok()?;
    let seconds = after.and_then(|seconds| seconds.to_str().ok()?.parse().ok());
    let after = Duration::from_secs(seconds.unwrap_or(1)).min(LONGEST_RETRY);
    Some(LinkError::TooMuch { problem, after })
}

fn unreachable(dial: &Dial, error: reqwest::Error) -> LinkError {
    let address = dial.address.clone();
    match tls::problem(&error) {
        Some(problem) => LinkError::Certificate { address, problem },
        None => LinkError::Unreachable {
            address,
            source: cause_of(error).into(),
        },
    }
}

/// The operating system's error. The layers above it add addresses and their own names, which do
/// not help a student.
pub(crate) fn cause_of(error: reqwest::Error) -> String {
    root_cause(&error.without_url()).to_string()
}
