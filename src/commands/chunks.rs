//! `baton chunks`: serves the bytes of variables in transit, in a separate process beside the broker.

use super::broker::tls_files;
use crate::{
    notify, runtime,
    settings::{Settings, secrets},
    signals::EndSignals,
};
use anyhow::Context;
use baton_broker::{ChunkListener, ChunkPlace};
use baton_protocol::address::BrokerAddress;
use std::process::ExitCode;
use tokio::runtime::Builder;

pub(crate) fn main(settings: &Settings) -> anyhow::Result<ExitCode> {
    if settings.broker_chunk_store != ChunkPlace::Folder {
        anyhow::bail!(
            "The chunks are in {}, which notebooks and workers use directly\nhint: stop this service; `baton chunks` serves only a folder",
            settings.broker_chunk_store
        );
    }
    let Some(BrokerAddress::Http(broker)) = settings.broker_address.clone() else {
        anyhow::bail!("No broker is configured\nhint: give --broker https://HOST:PORT");
    };
    let token = secrets::token_text(settings)?.context(
        "The broker's own token is missing\nhint: give --token-file; the broker prints the file's path at its start",
    )?;
    let chunks = settings.broker_chunks.clone();
    let config = ChunkListener {
        listen: settings.broker_chunk_listen,
        tls: tls_files(settings)?,
        behind_tls_proxy: settings.broker_behind_tls_proxy,
        ca_file: settings.ca_file.clone(),
        chunks_folder: chunks.unwrap_or_else(|| settings.state_folder.join("chunks")),
        chunks_limit_bytes: settings.broker_chunk_limit.bytes,
        connections_a_person: settings.broker_person_connection_limit,
        broker,
        token,
    };
    let scheme = if config.tls.is_some() {
        "https"
    } else {
        "http"
    };
    let runtime = runtime::start(Builder::new_multi_thread())?;
    runtime.block_on(async {
        let mut signals = EndSignals::listen().context("Failed to listen for signals")?;
        let ready = |address| {
            outln!("Serving chunks on {scheme}://{address}");
            notify::serves(&format!("Listening on {address}"));
        };
        let end = async {
            signals.received().await;
            notify::ends();
        };
        baton_broker::serve_chunks(config, ready, end).await
    })?;
    Ok(ExitCode::SUCCESS)
}
