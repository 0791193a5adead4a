//! A course on one broker: notebooks that submit cells, workers that run them by a script, and many notebooks that do
//! nothing. No Jupyter, no Python.
//!
//! In: `load BATON ENGINE SECONDS`, where `BATON` is the program and `ENGINE` is `sqlite` or `postgres`.
//! Out: one line of JSON with what was measured. Fails when a cell was lost or doubled, or a line of output was.

mod broker;
mod disk;
mod notebook;
mod worker;

use anyhow::Context;
use broker::Broker;
use disk::{Disk, Probe};
use hdrhistogram::Histogram;
use notebook::{Notebook, Run};
use rand::{SeedableRng, rngs::Xoshiro256PlusPlus};
use rand_distr::{Distribution, Exp};
use std::{
    collections::VecDeque,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until, timeout},
};

const NOTEBOOKS: usize = 500;
const IDLE_NOTEBOOKS: usize = 2000;
const WORKERS: usize = 16;
const SLOTS: u32 = 2;
const CELLS_A_SECOND: f64 = 20.0;
/// After the last cell was submitted.
const PATIENCE: Duration = Duration::from_secs(60);
const SEED: u64 = 2026;
/// A cell that waits longer for a free slot misses the target.
const SLOW: Duration = Duration::from_millis(100);

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [baton, engine, seconds] = &arguments[..] else {
        anyhow::bail!("Usage: load BATON ENGINE SECONDS");
    };
    let seconds: u64 = seconds.parse().context("SECONDS is no number")?;
    let broker = Broker::start(Path::new(baton), engine).await?;
    let mut tasks = JoinSet::new();
    let started = Arc::new(AtomicU64::new(0));
    for number in 0..WORKERS {
        let worker = worker::connect(&broker.dial, number, SLOTS).await?;
        tasks.spawn(worker::work(worker, Arc::clone(&started)));
    }
    let empty_bytes = broker.memory_bytes("VmRSS")?;
    for _ in 0..IDLE_NOTEBOOKS {
        tasks.spawn(Notebook::connect(&broker.dial).await?.idle());
    }
    let (runs, mut ended) = mpsc::channel(NOTEBOOKS);
    let mut free = VecDeque::new();
    for _ in 0..NOTEBOOKS {
        let (submit, submissions) = mpsc::channel(1);
        let notebook = Notebook::connect(&broker.dial).await?;
        tasks.spawn(notebook.run_cells(free.len(), submissions, runs.clone()));
        free.push_back((free.len(), submit));
    }
    let senders: Vec<mpsc::Sender<()>> = free.iter().map(|(_, submit)| submit.clone()).collect();

    let mut random = Xoshiro256PlusPlus::seed_from_u64(SEED);
    let between = Exp::new(CELLS_A_SECOND).context("A rate")?;
    let begun = Instant::now();
    let cpu_before = broker.cpu()?;
    let probe = Probe::start(broker.folder().join("probe"))?;
    let mut measured = Measured::new()?;
    let mut next = begun;
    while begun.elapsed() < Duration::from_secs(seconds) {
        tokio::select! {
            () = sleep_until(next) => {
                next += Duration::from_secs_f64(between.sample(&mut random));
                match free.pop_front() {
                    Some((_, submit)) => {
                        submit.send(()).await?;
                        measured.submitted += 1;
                    }
                    None => measured.found_no_notebook += 1,
                }
            }
            Some(run) = ended.recv() => {
                free.push_back((run.notebook, senders[run.notebook].clone()));
                measured.add(&run)?;
            }
            Some(task) = tasks.join_next() => task??,
        }
    }
    let cpu = broker.cpu()? - cpu_before;
    let elapsed = begun.elapsed();
    let disk = probe.finish()?;
    timeout(PATIENCE, async {
        while measured.finished < measured.submitted {
            tokio::select! {
                Some(run) = ended.recv() => measured.add(&run)?,
                Some(task) = tasks.join_next() => task??,
            }
        }
        anyhow::Ok(())
    })
    .await
    .with_context(|| format!("{} cells are lost", measured.submitted - measured.finished))??;
    anyhow::ensure!(
        started.load(Ordering::Relaxed) == measured.submitted,
        "Cells were started twice"
    );
    let assigned = |quantile| milliseconds(measured.assigned.value_at_quantile(quantile));
    let write = |quantile| milliseconds(disk.writes.value_at_quantile(quantile));
    let (slow, blamed) = measured.slow(&disk);
    let stored = broker.stored().await?;
    println!(
        "{}",
        serde_json::json!({
            "seconds": elapsed.as_secs(),
            "notebooks": NOTEBOOKS,
            "idle connections": IDLE_NOTEBOOKS,
            "workers": WORKERS,
            "cells": measured.submitted,
            "started": started.load(Ordering::Relaxed),
            "finished": measured.finished,
            "assigned p50 ms": assigned(0.5),
            "assigned p99 ms": assigned(0.99),
            "assigned max ms": assigned(1.0),
            "cells over 100 ms": slow,
            "while the disk hung": blamed,
            "disk p50 ms": write(0.5),
            "disk p99 ms": write(0.99),
            "disk max ms": write(1.0),
            "disk hung %": percent(disk.hung_for(), elapsed),
            "woken late p99 ms": milliseconds(disk.late.value_at_quantile(0.99)),
            "end to end p99 ms": milliseconds(measured.overhead.value_at_quantile(0.99)),
            "transactions": stored.transactions,
            "transaction mean ms": stored.mean_ms,
            "broker cpu %": percent(cpu, elapsed),
            "broker MB": broker.memory_bytes("VmHWM")? / 1_000_000,
            "broker MB empty": empty_bytes / 1_000_000,
        })
    );
    Ok(())
}

struct Measured {
    submitted: u64,
    finished: u64,
    found_no_notebook: u64,
    /// Microseconds from sending a cell to hearing that a worker has it.
    assigned: Histogram<u64>,
    /// Microseconds from sending a cell to hearing of its end, without what its script takes.
    overhead: Histogram<u64>,
    /// When cells were sent and assigned that took too long.
    slow: Vec<(Instant, Instant)>,
}

impl Measured {
    fn new() -> anyhow::Result<Self> {
        Ok(Self {
            submitted: 0,
            finished: 0,
            found_no_notebook: 0,
            assigned: Histogram::new(3)?,
            overhead: Histogram::new(3)?,
            slow: Vec::new(),
        })
    }

    fn add(&mut self, run: &Run) -> anyhow::Result<()> {
        self.finished += 1;
        self.assigned.record(microseconds(run.assigned))?;
        let overhead = run.finished.saturating_sub(worker::CELL);
        self.overhead.record(microseconds(overhead))?;
        if run.assigned > SLOW {
            self.slow.push((run.sent, run.sent + run.assigned));
        }
        Ok(())
    }

    /// How many took too long, and of these how many while the disk hung.
    fn slow(&self, disk: &Disk) -> (usize, usize) {
        let hung = |(sent, assigned): &&(Instant, Instant)| {
            disk.hung(sent.into_std(), assigned.into_std())
        };
        (self.slow.len(), self.slow.iter().filter(hung).count())
    }
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn percent(part: Duration, whole: Duration) -> f64 {
    (1000.0 * part.as_secs_f64() / whole.as_secs_f64()).round() / 10.0
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn milliseconds(microseconds: u64) -> f64 {
    (microseconds as f64 / 100.0).round() / 10.0
}
