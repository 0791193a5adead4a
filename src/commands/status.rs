//! `baton status`: the health of the broker, and what it is doing.

use super::ask::{client, list, run};
use crate::{service, settings::Settings};
use baton_protocol::api::{Job, Page, Worker};
use baton_transport::Api;
use clap::Args;
use serde::Serialize;
use std::process::ExitCode;

/// Show whether the broker works and what it runs
#[derive(Args)]
pub(crate) struct StatusArguments {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Printed as JSON. Includes only what the caller may see.
#[derive(Serialize)]
struct Status {
    broker: String,
    version: String,
    health: String,
    dashboard: Option<String>,
    workers: Vec<Worker>,
    /// Unfinished jobs.
    jobs: Vec<Job>,
}

pub(crate) fn main(settings: &Settings, of: &StatusArguments) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    let broker = service::dial(settings)?.address.to_string();
    let dashboard = service::dashboard(settings);
    run(async {
        let version = text(&api, "/version").await?;
        let health = text(&api, "/health/ready").await?;
        if of.json {
            let workers: Page<Worker> = api.ask("/v1/workers", &[]).await?;
            let unfinished = vec![("state", "unfinished".to_owned())];
            let status = Status {
                broker,
                version,
                health,
                dashboard,
                workers: workers.items,
                jobs: list(&api, "/v1/jobs", unfinished, u32::MAX).await?,
            };
            return Ok(serde_json::to_string_pretty(&status)? + "\n");
        }
        let dashboard = dashboard.map_or_else(String::new, |url| format!("Dashboard: {url}\n"));
        let does = text(&api, "/status").await?;
        Ok(format!(
            "Broker: {broker}\nVersion: {version}\nHealth: {health}\n{dashboard}{does}\n"
        ))
    })
}

async fn text(api: &Api, path: &str) -> anyhow::Result<String> {
    let body = api.get(path).await?;
    Ok(String::from_utf8_lossy(&body).trim().to_owned())
}
