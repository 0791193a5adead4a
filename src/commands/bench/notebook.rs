//! A notebook whose cells are measured.

use super::report::Parts;
use crate::{
    commands::ask::{client, list},
    settings::Settings,
};
use anyhow::Context;
use baton_jupyter_client::{Kernel, Kernelspec, Output, Reply};
use baton_protocol::api::Job;
use serde::Deserialize;
use std::{collections::HashMap, time::Duration};

const PATIENCE: Duration = Duration::from_secs(120);

/// The broker's last jobs, among which those that were ahead of a cell are looked for.
const JOBS: u32 = 20;

/// Runs in the notebook kernel. If it were a cell, the functions that it replaces would be sent as the notebook's.
const WATCH: &str = r#"
import baton_shim.notebook.call as _call, time as _time
def _watched(name, holder, key):
    function = getattr(holder, key)
    def watched(*arguments, **options):
        begin = _time.time()
        try:
            return function(*arguments, **options)
        finally:
            _call.seen[name] = (begin, _time.time())
    setattr(holder, key, watched)
_call.seen = {}
_watched("snapshot", _call, "depart")
_watched("wait", _call.Call, "_wait")
_watched("apply", _call.Call, "finish")
del _watched
"#;
const SEEN: &str = r#"print(__import__("json").dumps((_call.seen, baton_span)))"#;

pub(super) struct Notebook<'settings> {
    kernel: Kernel,
    settings: &'settings Settings,
}

/// Times of one cell, in seconds.
pub(super) struct Measured {
    total: f64,
    snapshot: f64,
    pub(super) out: f64,
    run: f64,
    pub(super) back: f64,
    wait: f64,
    /// Whether the session is on another machine.
    pub(super) elsewhere: bool,
}

type Span = (f64, f64);

/// What [`SEEN`] prints: when the shim's functions ran, and when and where the cell did.
#[derive(Deserialize)]
struct Seen(HashMap<String, Span>, (f64, f64, String));

impl<'settings> Notebook<'settings> {
    pub(super) async fn start(
        kernelspec: &Kernelspec,
        settings: &'settings Settings,
    ) -> anyhow::Result<Self> {
        let kernel = Kernel::start(kernelspec, PATIENCE).await?;
        let mut notebook = Self { kernel, settings };
        notebook.run_aside(WATCH).await?;
        Ok(notebook)
    }

    /// Runs a cell.
    ///
    /// # Errors
    /// If the cell fails; the message is its own.
    pub(super) async fn run(&mut self, code: &str) -> anyhow::Result<()> {
        checked(&self.kernel.run(code, drop).await?)
    }

    /// Returns what the code printed.
    async fn run_aside(&mut self, code: &str) -> anyhow::Result<String> {
        let mut printed = String::new();
        let reply = self.kernel.run_aside(code, |output| {
            if let Output::StreamContent(stream) = output {
                printed.push_str(&stream.text);
            }
        });
        checked(&reply.await?)?;
        Ok(printed)
    }

    /// Runs this code as a `%%gpu` cell.
    pub(super) async fn measure(&mut self, body: &str) -> anyhow::Result<Measured> {
        let cell = format!(
            "%%gpu\nimport time as baton_time, socket as baton_socket\nbaton_begin = baton_time.time()\n{body}\n\
             baton_span = (baton_begin, baton_time.time(), baton_socket.gethostname())"
        );
        self.run(&cell).await?;
        let seen = self.run_aside(SEEN).await?;
        let Seen(seen, (begin, end, host)) =
            serde_json::from_str(&seen).context("The notebook did not report the cell's times")?;
        let of = |name: &str| {
            seen.get(name)
                .copied()
                .context("The notebook did not report when the shim ran")
        };
        let (snapshot, wait, apply) = (of("snapshot")?, of("wait")?, of("apply")?);
        let here = nix::sys::utsname::uname()?;
        Ok(Measured {
            total: apply.1 - snapshot.0,
            snapshot: snapshot.1 - snapshot.0,
            out: begin - snapshot.1,
            run: end - begin,
            back: apply.1 - end,
            wait: self.queue_seconds().await.min(wait.1 - wait.0),
            elsewhere: here.nodename() != host.as_str(),
        })
    }

    /// The seconds that the last cell waited in the queue: until the end of the last job that was ahead of it.
    async fn queue_seconds(&self) -> f64 {
        let Ok(api) = client(self.settings) else {
            return 0.0;
        };
        // Some people may not see the jobs of others.
        let jobs = list(&api, "/v1/jobs", Vec::new(), JOBS).await;
        let jobs: Vec<Job> = jobs.unwrap_or_default();
        let Some((own, others)) = jobs.split_first() else {
            return 0.0;
        };
        let Some(started_ms) = own.started_ms else {
            return 0.0;
        };
        let ends = others.iter().filter_map(|job| job.finished_ms);
        let ahead = ends.filter(|end_ms| own.submitted_ms < *end_ms && *end_ms <= started_ms);
        let last_ms = ahead.max().unwrap_or(own.submitted_ms);
        (last_ms - own.submitted_ms) as f64 / 1e3
    }

    pub(super) async fn close(self) {
        self.kernel.shut_down().await;
    }
}

fn checked(reply: &Reply) -> anyhow::Result<()> {
    match &reply.error {
        None => Ok(()),
        Some(error) => anyhow::bail!("The cell did not run: {}", error.evalue),
    }
}

impl Measured {
    /// `clock`: the seconds by which the session's clock is ahead of the notebook's.
    pub(super) fn parts(&self, clock: f64) -> Parts {
        Parts {
            snapshot: self.snapshot,
            move_: (self.out - clock - self.wait).max(0.0),
            wait: self.wait,
            run: self.run,
            return_: (self.back + clock).max(0.0),
            total: self.total,
            adds: self.total - self.run,
        }
    }
}
