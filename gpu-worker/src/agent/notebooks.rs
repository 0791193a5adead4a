//! The notebooks that have a task here, and their warm sessions.

use crate::{
    context::Context,
    job::Job,
    notebook::{Reporter, serve_notebook},
    report::Report,
};
use baton_protocol::NotebookId;
use std::{collections::HashMap, sync::Arc};
use tokio::{sync::mpsc, task::JoinSet, time::Instant};

/// How many idle sessions of one person stay warm, if the worker does not have more slots.
const MOST_WARM: usize = 8;

/// A person may keep this many times more sessions if these hold objects that no other session can hold, or deferred
/// state.
const TIMES_MORE_IF_NEEDED: usize = 2;

pub(super) struct Notebook {
    task: u64,
    /// Whose it is.
    account: u64,
    jobs: mpsc::UnboundedSender<Job>,
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
    fn is_idle(&self) -> bool {
        self.unfinished == 0 && !self.defers
    }
}

/// The notebooks of this worker.
pub(super) struct Notebooks {
    entries: HashMap<NotebookId, Notebook>,
    tasks: JoinSet<()>,
    /// How many tasks were ever started.
    task_count: u64,
    context: Arc<Context>,
    reports: mpsc::UnboundedSender<Report>,
}

impl Notebooks {
    pub(super) fn new(context: Arc<Context>, reports: mpsc::UnboundedSender<Report>) -> Self {
        Self {
            entries: HashMap::new(),
            tasks: JoinSet::new(),
            task_count: 0,
            context,
            reports,
        }
    }

    pub(super) fn enqueue(&mut self, job: Job) {
        let notebook = job.submission.notebook;
        // If the task panicked, its session is gone, so the notebook gets a new task.
        self.entries
            .retain(|of, entry| *of != notebook || !entry.jobs.is_closed());
        let entry = self.entries.entry(notebook).or_insert_with(|| {
            self.task_count += 1;
            // Bounded by the worker's slots: the broker assigns no more jobs at a time.
            let (jobs, jobs_receiver) = mpsc::unbounded_channel();
            let reporter = Reporter {
                notebook,
                task: self.task_count,
                reports: self.reports.clone(),
            };
            let context = Arc::new(self.context.of_notebook(notebook));
            self.tasks
                .spawn(serve_notebook(context, jobs_receiver, reporter));
            Notebook {
                task: self.task_count,
                account: job.account,
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

    /// Waits until a task has ended. Cancel safe.
    pub(super) async fn task_ended(&mut self) {
        if self.tasks.join_next().await.is_none() {
            std::future::pending().await
        }
    }

    /// Forgets notebooks whose task has panicked: their sessions are gone.
    pub(super) fn forget_panicked(&mut self) {
        self.entries.retain(|_, entry| !entry.jobs.is_closed());
    }

    /// The entry of a notebook, unless it has another task by now.
    pub(super) fn of_task(&mut self, notebook: NotebookId, task: u64) -> Option<&mut Notebook> {
        let entry = self.entries.get_mut(&notebook);
        entry.filter(|entry| entry.task == task)
    }

    pub(super) fn sessions(&self) -> Sessions {
        let those = |has: fn(&Notebook) -> bool| {
            let some = self.entries.iter().filter(|(_, entry)| has(entry));
            let mut some: Vec<NotebookId> = some.map(|(notebook, _)| *notebook).collect();
            some.sort_unstable();
            some
        };
        Sessions {
            warm: those(|entry| entry.warm),
            keeping: those(|entry| entry.warm && entry.keeps),
        }
    }

    /// Whether deferred state of any of them has not been sent.
    pub(super) fn defer(&self) -> bool {
        self.entries.values().any(|entry| entry.defers)
    }

    /// Whether any of them is not idle, or its session holds objects that no other session can hold.
    pub(super) fn need_this_worker(&self) -> bool {
        let needs = |entry: &Notebook| !entry.is_idle() || entry.warm && entry.keeps;
        self.entries.values().any(needs)
    }

    /// When the next notebook will have been idle for long enough to be culled.
    pub(super) fn next_cull(&self) -> Option<Instant> {
        let idle = self.entries.values().filter(|entry| entry.is_idle());
        let last_used = idle.map(|entry| entry.last_used).min()?;
        last_used.checked_add(self.context.config.session_idle)
    }

    pub(super) fn cull(&mut self) {
        let (now, idle) = (Instant::now(), self.context.config.session_idle);
        self.entries.retain(|notebook, entry| {
            let keep = !entry.is_idle() || now.duration_since(entry.last_used) < idle;
            if !keep && entry.warm {
                tracing::info!(%notebook, "The session of notebook {notebook} ends: it was idle too long");
            }
            keep
        });
    }

    /// Ends the sessions of a person that have been idle for longest, if the person has too many. Those that hold objects
    /// that no other session can hold, or deferred state, stay if there are not too many of them, either.
    pub(super) fn limit_sessions_of(&mut self, notebook: NotebookId) {
        let Some(account) = self.entries.get(&notebook).map(|entry| entry.account) else {
            return;
        };
        let most = self.context.slots.max(MOST_WARM);
        self.limit(account, most, |entry| entry.is_idle() && !entry.keeps);
        self.limit(account, most * TIMES_MORE_IF_NEEDED, |entry| {
            entry.unfinished == 0
        });
    }

    /// Ends all of an account's sessions that can be ended, except the `most` that were used last.
    fn limit(&mut self, account: u64, most: usize, can_end: fn(&Notebook) -> bool) {
        let have = |entry: &Notebook| entry.account == account && (entry.warm || entry.defers);
        let some = self.entries.iter();
        let some = some.filter(|(_, entry)| have(entry) && can_end(entry));
        let mut some: Vec<_> = some.map(|(of, entry)| (entry.last_used, *of)).collect();
        some.sort_unstable_by(|one, other| other.cmp(one));
        for (_, notebook) in some.into_iter().skip(most) {
            tracing::info!(%notebook, "The session of notebook {notebook} ends: its owner has {most} newer ones");
            self.end_session(notebook);
        }
    }

    /// Ends the session that has been idle for longest, if another session waits for its GPU. Sessions that hold
    /// objects that no other session can hold are ended last.
    pub(super) fn make_room(&mut self) {
        if *self.context.sharing.waiting().borrow() == 0 {
            return;
        }
        let idle = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.warm && entry.is_idle());
        let first = idle.min_by_key(|(_, entry)| (entry.keeps, entry.last_used));
        if let Some(notebook) = first.map(|(notebook, _)| *notebook) {
            tracing::info!(%notebook, "The session of notebook {notebook} ends: another session needs its GPU");
            self.end_session(notebook);
        }
    }

    /// The notebook's task ends when its current jobs have ended.
    pub(super) fn end_session(&mut self, notebook: NotebookId) {
        self.entries.remove(&notebook);
    }

    /// Ends all sessions.
    pub(super) async fn end(mut self) {
        self.entries.clear();
        while self.tasks.join_next().await.is_some() {}
    }
}
