//! `baton pools`: the sources of workers, and their problems.

use super::{
    act::segment,
    ask::{client, run, shown, text},
};
use crate::settings::Settings;
use baton_protocol::api::{Page, Pool, PoolTest, PoolWorkerState};
use clap::{Args, Subcommand};
use std::process::ExitCode;

/// List pools and the state of the workers that they requested
#[derive(Args)]
pub(crate) struct Pools {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(subcommand)]
    action: Option<Action>,
}

#[derive(Subcommand)]
enum Action {
    /// Let a paused pool start workers again
    Resume(OnePool),
    /// Show the commands of a pool and whether they can be run, without running them
    Test(OnePool),
}

#[derive(Args)]
struct OnePool {
    /// The name of the pool in the broker's settings
    pool: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(settings: &Settings, of: &Pools) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    let path = |pool: &str, action| format!("/v1/pools/{}/{action}", segment(pool));
    let mut has_problem = false;
    let code = run(async {
        match &of.action {
            None => {
                let pools: Page<Pool> = api.ask("/v1/pools", &[]).await?;
                shown(&pools.items, of.json, |items| pools_text(items))
            }
            Some(Action::Resume(of)) => {
                let pool: Pool = api.act(&path(&of.pool, "resume"), &()).await?;
                shown(&[pool], of.json, |pools| pools_text(pools))
            }
            Some(Action::Test(of)) => {
                let test: PoolTest = api.act(&path(&of.pool, "test"), &()).await?;
                let mut commands = test.commands.iter();
                has_problem = commands.any(|command| command.problem.is_some());
                shown(&test, of.json, test_text)
            }
        }
    })?;
    Ok(if has_problem { ExitCode::FAILURE } else { code })
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
