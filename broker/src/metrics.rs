//! What Prometheus reads at `/metrics`.
//!
//! In: changes that the engine stores, requests, and the present at the time of the question. Out: text.
//! **Invariant:** labels are states, outcomes, workers' states, the courses of the file and the GPUs of connected workers; no persons,
//! no jobs.

use crate::{
    api::{ApiError, ask},
    dispatch::Overview,
    engine::Event,
    http::{Caller, Shared},
    store::{Phase, Write},
};
use axum::{
    Extension,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use baton_protocol::{
    Outcome,
    api::{Course, Pool, WorkerState},
    worker::GpuLoad,
};
use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// In seconds: short cells and long trainings.
const BOUNDS: [u64; 12] = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 14_400];
/// A file may name any number of courses; more than this is no use on a board.
const MOST_COURSES: usize = 100;
const MOST_GPUS: usize = 256;

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    outcomes: [AtomicU64; Outcome::ALL.len()],
    waits: Histogram,
    runs: Histogram,
    gpu_ms: AtomicU64,
    transactions: AtomicU64,
    transactions_us: AtomicU64,
    failed_transactions: AtomicU64,
    limited: AtomicU64,
}

#[derive(Debug, Default)]
struct Histogram {
    counts: [AtomicU64; BOUNDS.len()],
    count: AtomicU64,
    sum_ms: AtomicU64,
}

impl Histogram {
    fn add(&self, ms: u64) {
        let bounds = BOUNDS.iter().zip(&self.counts);
        for (_, count) in bounds.filter(|(bound, _)| ms <= **bound * 1000) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_ms.fetch_add(ms, Ordering::Relaxed);
    }
}

impl Metrics {
    /// One transaction of the engine.
    pub(crate) fn stored(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.transactions.fetch_add(1, Ordering::Relaxed);
        self.transactions_us.fetch_add(took, Ordering::Relaxed);
    }

    pub(crate) fn failed(&self) {
        self.failed_transactions.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn limited(&self) {
        self.limited.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn waited(&self, ms: u64) {
        self.waits.add(ms);
    }

    pub(crate) fn changed(&self, write: &Write) {
        match write {
            Write::Finish { outcome, .. } => {
                let place = Outcome::ALL.iter().position(|known| known == outcome);
                if let Some(count) = place.and_then(|place| self.outcomes.get(place)) {
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
            Write::Charge { run_ms, .. } => {
                self.runs.add(*run_ms);
                self.gpu_ms.fetch_add(*run_ms, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    fn text(&self, present: &Overview, courses: &[Course], pools: &[Pool]) -> String {
        let mut text = Text::default();
        let phase = |phase| {
            present
                .jobs
                .iter()
                .filter(move |job| job.phase == phase)
                .count() as u64
        };
        text.gauge(
            "baton_jobs",
            "Unfinished cells by state.",
            &[
                ("state=\"queued\"".to_owned(), phase(Phase::Queued)),
                ("state=\"assigned\"".to_owned(), phase(Phase::Assigned)),
                ("state=\"started\"".to_owned(), phase(Phase::Started)),
            ],
        );
        let workers = |state: fn(&crate::dispatch::WorkerView) -> bool| {
            present
                .workers
                .iter()
                .filter(|worker| state(worker))
                .count() as u64
        };
        text.gauge(
            "baton_workers",
            "Workers by state.",
            &[
                (
                    "state=\"open\"".to_owned(),
                    workers(|worker| worker.is_open()),
                ),
                (
                    "state=\"drained\"".to_owned(),
                    workers(|worker| worker.state() == WorkerState::Drained),
                ),
                (
                    "state=\"failing\"".to_owned(),
                    workers(|worker| worker.state() == WorkerState::Failing),
                ),
                (
                    "state=\"leaving\"".to_owned(),
                    workers(|worker| worker.state() == WorkerState::Leaving),
                ),
                (
                    "state=\"disconnected\"".to_owned(),
                    workers(|worker| worker.state() == WorkerState::Disconnected),
                ),
            ],
        );
        let one = |value| [(String::new(), value)];
        text.gauge(
            "baton_worker_slots",
            "Slots of all open workers: how many cells they can run at once.",
            &one(present.open_slots()),
        );
        let gpus = present.workers.iter().flat_map(|worker| {
            let labels = |gpu: &GpuLoad| {
                let worker = escaped(&worker.name);
                format!("worker=\"{worker}\",gpu=\"{}\"", gpu.index)
            };
            worker.gpus.iter().map(move |gpu| (labels(gpu), gpu))
        });
        let gpus: Vec<(String, &GpuLoad)> = gpus.take(MOST_GPUS).collect();
        let of_gpus = |said: fn(&GpuLoad) -> Option<u64>| -> Vec<(String, u64)> {
            let said = |(labels, gpu): &(String, &GpuLoad)| Some((labels.clone(), said(gpu)?));
            gpus.iter().filter_map(said).collect()
        };
        if !gpus.is_empty() {
            text.gauge(
                "baton_gpu_utilisation_percent",
                "How busy each GPU was in the last moment.",
                &of_gpus(|gpu| gpu.utilisation_percent.map(u64::from)),
            );
            text.gauge(
                "baton_gpu_memory_used_bytes",
                "Memory in use on each GPU.",
                &of_gpus(|gpu| Some(gpu.memory_used_bytes)),
            );
            text.gauge(
                "baton_gpu_memory_bytes",
                "Memory of each GPU.",
                &of_gpus(|gpu| Some(gpu.memory_total_bytes)),
            );
        }
        text.gauge(
            "baton_desired_workers",
            "Number of workers with which the cells that wait now would wait one minute.",
            &one(crate::scale::desired_workers(present)),
        );
        if !pools.is_empty() {
            let of_pools = |value: fn(&Pool) -> u64| -> Vec<(String, u64)> {
                let each = |pool: &Pool| (format!("pool=\"{}\"", escaped(&pool.pool)), value(pool));
                pools.iter().map(each).collect()
            };
            text.gauge(
                "baton_pool_wanted_workers",
                "Workers that each pool should have.",
                &of_pools(|pool| pool.wanted.into()),
            );
            text.gauge(
                "baton_pool_workers",
                "Workers of each pool that take cells.",
                &of_pools(|pool| pool.up.into()),
            );
            text.gauge(
                "baton_pool_pending_workers",
                "Workers that each pool was asked for and that have not come.",
                &of_pools(|pool| pool.pending.into()),
            );
            text.gauge(
                "baton_pool_paused",
                "1 for a pool that starts nothing because its workers failed, until somebody resumes it.",
                &of_pools(|pool| pool.paused.into()),
            );
        }
        let named = courses.iter().take(MOST_COURSES);
        let states = named.flat_map(|course| {
            let labels =
                |state| format!("course=\"{}\",state=\"{state}\"", escaped(&course.course));
            [
                (labels("running"), u64::from(course.running)),
                (labels("waiting"), u64::from(course.waiting)),
            ]
        });
        let states: Vec<(String, u64)> = states.collect();
        text.gauge(
            "baton_course_jobs",
            "Unfinished cells of each course.",
            &states,
        );
        let outcomes = Outcome::ALL.iter().zip(&self.outcomes);
        let outcomes = outcomes
            .map(|(outcome, count)| (format!("outcome=\"{}\"", outcome.name()), load(count)));
        let outcomes: Vec<(String, u64)> = outcomes.collect();
        text.counter(
            "baton_jobs_finished_total",
            "Finished cells by outcome.",
            &outcomes,
        );
        text.histogram(
            "baton_job_wait_seconds",
            "Time from submission to start.",
            &self.waits,
        );
        text.histogram("baton_job_run_seconds", "Run time of cells.", &self.runs);
        text.seconds(
            "baton_gpu_seconds_total",
            "Charged GPU time.",
            load(&self.gpu_ms),
            1e3,
        );
        let count = one(load(&self.transactions));
        text.counter(
            "baton_transactions_total",
            "Database transactions of the queue.",
            &count,
        );
        text.seconds(
            "baton_transaction_seconds_total",
            "Time spent in database transactions of the queue.",
            load(&self.transactions_us),
            1e6,
        );
        let failed = one(load(&self.failed_transactions));
        text.counter(
            "baton_transactions_failed_total",
            "Failed database transactions.",
            &failed,
        );
        let limited = one(load(&self.limited));
        text.counter(
            "baton_requests_limited_total",
            "Requests refused because of the rate limit of their token.",
            &limited,
        );
        text.0
    }
}

fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

fn escaped(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Writing to a string cannot fail.
#[derive(Default)]
struct Text(String);

impl Text {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn values(&mut self, name: &str, values: &[(String, u64)]) {
        for (labels, value) in values {
            let _ = match labels.as_str() {
                "" => writeln!(self.0, "{name} {value}"),
                labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
            };
        }
    }

    fn gauge(&mut self, name: &str, help: &str, values: &[(String, u64)]) {
        self.head(name, "gauge", help);
        self.values(name, values);
    }

    fn counter(&mut self, name: &str, help: &str, values: &[(String, u64)]) {
        self.head(name, "counter", help);
        self.values(name, values);
    }

    fn seconds(&mut self, name: &str, help: &str, value: u64, in_a_second: f64) {
        self.head(name, "counter", help);
        let _ = writeln!(self.0, "{name} {}", value as f64 / in_a_second);
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        for (bound, count) in BOUNDS.iter().zip(&histogram.counts) {
            let _ = writeln!(self.0, "{name}_bucket{{le=\"{bound}\"}} {}", load(count));
        }
        let (count, sum) = (load(&histogram.count), load(&histogram.sum_ms) as f64 / 1e3);
        let _ = writeln!(
            self.0,
            "{name}_bucket{{le=\"+Inf\"}} {count}\n{name}_sum {sum}\n{name}_count {count}"
        );
    }
}

/// For admins and whoever has the broker's own token: courses are named here.
pub(crate) async fn show(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    if !caller.identity.may_steer_workers() {
        return Err(ApiError::AdminsOnly);
    }
    let present = ask(&shared, Event::Overview).await?;
    let courses = crate::api::courses_of(&shared, &caller).await?;
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4")];
    Ok((
        kind,
        shared.metrics.text(&present, &courses, &shared.pools.all()),
    )
        .into_response())
}
