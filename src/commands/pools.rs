//! `baton pools`: the sources of workers, and their problems.

use super::{
    act::segment,
    ask::{client, run, shown, text},
};
use crate::settings::Settings;
use anyhow::Context;
use baton_protocol::api::{Page, Pool, PoolTest, PoolWorkerState};
use baton_transport::Api;
use clap::ArgMatches;
use std::process::ExitCode;

pub(crate) fn main(settings: &Settings, matches: &ArgMatches) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    run(answer(&api, matches))
}

async fn answer(api: &Api, matches: &ArgMatches) -> anyhow::Result<String> {
    let Some((command, of_pool)) = matches.subcommand() else {
        let pools: Page<Pool> = api.ask("/v1/pools", &[]).await?;
        return shown(&pools.items, matches.get_flag("json"), |items| {
            pools_text(items)
        });
    };
    let json = of_pool.get_flag("json");
    let pool = of_pool.get_one::<String>("pool").context("Which pool?")?;
    let path = format!("/v1/pools/{}/{command}", segment(pool));
    if command == "test" {
        let test: PoolTest = api.act(&path, &()).await?;
        return shown(&test, json, test_text);
    }
    let pool: Pool = api.act(&path, &()).await?;
    shown(&[pool], json, |pools| pools_text(pools))
}

fn pools_text(pools: &[Pool]) -> String {
    let rows = pools.iter().map(|pool| {
        let start = pool.start.map(|start| text::positive(start.middle_ms));
        let state = match (pool.paused, &pool.last_failure) {
            (true, why) => format!("paused: {}", why.as_deref().unwrap_or("too many failures")),
            // No start has failed, but one is late.
            (false, Some(why)) if pool.failures == 0 => why.clone(),
            (false, Some(why)) => format!("failed {} times: {why}", pool.failures),
            (false, None) => "ok".to_owned(),
        };
        [
            pool.pool.clone(),
            format!("{} to {}", pool.min, pool.max),
            pool.wanted.to_string(),
            pool.up.to_string(),
            pool.pending.to_string(),
            start.unwrap_or_else(|| "-".to_owned()),
            state,
        ]
    });
    let titles = [
        "POOL", "WORKERS", "WANTED", "UP", "PENDING", "START", "STATE",
    ];
    let mut table = text::table(
        titles,
        rows,
        "No pools: the settings have no section [[pool]]",
    );
    let workers = pools.iter().flat_map(|pool| &pool.workers);
    let workers: Vec<[String; 3]> = workers
        .map(|worker| {
            let state = match worker.state {
                PoolWorkerState::Queued => "queued",
                PoolWorkerState::Starting => "starting",
                PoolWorkerState::Connected => "connected",
                PoolWorkerState::Leaving => "leaving",
                PoolWorkerState::Disconnected => "disconnected",
            };
            let job = worker.job.clone();
            [
                worker.name.clone(),
                job.unwrap_or_else(|| "-".to_owned()),
                state.to_owned(),
            ]
        })
        .collect();
    if !workers.is_empty() {
        let titles = ["WORKER", "JOB", "STATE"];
        table.push('\n');
        table.push_str(&text::table(titles, workers.into_iter(), ""));
    }
    table
}

fn test_text(test: &PoolTest) -> String {
    if test.commands.is_empty() {
        let pool = &test.pool;
        return format!(
            "The broker runs no command for pool {pool}: what starts its workers reads /v1/scale/{pool}\n"
        );
    }
    let commands = test.commands.iter().map(|command| {
        let quoted = |argument: &String| match argument.contains(char::is_whitespace) {
            true => format!("'{argument}'"),
            false => argument.clone(),
        };
        let arguments: Vec<String> = command.arguments.iter().map(quoted).collect();
        let problem = match &command.problem {
            Some(problem) => format!("  problem: {problem}\n"),
            None => String::new(),
        };
        format!("{}\n  {}\n{problem}", command.name, arguments.join(" "))
    });
    commands.collect()
}
