//! A worker of an external pool: it uses the pool's token to get a name and a token of its own.

use super::act::segment;
use anyhow::Context;
use baton_gpu_worker::Config;
use baton_protocol::api::{JoinPool, Joined};
use baton_transport::{Api, Backoff, Dial, LinkError, Token};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// The pool may still count the worker that this one replaces.
const POOL_FULL: &str = "urn:baton:pool-full";

/// Joins the pool and adopts its values, except where the worker's own settings differ.
pub(super) async fn as_worker(config: &mut Config, pool: &str) -> anyhow::Result<()> {
    let called = config.name.clone().or_else(host);
    let joined = join(&config.dial, pool, called, config.patience).await?;
    tracing::info!("Joined pool {pool} as {}", joined.name);
    config.dial.token = Some(Token::new(&joined.token));
    config.name = Some(joined.name);
    config.idle_exit = config
        .idle_exit
        .or(joined.idle_exit_ms.map(Duration::from_millis));
    let leaves_in = joined.leaves_in_ms.map(Duration::from_millis);
    config.leaves_at = config
        .leaves_at
        .or_else(|| SystemTime::now().checked_add(leaves_in?));
    Ok(())
}

/// Waits for a broker that cannot be reached, as every worker does, and up to `patience` for a full pool.
async fn join(
    dial: &Dial,
    pool: &str,
    called: Option<String>,
    patience: Duration,
) -> anyhow::Result<Joined> {
    let api = Api::new(dial)?;
    let path = format!("/v1/pools/{}/workers", segment(pool));
    let join = JoinPool { called };
    let mut backoff = Backoff::default();
    let gives_up = Instant::now().checked_add(patience);
    let mut warned = false;
    loop {
        let error = match api.act::<_, Joined>(&path, &join).await {
            Ok(joined) => return Ok(joined),
            Err(error) => error,
        };
        let waits = match &error {
            LinkError::Refused { problem } if problem.kind == POOL_FULL => {
                gives_up.is_none_or(|at| Instant::now() < at)
            }
            error => error.is_transient(),
        };
        if !waits {
            return Err(error).with_context(|| format!("Failed to join pool {pool}"));
        }
        if !std::mem::replace(&mut warned, true) {
            tracing::warn!(%error, "Pool {pool} cannot be joined yet; retrying");
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// Includes the process id, so that several workers on one machine have different names.
fn host() -> Option<String> {
    let name = nix::sys::utsname::uname().ok()?;
    let name = name.nodename().to_str()?;
    Some(format!("{name}-{}", std::process::id()))
}
