//! Errors in the format of RFC 9457.

use crate::hub::HubError;
use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use baton_broker_queue::NotDone;
use baton_broker_store::StoreError;
use baton_protocol::api::Problem;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("The broker's token is missing or wrong")]
    Token,
    #[error("This address is for programs, not for web pages")]
    WebPage,
    #[error(
        "Workers need a worker's token, or the broker's own: they receive the cells of all people"
    )]
    NotAWorker,
    #[error("This is a worker's token: only workers can use it")]
    NotAPerson,
    #[error("This token can read /metrics and /v1/scale, and nothing else")]
    OnlyReads,
    #[error("This token lets workers join pool {pool}, and nothing else")]
    OnlyJoins { pool: String },
    #[error("Only course staff and admins can read the data behind estimates")]
    NotStaff,
    #[error("{0}")]
    Query(String),
    #[error("{0}")]
    NotDone(#[from] NotDone),
    #[error("The request's body is not valid here: {0}")]
    Body(String),
    #[error(
        "This form is not from one of your own pages, or you have signed in again since you opened it"
    )]
    Form,
    #[error("The request's body is too large for this address")]
    TooLarge,
    #[error("Your token sends more requests than this broker allows")]
    TooOften,
    #[error("You have reached this broker's limit of {what} for one person ({most})")]
    TooManyConnections { what: &'static str, most: u32 },
    #[error(
        "You have reached this broker's limit of bytes in requests that are not complete or not handled yet"
    )]
    TooMuchAtOnce,
    #[error("Only admins and the broker's own token can read this")]
    AdminsOnly,
    #[error("{missing} of its chunks are missing here or not yours")]
    ChunksMissing { missing: usize },
    #[error(
        "The course has {} of public files; the limit of a course is {}",
        baton_humanize::bytes(*public_bytes), baton_humanize::bytes(*limit_bytes)
    )]
    PublicLimit { public_bytes: u64, limit_bytes: u64 },
    #[error("The course has no public file {name}")]
    UnknownFile { name: String },
    #[error("No worker offers or has offered the environment {name}")]
    UnknownEnvironment { name: String },
    #[error("The environment {name} has no lock: the administrators of its workers installed it")]
    NoLock { name: String },
    #[error("You have no saved state {name}")]
    UnknownState { name: String },
    #[error("You have {most} saved states, which is the limit of a person in a course")]
    StateLimit { most: usize },
    #[error("There is no cell {job} that you can see")]
    UnknownJob { job: String },
    #[error("There is nothing at this address")]
    UnknownPath,
    #[error("This address does not support this method")]
    Method,
    #[error("The broker's database does not answer")]
    Store(#[from] StoreError),
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error("The broker is shutting down")]
    Ending,
    /// An error, because a number that is too small would end workers.
    #[error("The broker does not know yet how many workers it needs")]
    NotCounted,
    #[error("The broker can open no more files or connections")]
    NoDescriptors,
}

impl ApiError {
    /// The error for a body that was rejected.
    pub(crate) fn of_body(status: StatusCode, text: String) -> Self {
        match status {
            StatusCode::PAYLOAD_TOO_LARGE => Self::TooLarge,
            _ => Self::Body(text),
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Token => StatusCode::UNAUTHORIZED,
            Self::WebPage
            | Self::NotAWorker
            | Self::NotAPerson
            | Self::OnlyReads
            | Self::OnlyJoins { .. }
            | Self::NotStaff
            | Self::Form
            | Self::AdminsOnly => StatusCode::FORBIDDEN,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooOften | Self::TooMuchAtOnce | Self::TooManyConnections { .. } => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::NotDone(NotDone::StaffOnly | NotDone::AdminsOnly) => StatusCode::FORBIDDEN,
            Self::NotDone(
                NotDone::Over
                | NotDone::NotWaiting
                | NotDone::Leaving(_)
                | NotDone::NotExternal(_)
                | NotDone::PoolFull { .. },
            ) => StatusCode::CONFLICT,
            Self::NotDone(
                NotDone::UnknownJob(_)
                | NotDone::UnknownWorker(_)
                | NotDone::UnknownPool(_)
                | NotDone::UnknownCourse(_)
                | NotDone::NoAllowance(_),
            ) => StatusCode::NOT_FOUND,
            Self::NotDone(NotDone::Wrong(_)) | Self::Query(_) | Self::Body(_) => {
                StatusCode::BAD_REQUEST
            }
            Self::UnknownJob { .. }
            | Self::UnknownFile { .. }
            | Self::UnknownState { .. }
            | Self::UnknownEnvironment { .. }
            | Self::NoLock { .. }
            | Self::UnknownPath => StatusCode::NOT_FOUND,
            Self::ChunksMissing { .. } | Self::PublicLimit { .. } | Self::StateLimit { .. } => {
                StatusCode::CONFLICT
            }
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::Store(error) if !error.may_pass() => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Store(_)
            | Self::Hub(_)
            | Self::Ending
            | Self::NotCounted
            | Self::NoDescriptors => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Token => "urn:baton:token",
            Self::WebPage => "urn:baton:web-page",
            Self::Form => "urn:baton:form",
            Self::TooLarge => "urn:baton:too-large",
            Self::TooOften => "urn:baton:too-often",
            Self::TooMuchAtOnce => "urn:baton:too-much-at-once",
            Self::TooManyConnections { .. } => "urn:baton:too-many-connections",
            Self::AdminsOnly | Self::OnlyReads | Self::OnlyJoins { .. } => Problem::FORBIDDEN,
            Self::NotAWorker => Problem::NOT_A_WORKER,
            Self::NotAPerson => Problem::NOT_A_PERSON,
            Self::NotStaff => "urn:baton:not-staff",
            Self::NotDone(not_done) => kind_of(not_done),
            Self::Query(_) => "urn:baton:query",
            Self::Body(_) => "urn:baton:body",
            Self::UnknownJob { .. } => "urn:baton:unknown-job",
            Self::UnknownFile { .. } => "urn:baton:unknown-file",
            Self::UnknownState { .. } => "urn:baton:unknown-state",
            Self::UnknownEnvironment { .. } => "urn:baton:unknown-environment",
            Self::NoLock { .. } => "urn:baton:no-lock",
            Self::StateLimit { .. } => "urn:baton:state-limit",
            Self::ChunksMissing { .. } => "urn:baton:chunks-missing",
            Self::PublicLimit { .. } => "urn:baton:public-limit",
            Self::UnknownPath => "urn:baton:unknown-path",
            Self::Method => "urn:baton:method",
            Self::Store(_) => "urn:baton:database",
            Self::Hub(_) => "urn:baton:hub",
            Self::Ending => "urn:baton:ending",
            Self::NotCounted => "urn:baton:not-counted",
            Self::NoDescriptors => Problem::NO_DESCRIPTORS,
        }
    }

    pub(crate) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Token => Some(
                "ask your course staff or the operator of the broker for your token (`baton people rotate NAME` makes a new one), then set BATON_TOKEN or `token_file`; programs send it as Authorization: Bearer TOKEN",
            ),
            Self::UnknownJob { .. } | Self::NotDone(NotDone::UnknownJob(_)) => {
                Some("`baton jobs` and the first page of the dashboard list those that you can see")
            }
            Self::UnknownFile { .. } => Some("`baton publish COURSE --list` lists them"),
            Self::UnknownState { .. } => Some("%gpu_states lists those that you have"),
            Self::UnknownEnvironment { .. } => Some("`baton env list` lists the available ones"),
            Self::NoLock { .. } => Some("ask your course staff which packages it has"),
            Self::StateLimit { .. } => Some("delete one: %gpu_states --delete NAME"),
            Self::ChunksMissing { .. } => Some("upload them first, as `baton publish` does"),
            Self::PublicLimit { .. } => Some("withdraw files that you no longer need"),
            Self::NotDone(not_done) => Some(hint_of(not_done)),
            Self::Query(_) | Self::Body(_) | Self::UnknownPath | Self::Method => {
                Some("see /v1/openapi.json")
            }
            Self::Store(_) => Some("see the broker's log"),
            Self::Hub(_) => Some("try again in a minute, or tell the operator of the JupyterHub"),
            Self::Ending | Self::NotCounted => Some("try again in a second"),
            Self::NoDescriptors => Some("tell the operator of the broker"),
            Self::Form => Some("open the page again and repeat the action"),
            Self::TooOften | Self::TooMuchAtOnce => Some("try again in a second"),
            Self::TooManyConnections { .. } => Some(
                "shut down notebooks that you do not use; this one then connects automatically",
            ),
            Self::AdminsOnly => Some("ask the operator of the broker"),
            Self::NotAWorker => Some("`baton people add NAME --worker` makes one"),
            Self::NotAPerson | Self::OnlyReads | Self::OnlyJoins { .. } => {
                Some("use a token of your own")
            }
            Self::WebPage | Self::NotStaff | Self::TooLarge => None,
        }
    }
}

fn kind_of(not_done: &NotDone) -> &'static str {
    match not_done {
        NotDone::UnknownJob(_) => "urn:baton:unknown-job",
        NotDone::UnknownWorker(_) => "urn:baton:unknown-worker",
        NotDone::UnknownPool(_) => "urn:baton:unknown-pool",
        NotDone::UnknownCourse(_) => "urn:baton:unknown-course",
        NotDone::NoAllowance(_) => "urn:baton:no-allowance",
        NotDone::StaffOnly | NotDone::AdminsOnly => Problem::FORBIDDEN,
        NotDone::NotExternal(_) => "urn:baton:not-external",
        NotDone::PoolFull { .. } => "urn:baton:pool-full",
        NotDone::Over => "urn:baton:over",
        NotDone::NotWaiting => "urn:baton:not-waiting",
        NotDone::Leaving(_) => "urn:baton:leaving",
        NotDone::Wrong(_) => "urn:baton:body",
    }
}

fn hint_of(not_done: &NotDone) -> &'static str {
    match not_done {
        NotDone::UnknownJob(_) => {
            "`baton jobs` and the first page of the dashboard list those that you can see"
        }
        NotDone::UnknownPool(_) => "`baton pools` lists them",
        NotDone::UnknownWorker(_) => {
            "`baton workers` and the Workers page list them. For a job, use `baton run --resume`"
        }
        NotDone::UnknownCourse(_) => {
            "`baton courses` and the Courses page list those that you can see"
        }
        NotDone::NoAllowance(_) => {
            "`baton grant --list` and the page of the course list those that are"
        }
        NotDone::StaffOnly => "ask the staff of the course",
        NotDone::AdminsOnly => "ask the operator of the broker",
        NotDone::NotExternal(_) => "set provider = \"external\" in its section [[pool]]",
        NotDone::PoolFull { .. } => "raise max in its section [[pool]], or start fewer workers",
        NotDone::Over => "there is nothing left to do",
        NotDone::NotWaiting => "it can be cancelled",
        NotDone::Leaving(_) => "start the worker again on its machine",
        NotDone::Wrong(_) => "correct it and try again",
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let logged: Option<&dyn std::error::Error> = match &self {
            Self::Store(error) => Some(error),
            Self::Hub(error) => Some(error),
            _ => None,
        };
        if let Some(error) = logged {
            tracing::error!(error, "A request failed: {error}");
        }
        let detail = self.to_string();
        let mut response = answer(problem(self.status(), self.kind(), detail, self.hint()));
        if matches!(self, Self::TooManyConnections { .. }) {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        response
    }
}

pub(crate) fn problem(
    status: StatusCode,
    kind: &str,
    detail: String,
    hint: Option<&str>,
) -> Problem {
    Problem {
        kind: kind.to_owned(),
        title: status.canonical_reason().unwrap_or_default().to_owned(),
        status: status.as_u16(),
        detail,
        hint: hint.map(str::to_owned),
    }
}

/// The answer with this problem, which pages for people show in their own form.
pub(crate) fn answer(problem: Problem) -> Response {
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, Json(problem.clone())).into_response();
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("application/problem+json");
    headers.insert(header::CONTENT_TYPE, kind);
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if status == StatusCode::TOO_MANY_REQUESTS {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response.extensions_mut().insert(problem);
    response
}
