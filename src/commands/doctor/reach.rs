//! Whether the broker can be reached, accepts the token and has a compatible version.

use super::{Finding, worker::on_a_runtime};
use crate::{service, settings::Settings};
use baton_broker::{ChunkPlace, ObjectKind, ObjectOptions, check_objects};
use baton_protocol::{
    NotebookId, PROTOCOL_VERSION, Refusal,
    proxy::{FromProxy, ToProxy},
    worker::{FromWorker, ToWorker},
};
use baton_transport::{Dial, LinkError, connect};
use std::time::Duration;

/// The limit for the broker's `Welcome`.
const WELCOME: Duration = Duration::from_secs(10);

pub(super) fn broker(settings: &Settings) -> Finding {
    let dial = match service::dial(settings) {
        Ok(dial) => dial,
        Err(error) => {
            let text = format!("{error:#}");
            let usual = "name a file that this user may read";
            let (what, fix) = text.split_once("\nhint: ").unwrap_or((&text, usual));
            return Finding::wrong(what, fix);
        }
    };
    if service::is_yet_to_start(settings) {
        return not_started(settings);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let address = &dial.address;
    match runtime.map(|runtime| runtime.block_on(send_hello(&dial, settings.course.clone()))) {
        Ok(Ok(Accepted::Notebook(version))) => Finding::Good(format!(
            "The broker at {address} answers, version {version}"
        )),
        Ok(Ok(Accepted::Worker)) => Finding::Good(format!(
            "The broker at {address} answers, and accepts this token as a worker's"
        )),
        Ok(Err((what, fix))) => Finding::wrong(what, fix),
        Err(error) => Finding::wrong(
            format!("Failed to connect to the broker: {error}"),
            "try again",
        ),
    }
}

/// Checks whether a broker here could use the object store, if this machine's settings name one.
pub(super) fn object_store(settings: &Settings) -> Option<Finding> {
    let ChunkPlace::Objects(address) = &settings.broker_chunk_store else {
        return None;
    };
    let options = ObjectOptions::of(std::env::vars());
    let ca_file = settings.ca_file.clone();
    let checked = on_a_runtime(check_objects(address, &options, ca_file));
    Some(match checked {
        Ok(()) => Finding::Good(format!("The broker can use {address}")),
        Err(error) => {
            let fix = match error.downcast_ref() {
                Some(LinkError::UnsafeStore { problem, .. }) => problem.hint_for_store(),
                _ => variables_of(address.kind()),
            };
            Finding::wrong(format!("The broker cannot use {address}: {error:#}"), fix)
        }
    })
}

/// The variables that the broker's environment must have.
fn variables_of(kind: ObjectKind) -> &'static str {
    match kind {
        ObjectKind::S3 => {
            "check AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; an address without encryption needs AWS_ALLOW_HTTP=true (docs/guides/object-store.md)"
        }
        ObjectKind::Azure => {
            "check AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or the roles of the identity (docs/guides/object-store.md)"
        }
        ObjectKind::Google => {
            "check GOOGLE_APPLICATION_CREDENTIALS, and the roles of the service account (docs/guides/object-store.md)"
        }
    }
}

/// The role in which the broker accepted this program.
enum Accepted {
    /// With the broker's version.
    Notebook(String),
    Worker,
}

/// Returns the role, or what is wrong and how to fix it.
async fn send_hello(
    dial: &Dial,
    course: Option<String>,
) -> Result<Accepted, (String, &'static str)> {
    let failed = |error: LinkError| {
        let fix = match &error {
            LinkError::Certificate { address, problem } => {
                return (
                    format!("There is no safe connection to the broker at {address}: {problem}"),
                    problem.hint(),
                );
            }
            LinkError::CaFile { .. } => "correct BATON_CA_FILE",
            LinkError::Unauthorized { address, problem } => {
                return (format!("The broker at {address} {problem}"), problem.hint());
            }
            _ => "start it with `baton broker`, or correct BATON_BROKER_ADDRESS",
        };
        (error.to_string(), fix)
    };
    let connected = connect::<ToProxy, FromProxy>(dial, "/v1/proxy").await;
    if matches!(connected, Err(LinkError::Unauthorized { .. })) && is_worker(dial).await {
        return Ok(Accepted::Worker);
    }
    let mut connection = connected.map_err(failed)?;
    let hello = FromProxy::Hello {
        protocol_version: PROTOCOL_VERSION,
        notebook: NotebookId::random(),
        owner: "doctor".to_owned(),
        course,
    };
    connection.send(&hello).await.map_err(failed)?;
    let answer = tokio::time::timeout(WELCOME, connection.receive()).await;
    connection.close().await;
    let restart = "restart the broker, then look at its log";
    match answer {
        Ok(Ok(Some(ToProxy::Welcome { broker_version, .. }))) => {
            Ok(Accepted::Notebook(broker_version))
        }
        Ok(Ok(Some(ToProxy::Refused(refusal)))) => Err((refusal.to_string(), fix_of(&refusal))),
        Ok(Err(error)) => Err(failed(error)),
        Ok(Ok(_)) => Err((
            "The broker does not accept this program".to_owned(),
            restart,
        )),
        Err(_) => Err((dial_silent(dial), restart)),
    }
}

async fn is_worker(dial: &Dial) -> bool {
    let connected = connect::<ToWorker, FromWorker>(dial, "/v1/worker").await;
    match connected {
        Ok(connection) => {
            connection.close().await;
            true
        }
        Err(_) => false,
    }
}

fn fix_of(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::NotInCourse { .. } | Refusal::WhichCourse { .. } => {
            "name the course with BATON_COURSE"
        }
        _ => "install the same version of Baton on both sides",
    }
}

fn dial_silent(dial: &Dial) -> String {
    format!("The broker at {} does not answer", dial.address)
}

fn not_started(settings: &Settings) -> Finding {
    if settings.autostart {
        let what = "No broker is configured: the first %%gpu cell starts one for this user";
        return Finding::Good(what.to_owned());
    }
    Finding::wrong(
        "No broker is configured, and a %%gpu cell may not start one",
        "set BATON_BROKER_ADDRESS, or BATON_AUTOSTART=true",
    )
}
