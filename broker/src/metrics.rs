//! The metrics that Prometheus reads at `/metrics`.
//!
//! In: changes that the engine stores, requests, and the present at the time of the request. Out: text, and for live
//! pages, how often finished jobs have changed.
//!
//! **Invariant:** labels are states, outcomes, states of workers, pools, courses of the file, and
//! GPUs of connected workers. They never name people or jobs.

use crate::desired_workers::desired_workers;
use baton_broker_queue::{Overview, Phase, WorkerView, Write};
use baton_protocol::{
    Outcome,
    api::{Course, Pool, WorkerState},
    worker::GpuLoad,
};
use prometheus_client::{
    encoding::prometheus_text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Metric, Registry},
};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// In seconds: from a start that a student does not notice, through short cells, to long trainings.
const BOUNDS: [f64; 20] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0, 600.0, 3600.0, 14_400.0,
];
/// A file may name any number of courses; more than this would be useless on a dashboard.
const MOST_COURSES: usize = 100;
const MOST_GPUS: usize = 256;

type Labels = Vec<(&'static str, String)>;
type Seconds = Counter<f64, AtomicU64>;

/// Counts since the start of the broker.
pub(crate) struct Metrics {
    registry: Registry,
    finished: Family<Labels, Counter>,
    waits: Histogram,
    runs: Histogram,
    gpu: Seconds,
    transactions: Counter,
    transaction_time: Seconds,
    failed_transactions: Counter,
    limited: Counter,
    finished_changes: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("baton");
        let finished: Family<Labels, Counter> = registered(
            &mut registry,
            "jobs_finished",
            "Finished cells by outcome",
            Family::default(),
        );
        for outcome in Outcome::ALL {
            let _ = finished.get_or_create(&labels("outcome", outcome.name()));
        }
        let new = &mut registry;
        Self {
            finished,
            waits: registered(
                new,
                "job_wait_seconds",
                "Time from submission to start",
                Histogram::new(BOUNDS),
            ),
            runs: registered(
                new,
                "job_run_seconds",
                "Run time of cells",
                Histogram::new(BOUNDS),
            ),
            gpu: registered(new, "gpu_seconds", "Charged GPU time", Seconds::default()),
            transactions: registered(
                new,
                "transactions",
                "Database transactions of the queue",
                Counter::default(),
            ),
            transaction_time: registered(
                new,
                "transaction_seconds",
                "Time spent in database transactions of the queue",
                Seconds::default(),
            ),
            failed_transactions: registered(
                new,
                "transactions_failed",
                "Failed database transactions",
                Counter::default(),
            ),
            limited: registered(
                new,
                "requests_limited",
                "Requests refused because of the rate limit of their token",
                Counter::default(),
            ),
            finished_changes: AtomicU64::default(),
            registry,
        }
    }
}

impl Metrics {
    /// Counts one transaction of the engine.
    pub(crate) fn stored(&self, took: Duration) {
        self.transactions.inc();
        self.transaction_time.inc_by(took.as_secs_f64());
    }

    pub(crate) fn failed(&self) {
        self.failed_transactions.inc();
    }

    pub(crate) fn limited(&self) {
        self.limited.inc();
    }

    pub(crate) fn waited(&self, ms: u64) {
        self.waits.observe(seconds(ms));
    }

    /// How many stored changes have added, changed or removed a finished job.
    pub(crate) fn finished_changes(&self) -> u64 {
        self.finished_changes.load(Ordering::Acquire)
    }

    /// Counts a change that is stored.
    pub(crate) fn changed(&self, write: &Write) {
        if let Write::Finish { .. } | Write::GiveUp { .. } | Write::Remove { .. } = write {
            self.finished_changes.fetch_add(1, Ordering::Release);
        }
        match write {
            Write::Finish { outcome, .. } => {
                let outcome = labels("outcome", outcome.name());
                self.finished.get_or_create(&outcome).inc();
            }
            Write::Charge { run_ms, .. } => {
                self.runs.observe(seconds(*run_ms));
                self.gpu.inc_by(seconds(*run_ms));
            }
            _ => {}
        }
    }

    /// All counts and the present values, in the text format of Prometheus.
    pub(crate) fn text(&self, present: &Overview, courses: &[Course], pools: &[Pool]) -> String {
        let mut now = Present(Registry::with_prefix("baton"));
        now.queue(present);
        now.workers(present);
        now.gpus(present);
        now.pools(pools);
        now.courses(courses);
        let mut text = String::new();
        for registry in [&now.0, &self.registry] {
            encode(&mut text, registry).expect("a string takes all text");
        }
        text
    }
}

fn registered<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

fn seconds(ms: u64) -> f64 {
    Duration::from_millis(ms).as_secs_f64()
}

fn labels(name: &'static str, value: &str) -> Labels {
    vec![(name, value.to_owned())]
}

/// The values at the time of the request.
struct Present(Registry);

impl Present {
    fn gauge(&mut self, name: &str, help: &str, values: impl IntoIterator<Item = (Labels, u64)>) {
        let family = Family::<Labels, Gauge<u64, AtomicU64>>::default();
        for (labels, value) in values {
            family.get_or_create(&labels).set(value);
        }
        self.0.register(name, help, family);
    }

    fn queue(&mut self, present: &Overview) {
        let phases = [
            ("queued", Phase::Queued),
            ("assigned", Phase::Assigned),
            ("started", Phase::Started),
        ];
        let jobs = phases.map(|(name, phase)| {
            let jobs = present.jobs.iter().filter(|job| job.phase == phase);
            (labels("state", name), jobs.count() as u64)
        });
        self.gauge("jobs", "Unfinished cells by state", jobs);
        let desired = desired_workers(present);
        self.gauge(
            "desired_workers",
            "Number of workers that would start all waiting cells within a minute",
            [(Labels::new(), desired)],
        );
    }

    fn workers(&mut self, present: &Overview) {
        let states = [
            ("drained", WorkerState::Drained),
            ("failing", WorkerState::Failing),
            ("leaving", WorkerState::Leaving),
            ("disconnected", WorkerState::Disconnected),
        ];
        let count = |state: &dyn Fn(&WorkerView) -> bool| {
            let workers = present.workers.iter().filter(|worker| state(worker));
            workers.count() as u64
        };
        let open = (labels("state", "open"), count(&WorkerView::is_open));
        let others = states.map(|(name, state)| {
            let workers = count(&|worker| worker.state() == state);
            (labels("state", name), workers)
        });
        let workers = std::iter::once(open).chain(others);
        self.gauge("workers", "Workers by state", workers);
        self.gauge(
            "worker_slots",
            "Slots of all open workers: how many cells they can run at once",
            [(Labels::new(), present.open_slots())],
        );
    }

    fn gpus(&mut self, present: &Overview) {
        let gpus = present.workers.iter().flat_map(|worker| {
            let labels = |gpu: &GpuLoad| {
                vec![
                    ("worker", worker.name.clone()),
                    ("gpu", gpu.index.to_string()),
                ]
            };
            worker.gpus.iter().map(move |gpu| (labels(gpu), gpu))
        });
        let gpus: Vec<(Labels, &GpuLoad)> = gpus.take(MOST_GPUS).collect();
        if gpus.is_empty() {
            return;
        }
        let of_gpus = |said: fn(&GpuLoad) -> Option<u64>| -> Vec<(Labels, u64)> {
            let said = |(labels, gpu): &(Labels, &GpuLoad)| Some((labels.clone(), said(gpu)?));
            gpus.iter().filter_map(said).collect()
        };
        self.gauge(
            "gpu_utilisation_percent",
            "Current utilization of each GPU, in percent",
            of_gpus(|gpu| gpu.utilisation_percent.map(u64::from)),
        );
        self.gauge(
            "gpu_memory_used_bytes",
            "Memory in use on each GPU",
            of_gpus(|gpu| Some(gpu.memory_used_bytes)),
        );
        self.gauge(
            "gpu_memory_bytes",
            "Memory of each GPU",
            of_gpus(|gpu| Some(gpu.memory_total_bytes)),
        );
    }

    fn pools(&mut self, pools: &[Pool]) {
        if pools.is_empty() {
            return;
        }
        let of_pools = |value: fn(&Pool) -> u64| -> Vec<(Labels, u64)> {
            let each = |pool: &Pool| (labels("pool", &pool.pool), value(pool));
            pools.iter().map(each).collect()
        };
        self.gauge(
            "pool_wanted_workers",
            "Workers that each pool should have",
            of_pools(|pool| pool.wanted.into()),
        );
        self.gauge(
            "pool_workers",
            "Workers of each pool that take cells",
            of_pools(|pool| pool.up.into()),
        );
        self.gauge(
            "pool_pending_workers",
            "Workers that each pool has requested and that have not connected yet",
            of_pools(|pool| pool.pending.into()),
        );
        self.gauge(
            "pool_paused",
            "1 for a pool that is paused because its workers failed, until an admin resumes it",
            of_pools(|pool| pool.paused.into()),
        );
    }

    fn courses(&mut self, courses: &[Course]) {
        let named = courses.iter().take(MOST_COURSES);
        let states = named.flat_map(|course| {
            let of = |state: &str, jobs: u32| {
                let labels = vec![
                    ("course", course.course.clone()),
                    ("state", state.to_owned()),
                ];
                (labels, u64::from(jobs))
            };
            [of("running", course.running), of("waiting", course.waiting)]
        });
        self.gauge("course_jobs", "Unfinished cells of each course", states);
    }
}
