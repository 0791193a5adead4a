//! `baton status`: whether the broker is well, and what it does.

use std::process::ExitCode;

use anyhow::Context;
use baton_link::Api;

use crate::{service, settings::Settings};

pub(crate) fn main(settings: &Settings) -> anyhow::Result<ExitCode> {
    let dial = service::dial(settings)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("Failed to start")?;
    runtime.block_on(async {
        let api = Api::new(&dial)?;
        println!("Broker: {}", dial.address);
        println!("Version: {}", text(&api, "/version").await?);
        println!("Health: {}", text(&api, "/health/ready").await?);
        if let Some(url) = service::dashboard(settings) {
            println!("Dashboard: {url}");
        }
        println!("{}", text(&api, "/status").await?);
        anyhow::Ok(())
    })?;
    Ok(ExitCode::SUCCESS)
}

async fn text(api: &Api, path: &str) -> anyhow::Result<String> {
    let body = api.get(path).await?;
    Ok(String::from_utf8_lossy(&body).trim().to_owned())
}
