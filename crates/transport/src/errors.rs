//! Errors between a client and its broker, one variant for each case that a caller can act on.

use crate::token::Token;
use baton_chunks::Severity;
use baton_protocol::{ChunkHash, DecodeError, Excess, address::BrokerAddress, api::Problem};
use std::{error::Error, fmt, path::PathBuf, time::Duration};

type Source = Box<dyn Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// No process listens there, or the connection broke.
    #[error("The broker at {address} cannot be reached")]
    Unreachable {
        address: BrokerAddress,
        #[source]
        source: Source,
    },
    /// Nothing was sent, because the server that answers may be an impostor.
    #[error("There is no safe connection to the broker at {address}: {problem}\nhint: {}", problem.hint())]
    Certificate {
        address: BrokerAddress,
        problem: TlsProblem,
    },
    #[error("The broker at {address} does not answer")]
    NoAnswer { address: BrokerAddress },
    #[error("The broker at {address} {problem}\nhint: {}", problem.hint())]
    Unauthorized {
        address: BrokerAddress,
        problem: TokenProblem,
    },
    /// The token from the last exchange is no longer valid; the next attempt exchanges again.
    #[error("The broker at {address} no longer knows this notebook's token")]
    Forgotten { address: BrokerAddress },
    #[error("There is no {path} at {address}: it is not a Baton broker, or it has another version")]
    NotFound {
        address: BrokerAddress,
        path: String,
    },
    /// The broker has no room for more chunks.
    #[error("The broker cannot store more: {text}")]
    StoreFull { text: String },
    /// The broker does not have a chunk that was asked for.
    #[error("The broker does not have a required chunk")]
    UnknownChunk,
    /// The object store, which notebook and worker use directly, cannot be reached or is too busy.
    #[error("The object store at {host} cannot be used: {reason}")]
    ObjectStore { host: String, reason: String },
    /// Nothing was sent, because the server that answers may be an impostor.
    #[error("There is no safe connection to the object store at {host}: {problem}")]
    UnsafeStore { host: String, problem: TlsProblem },
    /// The store does not accept the broker's signature; the grant may have expired.
    #[error("The object store at {host} refused the broker's grant ({status} {code})")]
    ObjectRefused {
        host: String,
        status: u16,
        code: String,
    },
    /// The store has no object, or one with other bytes, under the chunk's address.
    #[error("Chunk {hash} in the object store is damaged or gone")]
    DamagedChunk { hash: ChunkHash },
    /// The broker works differently than before; repeating the request finds out how.
    #[error("The broker answered: {text}")]
    Changed { text: String },
    /// The request was wrong, or nothing matches it.
    #[error("{}{}", problem.detail, hint(problem))]
    Refused { problem: Problem },
    /// The broker allows a person no more requests of this kind for a while.
    #[error("{}{}", problem.detail, hint(problem))]
    TooMuch { problem: Problem, after: Duration },
    /// The broker lacks a resource that it needs to answer.
    #[error("{}", problem.detail)]
    Unable { problem: Problem },
    #[error("The broker answered {status}: {text}")]
    Status { status: u16, text: String },
    /// The broker would not accept the message, also later and over another connection.
    #[error("A message of {excess} is too large to be sent")]
    TooLarge { excess: Excess },
    #[error("The broker sent an invalid response: {0}")]
    Answer(&'static str),
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error("Failed to use the certificates in {}", path.display())]
    CaFile {
        path: PathBuf,
        #[source]
        source: Source,
    },
    /// The receiver of the chunks could not use one.
    #[error("A received chunk could not be used")]
    Receiver(#[source] Source),
}

/// Why a broker refuses a program because of its token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenProblem {
    Missing,
    NotAccepted,
    /// It is a person's, and this program is a worker.
    NotForWorkers,
    /// It is a worker's, and this program is not a worker.
    OnlyForWorkers,
}

impl TokenProblem {
    /// `refusal`: what the broker answered, if it says why.
    pub(crate) fn of(token: Option<&Token>, refusal: Option<&Problem>) -> Self {
        let kind = refusal.map(|refusal| refusal.kind.as_str());
        match (token, kind) {
            (None, _) => Self::Missing,
            (_, Some(Problem::NOT_A_WORKER)) => Self::NotForWorkers,
            (_, Some(Problem::NOT_A_PERSON)) => Self::OnlyForWorkers,
            _ => Self::NotAccepted,
        }
    }

    #[must_use]
    pub fn hint(self) -> &'static str {
        match self {
            Self::Missing => {
                "store your token with `baton login`, or name its file with BATON_TOKEN_FILE"
            }
            Self::NotAccepted => {
                "`baton config show` says where it is from. Get a new one from your course staff, and store it with `baton login`, or for a worker in the file that token_file names"
            }
            Self::NotForWorkers => {
                "`baton people add NAME --worker` makes a token for a worker; `baton config show` says where this one is from"
            }
            Self::OnlyForWorkers => {
                "use your own token, and store it with `baton login`; `baton config show` says where this one is from"
            }
        }
    }
}

impl fmt::Display for TokenProblem {
    fn fmt(&self, text: &mut fmt::Formatter<'_>) -> fmt::Result {
        text.write_str(match self {
            Self::Missing => "needs a token, and none was given",
            Self::NotAccepted => "does not accept this token",
            Self::NotForWorkers => "does not accept this token: it is not for workers",
            Self::OnlyForWorkers => "does not accept this token: only workers can use it",
        })
    }
}

fn hint(problem: &Problem) -> String {
    let hint = problem.hint.as_ref();
    hint.map_or_else(String::new, |hint| format!("\nhint: {hint}"))
}

impl LinkError {
    /// Whether the connection or a passing condition is the cause, so that the same request may succeed later.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. }
            | Self::NoAnswer { .. }
            | Self::Forgotten { .. }
            | Self::TooMuch { .. }
            | Self::ObjectStore { .. }
            | Self::Unable { .. } => true,
            Self::Status { status, .. } => *status == 503,
            _ => false,
        }
    }

    /// Like [`Self::is_transient`], or the broker lacks something that it may get back: space,
    /// descriptors, a valid certificate. Worth waiting for when the data exists nowhere else.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::StoreFull { .. }
            | Self::Certificate { .. }
            | Self::UnsafeStore { .. }
            | Self::ObjectRefused { .. } => true,
            Self::Status { status, .. } => *status >= 500,
            error => error.is_transient(),
        }
    }

    /// What another attempt at the same transfer would lead to.
    #[must_use]
    pub fn severity(&self) -> Severity {
        match self.may_pass() {
            true => Severity::Passing,
            false => Severity::AskAgain,
        }
    }
}

/// Why a connection is not safe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TlsProblem {
    Expired,
    NotYetValid,
    UnknownAuthority,
    /// The names in the certificate, if they are known.
    OtherName(Vec<String>),
    Revoked,
    NotEncrypted,
    /// The library's own message.
    Other(String),
}

impl fmt::Display for TlsProblem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expired => formatter.write_str("its certificate has expired"),
            Self::NotYetValid => formatter.write_str("its certificate is not valid yet"),
            Self::UnknownAuthority => formatter
                .write_str("its certificate is from an authority that this machine does not trust"),
            Self::OtherName(names) if names.is_empty() => {
                formatter.write_str("its certificate is for another host name")
            }
            Self::OtherName(names) => {
                write!(formatter, "its certificate is for {}", names.join(", "))
            }
            Self::Revoked => formatter.write_str("its certificate was revoked"),
            Self::NotEncrypted => formatter.write_str("it does not use encryption"),
            Self::Other(words) => formatter.write_str(words),
        }
    }
}

impl TlsProblem {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Expired | Self::NotYetValid => {
                "the operator of the broker must renew it; also check this machine's clock"
            }
            Self::UnknownAuthority => {
                "set `ca_file` (BATON_CA_FILE) to the authority's certificate, which the operator of the broker has"
            }
            Self::OtherName(_) => "use that name in `broker_address` (BATON_BROKER_ADDRESS)",
            Self::NotEncrypted => {
                "begin `broker_address` (BATON_BROKER_ADDRESS) with http:// if that is intended, or give the broker a certificate"
            }
            Self::Revoked | Self::Other(_) => "ask the operator of the broker",
        }
    }

    /// The same for an object store whose connection is not safe.
    #[must_use]
    pub fn hint_for_store(&self) -> &'static str {
        match self {
            Self::UnknownAuthority => {
                "set `ca_file` (BATON_CA_FILE) on this machine to a file with the authorities of the broker and of the object store"
            }
            _ => "tell the operator of the object store; also check this machine's clock",
        }
    }
}
