//! `baton broker`: queue, history and dashboard for all notebooks and workers that connect to it.

use crate::{
    notify,
    runtime::{self, on_its_threads},
    service::token_in,
    settings::{ListenAddress, Settings, secrets},
    signals::EndSignals,
};
use anyhow::Context;
use baton_broker::{Config, HubConfig, Listen, ObjectOptions, PoolSettings, TlsFiles};
use baton_protocol::address::BrokerAddress;
use std::process::ExitCode;
use tokio::runtime::Builder;

pub(crate) fn main(settings: &Settings) -> anyhow::Result<ExitCode> {
    let listen = match &settings.broker_listen {
        ListenAddress::Unix(path) => Listen::Unix(path.clone()),
        ListenAddress::Tcp(address) => Listen::Tcp(*address),
    };
    let token = token(settings, &listen)?;
    let in_state_folder = |name: &str| settings.state_folder.join(name);
    let database = settings.broker_database.clone();
    let chunks = settings.broker_chunks.clone();
    let mut config = Config::new(
        listen,
        database.unwrap_or_else(|| in_state_folder("broker.db").into()),
        chunks.unwrap_or_else(|| in_state_folder("chunks")),
    );
    config.chunk_place = settings.broker_chunk_store.clone();
    config.object_options = ObjectOptions::of(std::env::vars());
    config.tls = tls_files(settings)?;
    config.behind_tls_proxy = settings.broker_behind_tls_proxy;
    config.ca_file = settings.ca_file.clone();
    config.advertise = settings.broker_advertise.clone().map(|address| address.0);
    config.chunks_limit_bytes = settings.broker_chunk_limit.bytes;
    config.person_limit_bytes = Some(settings.broker_person_chunk_limit.bytes);
    config.output_limit_bytes = settings.broker_output_limit.bytes;
    config.requests_a_second = settings.broker_request_rate;
    config.chunk_requests_a_second = settings.broker_chunk_request_rate;
    config.connections_a_person = settings.broker_person_connection_limit;
    config.worker_slots = settings.broker_worker_slots;
    config.hub = hub(settings)?;
    let of_hub = config
        .hub
        .as_ref()
        .map(|hub| format!("/services/{}", hub.service));
    let set = settings.broker_url_prefix.clone().map(|prefix| prefix.0);
    config.url_prefix = set.or(of_hub);
    config.people = settings.broker_people_file.clone();
    config.courses = settings.broker_courses_file.clone();
    config.pools =
        PoolSettings::read(&settings.pool.0).context("The settings of a pool are wrong")?;
    config.pool_tokens = in_state_folder("pools");
    config.worker_grace = settings.broker_worker_grace;
    config.proxy_grace = settings.broker_proxy_grace;
    config.monitor_token = secrets::monitor_token(settings)?;
    let everyone_has_a_token = config.people.is_some() || config.hub.is_some();
    let (token, kept_in) = token.unzip();
    config.token = token;

    runtime::allow_many_open_files();
    let runtime = runtime::start(Builder::new_multi_thread())?;
    runtime.block_on(async {
        let mut signals = EndSignals::listen().context("Failed to listen for signals")?;
        let ready = move |address| {
            greet(&address, kept_in.as_deref(), everyone_has_a_token);
            notify::serves(&format!("Listening on {address}"));
        };
        let end = async move {
            signals.received().await;
            notify::ends();
        };
        on_its_threads(baton_broker::run(config, ready, end)).await
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Also used by `baton chunks`.
pub(crate) fn tls_files(settings: &Settings) -> anyhow::Result<Option<TlsFiles>> {
    let certificate = settings.broker_tls_certificate.clone();
    match (certificate, settings.broker_tls_key.clone()) {
        (Some(certificate), Some(key)) => Ok(Some(TlsFiles { certificate, key })),
        (None, None) => Ok(None),
        (Some(_), None) => {
            anyhow::bail!("broker.tls_certificate is set, but broker.tls_key is not")
        }
        (None, Some(_)) => {
            anyhow::bail!("broker.tls_key is set, but broker.tls_certificate is not")
        }
    }
}

/// Otherwise all students would be staff.
pub(crate) fn check_groups(settings: &Settings) -> anyhow::Result<()> {
    anyhow::ensure!(
        settings.broker_hub_student_groups != settings.broker_hub_staff_groups,
        "broker.hub.student_groups and broker.hub.staff_groups are the same, so every student would be staff"
    );
    Ok(())
}

fn hub(settings: &Settings) -> anyhow::Result<Option<HubConfig>> {
    let Some(api_url) = settings.broker_hub_api_url.clone() else {
        return Ok(None);
    };
    check_groups(settings)?;
    let token = secrets::hub_service_token(settings)?.context(
        "The broker's token as a service of the JupyterHub is missing\nhint: set broker.hub.token_file",
    )?;
    Ok(Some(HubConfig {
        api_url: api_url.0,
        token,
        service: settings.broker_hub_service.clone(),
        public_api_url: settings.broker_hub_public_api_url.clone().map(|url| url.0),
        callback_url: settings.broker_hub_callback_url.clone().map(|url| url.0),
        student_groups: settings.broker_hub_student_groups.0.clone(),
        staff_groups: settings.broker_hub_staff_groups.0.clone(),
        remembered: settings.broker_hub_remembered,
    }))
}

/// The secret, and where it is kept. On TCP it is mandatory: every user of a machine can connect to
/// its ports, and anyone who can talk to a broker can run code on its workers.
fn token(settings: &Settings, listen: &Listen) -> anyhow::Result<Option<(String, String)>> {
    if let Some(token) = secrets::token_text(settings)? {
        let kept_in = match &settings.token_file {
            Some(path) if settings.token.is_none() => path.display().to_string(),
            _ => "BATON_TOKEN".to_owned(),
        };
        return Ok(Some((token, kept_in)));
    }
    if matches!(listen, Listen::Unix(_)) {
        return Ok(None);
    }
    let path = settings.state_folder.join("token");
    std::fs::create_dir_all(&settings.state_folder)
        .with_context(|| format!("Failed to create {}", settings.state_folder.display()))?;
    Ok(Some((token_in(&path)?, path.display().to_string())))
}

fn greet(address: &BrokerAddress, token_kept_in: Option<&str>, everyone_has_a_token: bool) {
    outln!("The broker listens on {address}");
    outln!("Notebooks and workers find it with BATON_BROKER_ADDRESS={address}");
    if everyone_has_a_token {
        outln!(
            "Each person who is not in a Hub and each worker needs a token of their own: `baton people add NAME`, for a worker with `--worker`"
        );
    }
    match token_kept_in {
        Some(place) if everyone_has_a_token => {
            outln!("The token in {place} opens everything: keep it on this machine");
        }
        Some(place) => outln!("They need the token in {place}"),
        None => {}
    }
}
