//! Why a request for chunks fails, in the format of RFC 9457.

use crate::{
    in_flight::TooMuch,
    objects::ObjectsError,
    quota::Exceeded,
    web::{
        ApiError,
        problem::{answer, problem},
    },
};
use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use baton_broker_queue::Account;
use baton_broker_store::StoreError;
use baton_chunks::StateError;
use baton_protocol::{CHUNK_BYTES, ChunkHash, NotebookId, Refusal, api::Problem};
use baton_transport::tls::TlsProblem;
use std::iter;

#[derive(Debug, thiserror::Error)]
pub(super) enum ChunkError {
    #[error("The list of chunks cannot be read")]
    List(#[from] baton_protocol::DecodeError),
    #[error("Chunk {hash} is missing here")]
    Unknown { hash: ChunkHash },
    #[error("A chunk has at most {CHUNK_BYTES} bytes, not {bytes}")]
    TooLarge { bytes: usize },
    #[error("A request has at most {most} chunks")]
    TooMany { most: usize },
    #[error("A request has at most {most} names of chunks")]
    TooManyNames { most: usize },
    #[error("This broker keeps state in an object store, which this version of Baton cannot use")]
    InObjects,
    #[error("This broker keeps state in its own folder")]
    InFolder,
    #[error("The object store has no room for more chunks: its limit is {limit_bytes} bytes")]
    StoreLimit { limit_bytes: u64 },
    #[error("Chunk {hash} was announced with {bytes} bytes, but it has another length")]
    OtherLength { hash: ChunkHash, bytes: u64 },
    #[error(
        "One person may have at most {most} uploads under way. An upload that was not completed counts for ten minutes"
    )]
    TooManyUploads { most: u64 },
    #[error("The broker cannot use its object store at the moment")]
    Objects(#[from] ObjectsError),
    #[error("The request ended inside a chunk")]
    Cut,
    #[error("Missing `owner` or `notebook` parameter")]
    Nobody,
    #[error(transparent)]
    NotInCourse(#[from] Refusal),
    #[error("Only a worker may use the `notebook` parameter")]
    NotAWorker,
    #[error("This worker has no job of notebook {notebook}")]
    NoJob { notebook: NotebookId },
    #[error(
        "Quota exceeded: {owner} uses {} of {}. Unused data is deleted within minutes",
        baton_humanize::bytes(*held_bytes), baton_humanize::bytes(*limit_bytes)
    )]
    Quota {
        owner: String,
        held_bytes: u64,
        limit_bytes: u64,
    },
    #[error("The request broke off")]
    Request(#[source] axum::Error),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("The broker is shutting down")]
    Ending,
    #[error("Your notebooks send more requests for chunks than this broker allows")]
    TooOften,
    #[error(transparent)]
    Refused(#[from] ApiError),
    /// A chunk server passes this on from its broker.
    #[error("{}", problem.detail)]
    OfBroker {
        status: StatusCode,
        problem: Problem,
    },
    #[error("There is no safe connection to the broker at {address}: {problem}")]
    Unsafe {
        address: String,
        problem: TlsProblem,
    },
    #[error("The broker at {address} cannot be reached")]
    NoBroker {
        address: String,
        #[source]
        source: reqwest::Error,
    },
}

impl ChunkError {
    pub(super) fn of_quota(account: &Account, exceeded: Exceeded) -> Self {
        Self::Quota {
            owner: account.owner.clone(),
            held_bytes: exceeded.held_bytes,
            limit_bytes: exceeded.limit_bytes,
        }
    }

    /// The body of a request could not be read.
    pub(super) fn of_request(error: axum::Error) -> Self {
        let first: &dyn std::error::Error = &error;
        let mut causes = iter::successors(Some(first), |error| error.source());
        match causes.any(|error| error.is::<TooMuch>()) {
            true => Self::Refused(ApiError::TooMuchAtOnce),
            false => Self::Request(error),
        }
    }

    /// The status, the kind for programs, and what the caller can do. Clients repeat requests that get 429 or 503.
    fn described(&self) -> (StatusCode, &str, Option<&str>) {
        match self {
            Self::List(_) | Self::Cut | Self::Request(_) => {
                (StatusCode::BAD_REQUEST, "urn:baton:body", None)
            }
            Self::TooLarge { .. } | Self::TooMany { .. } | Self::TooManyNames { .. } => {
                (StatusCode::BAD_REQUEST, "urn:baton:too-large", None)
            }
            Self::OtherLength { .. } => (StatusCode::BAD_REQUEST, "urn:baton:other-length", None),
            Self::Nobody => (StatusCode::BAD_REQUEST, "urn:baton:query", None),
            Self::Unknown { .. } => (StatusCode::NOT_FOUND, Problem::UNKNOWN_CHUNK, None),
            Self::NotInCourse(_) => (StatusCode::FORBIDDEN, Problem::FORBIDDEN, None),
            Self::NotAWorker => (StatusCode::FORBIDDEN, "urn:baton:not-a-worker", None),
            Self::NoJob { .. } => (StatusCode::CONFLICT, "urn:baton:no-job", None),
            Self::InObjects => (
                StatusCode::CONFLICT,
                Problem::IN_OBJECT_STORE,
                Some("install the broker's version of Baton"),
            ),
            Self::InFolder => (StatusCode::CONFLICT, "urn:baton:in-folder", None),
            Self::Quota { .. } => (StatusCode::INSUFFICIENT_STORAGE, "urn:baton:quota", None),
            Self::StoreLimit { .. } | Self::State(StateError::Full { .. }) => {
                (StatusCode::INSUFFICIENT_STORAGE, "urn:baton:full", None)
            }
            Self::Store(error) if error.shortage().is_some() => {
                (StatusCode::INSUFFICIENT_STORAGE, "urn:baton:full", None)
            }
            Self::Store(error) if error.may_pass() => {
                (StatusCode::SERVICE_UNAVAILABLE, "urn:baton:database", None)
            }
            Self::Store(_) => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "urn:baton:database",
                None,
            ),
            Self::State(_) => (StatusCode::INTERNAL_SERVER_ERROR, "urn:baton:chunks", None),
            Self::Objects(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "urn:baton:object-store",
                None,
            ),
            Self::Unsafe { .. } | Self::NoBroker { .. } => {
                (StatusCode::SERVICE_UNAVAILABLE, "urn:baton:no-broker", None)
            }
            Self::TooManyUploads { .. } => (
                StatusCode::SERVICE_UNAVAILABLE,
                "urn:baton:too-many-uploads",
                None,
            ),
            Self::Ending => (StatusCode::SERVICE_UNAVAILABLE, "urn:baton:ending", None),
            Self::TooOften => described(&ApiError::TooOften),
            Self::Refused(refused) => described(refused),
            Self::OfBroker { status, problem } => (*status, &problem.kind, problem.hint.as_deref()),
        }
    }

    /// For the operator.
    fn log(&self) {
        match self {
            Self::Objects(error) => tracing::error!("{error}"),
            Self::Unsafe { problem, .. } => tracing::error!("{self}; hint: {}", problem.hint()),
            Self::Store(error) if error.may_pass() && error.shortage().is_none() => {}
            Self::StoreLimit { .. } | Self::State(_) | Self::Store(_) => {
                tracing::error!("A request for chunks failed: {self}");
            }
            _ => {}
        }
    }
}

impl IntoResponse for ChunkError {
    fn into_response(self) -> Response {
        self.log();
        let (status, kind, hint) = self.described();
        let shortage = match &self {
            Self::Store(error) => error.shortage(),
            _ => None,
        };
        let detail = shortage.map_or_else(|| self.to_string(), str::to_owned);
        answer(problem(status, kind, detail, hint))
    }
}

fn described(error: &ApiError) -> (StatusCode, &'static str, Option<&'static str>) {
    (error.status(), error.kind(), error.hint())
}
