//! The notebooks that have a task here, and their warm sessions.

use std::sync::Arc;

use baton_protocol::NotebookId;
use baton_protocol::worker::FromWorker;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::Agent;
use crate::job::Order;
use crate::notebook::{Reporter, serve_notebook};

pub(super) struct Notebook {
    pub(super) task: u64,
    pub(super) orders: mpsc::UnboundedSender<Order>,
    /// Orders that are not over yet.
    pub(super) jobs: usize,
    pub(super) warm: bool,
    /// Its session still has what the notebook lacks.
    pub(super) owes: bool,
    pub(super) last_used: Instant,
}

impl Notebook {
    pub(super) fn is_idle(&self) -> bool {
        self.jobs == 0 && !self.owes
    }
}

impl Agent {
    pub(super) fn order(&mut self, notebook: NotebookId, order: Order) {
        // A task that panicked took its session with it; the notebook gets another one.
        self.notebooks
            .retain(|of, entry| *of != notebook || !entry.orders.is_closed());
        let entry = self.notebooks.entry(notebook).or_insert_with(|| {
            self.task_count += 1;
            let (orders, orders_end) = mpsc::unbounded_channel();
            let reporter = Reporter {
                notebook,
                task: self.task_count,
                reports: self.reports.clone(),
            };
            let context = Arc::new(self.context.of_notebook(notebook));
            self.tasks
                .spawn(serve_notebook(context, orders_end, reporter));
            Notebook {
                task: self.task_count,
                orders,
                jobs: 0,
                warm: false,
                owes: false,
                last_used: Instant::now(),
            }
        });
        entry.jobs += 1;
        // An order that is not taken says so itself.
        let _ = entry.orders.send(order);
    }

    /// Notebooks with a session that can go on.
    pub(super) fn warm(&self) -> Vec<NotebookId> {
        let warm = self.notebooks.iter().filter(|(_, entry)| entry.warm);
        let mut warm: Vec<NotebookId> = warm.map(|(notebook, _)| *notebook).collect();
        warm.sort_unstable();
        warm
    }

    /// When the next notebook has been idle for long enough.
    pub(super) fn next_cull(&self) -> Option<Instant> {
        let idle = self.notebooks.values().filter(|entry| entry.is_idle());
        let last_used = idle.map(|entry| entry.last_used).min()?;
        last_used.checked_add(self.context.config.session_idle)
    }

    /// Ends the session that was idle for longest, where another waits for its GPU.
    pub(super) async fn make_room(&mut self) {
        if *self.context.sharing.waiting().borrow() == 0 {
            return;
        }
        let before = self.warm();
        let idle = self
            .notebooks
            .iter()
            .filter(|(_, entry)| entry.warm && entry.is_idle());
        let longest = idle.min_by_key(|(_, entry)| entry.last_used);
        if let Some(notebook) = longest.map(|(notebook, _)| *notebook) {
            tracing::info!(%notebook, "The session of notebook {notebook} ends: another waits for its GPU");
            self.notebooks.remove(&notebook);
        }
        self.say_sessions(&before).await;
    }

    pub(super) async fn cull(&mut self) {
        let before = self.warm();
        let (now, idle) = (Instant::now(), self.context.config.session_idle);
        self.notebooks.retain(|notebook, entry| {
            let keep = !entry.is_idle() || now.duration_since(entry.last_used) < idle;
            if !keep && entry.warm {
                tracing::info!(%notebook, "The session of notebook {notebook} ends: it was idle for long");
            }
            keep
        });
        self.say_sessions(&before).await;
    }

    pub(super) async fn say_sessions(&mut self, before: &[NotebookId]) {
        let warm = self.warm();
        if warm != before {
            self.line.send(&FromWorker::Sessions { warm }).await;
        }
    }
}
