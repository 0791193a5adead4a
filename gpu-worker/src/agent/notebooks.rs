//! The notebooks that have a task here, and their warm sessions.

use super::Agent;
use crate::{
    job::Job,
    notebook::{Reporter, serve_notebook},
};
use baton_protocol::{NotebookId, worker::FromWorker};
use std::sync::Arc;
use tokio::{sync::mpsc, time::Instant};

pub(super) struct Notebook {
    pub(super) task: u64,
    pub(super) jobs: mpsc::UnboundedSender<Job>,
    /// How many of its jobs have not ended yet.
    pub(super) unfinished: usize,
    pub(super) warm: bool,
    /// There is deferred state that the notebook still lacks.
    pub(super) defers: bool,
    /// Its session holds objects that no other session can hold.
    pub(super) keeps: bool,
    pub(super) last_used: Instant,
}

/// What the broker knows about the sessions here.
#[derive(PartialEq, Eq)]
pub(super) struct Sessions {
    /// Notebooks whose session can run another cell.
    pub(super) warm: Vec<NotebookId>,
    /// Those of them whose session holds objects that no other session can hold.
    pub(super) keeping: Vec<NotebookId>,
}

impl Notebook {
    pub(super) fn is_idle(&self) -> bool {
        self.unfinished == 0 && !self.defers
    }
}

impl Agent {
    pub(super) fn enqueue(&mut self, notebook: NotebookId, job: Job) {
        // If the task panicked, its session is gone, so the notebook gets a new task.
        self.notebooks
            .retain(|of, entry| *of != notebook || !entry.jobs.is_closed());
        let entry = self.notebooks.entry(notebook).or_insert_with(|| {
            self.task_count += 1;
            let (jobs, jobs_end) = mpsc::unbounded_channel();
            let reporter = Reporter {
                notebook,
                task: self.task_count,
                reports: self.reports.clone(),
            };
            let context = Arc::new(self.context.of_notebook(notebook));
            self.tasks
                .spawn(serve_notebook(context, jobs_end, reporter));
            Notebook {
                task: self.task_count,
                jobs,
                unfinished: 0,
                warm: false,
                defers: false,
                keeps: false,
                last_used: Instant::now(),
            }
        });
        entry.unfinished += 1;
        // If the task cannot receive the job, dropping it reports that (`EndGuard`).
        let _ = entry.jobs.send(job);
    }

    pub(super) fn sessions(&self) -> Sessions {
        let those = |has: fn(&Notebook) -> bool| {
            let some = self.notebooks.iter().filter(|(_, entry)| has(entry));
            let mut some: Vec<NotebookId> = some.map(|(notebook, _)| *notebook).collect();
            some.sort_unstable();
            some
        };
        Sessions {
            warm: those(|entry| entry.warm),
            keeping: those(|entry| entry.warm && entry.keeps),
        }
    }

    /// When the next notebook will have been idle for long enough to be culled.
    pub(super) fn next_cull(&self) -> Option<Instant> {
        let idle = self.notebooks.values().filter(|entry| entry.is_idle());
        let last_used = idle.map(|entry| entry.last_used).min()?;
        last_used.checked_add(self.context.config.session_idle)
    }

    /// Ends the session that has been idle for longest, if another session waits for its GPU. Sessions that hold
    /// objects that no other session can hold are ended last.
    pub(super) async fn make_room(&mut self) {
        if *self.context.sharing.waiting().borrow() == 0 {
            return;
        }
        let before = self.sessions();
        let idle = self
            .notebooks
            .iter()
            .filter(|(_, entry)| entry.warm && entry.is_idle());
        let first = idle.min_by_key(|(_, entry)| (entry.keeps, entry.last_used));
        if let Some(notebook) = first.map(|(notebook, _)| *notebook) {
            tracing::info!(%notebook, "The session of notebook {notebook} ends: another session needs its GPU");
            self.notebooks.remove(&notebook);
        }
        self.report_sessions(&before).await;
    }

    pub(super) async fn cull(&mut self) {
        let before = self.sessions();
        let (now, idle) = (Instant::now(), self.context.config.session_idle);
        self.notebooks.retain(|notebook, entry| {
            let keep = !entry.is_idle() || now.duration_since(entry.last_used) < idle;
            if !keep && entry.warm {
                tracing::info!(%notebook, "The session of notebook {notebook} ends: it was idle too long");
            }
            keep
        });
        self.report_sessions(&before).await;
    }

    pub(super) async fn report_sessions(&mut self, before: &Sessions) {
        let now = self.sessions();
        if now != *before {
            let Sessions { warm, keeping } = now;
            self.line
                .send(&FromWorker::Sessions { warm, keeping })
                .await;
        }
    }
}
