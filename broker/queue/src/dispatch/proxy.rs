//! Messages of proxies.

use super::{
    Abandoned, Action, ConnectionId, Dispatch, Job, Now, Observation, Peer, Phase, Remainder,
    Subscription,
};
use crate::{Account, Unwelcome, record::Write};
use baton_humanize::{SAFE, one_line};
use baton_protocol::{
    Answer, JobId, NotebookId, Outcome, Refusal, RemoteError, Submission,
    proxy::{FromProxy, ToProxy},
    worker::ToWorker,
};
use std::sync::Arc;

/// The longest name of a notebook, in characters: a page has room for no more.
const LONGEST_NAME: usize = 200;

impl Dispatch {
    /// Only the newest connection of a notebook counts.
    pub fn on_proxy_connected(
        &mut self,
        connection: ConnectionId,
        id: NotebookId,
        account: Account,
        actions: &mut Vec<Action>,
    ) {
        if !self.peers.is_of(id, &account) {
            let refused = ToProxy::Refused(Refusal::NotYours {});
            actions.push(Action::ToProxy(connection, refused));
            actions.push(Action::Close(connection));
            return;
        }
        let notebook = self.peers.notebooks.entry(id).or_default();
        if let Some(older) = notebook.connection.replace(connection) {
            actions.push(Action::Close(older));
        }
        let autosave = self.accounts.courses().of(&account.course).autosave;
        notebook.account = Some(account);
        notebook.deadline = None;
        notebook.subscriptions.clear();
        self.peers.by_connection.insert(connection, Peer::Proxy(id));
        let broker_version = env!("CARGO_PKG_VERSION").to_owned();
        actions.push(Action::ToProxy(
            connection,
            ToProxy::Welcome {
                broker_version,
                autosave,
            },
        ));
    }

    pub fn on_proxy_message(
        &mut self,
        connection: ConnectionId,
        message: FromProxy,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let Some(Peer::Proxy(notebook)) = self.peers.by_connection.get(&connection).copied() else {
            return;
        };
        match message {
            FromProxy::Submit(submission) if submission.notebook == notebook => {
                self.submit(connection, submission, now, actions);
            }
            FromProxy::GivenUp { job, outcome } if self.jobs.closed(job) == Some(notebook) => {
                self.on_closed_job_given_up(connection, job, outcome, actions);
            }
            FromProxy::Attach { job, after } => {
                self.attach(connection, notebook, (job, after), actions);
            }
            // A repeated hello changes nothing.
            FromProxy::Hello { .. } => {}
            FromProxy::Submit(Submission { job, .. })
            | FromProxy::Answer { job, .. }
            | FromProxy::Resume { job, .. }
            | FromProxy::Detach { job }
            | FromProxy::Cancel { job }
            | FromProxy::DeferredWanted { job }
            | FromProxy::Applied { job }
            | FromProxy::GivenUp { job, .. }
                if !self.belongs(job, notebook) =>
            {
                self.forgotten(connection, job, actions);
            }
            FromProxy::Submit(_) => {}
            FromProxy::Answer {
                job,
                question,
                answer,
            } => self.answer(connection, job, question, answer, actions),
            FromProxy::Resume { job, after } => {
                self.adopt(job, actions);
                self.resume(connection, job, after, now, actions);
            }
            FromProxy::Detach { job } => self.on_detach(job, now, actions),
            FromProxy::Cancel { job } => {
                actions.push(Action::ToProxy(connection, ToProxy::Cancelling { job }));
                self.cancel(job, now, actions);
            }
            FromProxy::DeferredWanted { job } => self.deferred_wanted(connection, job, actions),
            FromProxy::Applied { job } => self.abandon(job, Abandoned::AsItEnded, now, actions),
            FromProxy::GivenUp { job, outcome } => {
                let how = outcome.map_or(Abandoned::NoTrace, Abandoned::Reported);
                self.abandon(job, how, now, actions);
            }
            FromProxy::Goodbye {} => self.on_goodbye(notebook, now, actions),
        }
    }

    /// Handles a refused message: no part of it reaches a worker. If a new cell is too large, no
    /// record of it remains.
    pub fn on_proxy_refused(
        &mut self,
        connection: ConnectionId,
        message: FromProxy,
        why: &Unwelcome,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let Some(Peer::Proxy(notebook)) = self.peers.by_connection.get(&connection).copied() else {
            return;
        };
        let id = match message {
            FromProxy::Submit(submission) if submission.notebook == notebook => {
                let id = submission.job;
                let is_new = !self.jobs.knows(id);
                if is_new && *why != Unwelcome::Foreign {
                    return self.too_large(connection, id, why, actions);
                }
                self.submit(connection, submission, now, actions);
                if !is_new {
                    return;
                }
                id
            }
            FromProxy::Answer { job, .. } if self.belongs(job, notebook) => job,
            _ => return,
        };
        self.end_unwelcome(id, why, now, actions);
    }

    /// A stored cell is too large for its worker, so the worker did not get it.
    pub fn on_not_sent(&mut self, id: JobId, bytes: usize, now: Now, actions: &mut Vec<Action>) {
        self.end_unwelcome(id, &Unwelcome::Message { bytes }, now, actions);
    }

    fn end_unwelcome(&mut self, id: JobId, why: &Unwelcome, now: Now, actions: &mut Vec<Action>) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        actions.push(Action::Log(Observation::MessageRefused {
            job: id,
            why: why.clone(),
        }));
        match job.phase() {
            Phase::Finished => {}
            Phase::Queued | Phase::Assigned => {
                let error = RemoteError {
                    name: "GpuServiceError".to_owned(),
                    value: format!("{why}. {SAFE}"),
                    traceback: Vec::new(),
                    hint: Some(format!("{}, or show a TA job {id}", why.hint())),
                };
                self.finish(id, Outcome::Refused, Some(error), now, actions);
            }
            Phase::Started => {
                job.stopped = Some(why.to_string());
                self.cancel(id, now, actions);
            }
        }
    }

    /// Reports a job that does not exist.
    pub(super) fn forgotten(
        &self,
        connection: ConnectionId,
        job: JobId,
        actions: &mut Vec<Action>,
    ) {
        actions.push(Action::ToProxy(connection, ToProxy::UnknownJob { job }));
    }

    /// The stored events up to `through` have been sent.
    pub fn on_caught_up(
        &mut self,
        connection: ConnectionId,
        job: JobId,
        through: u64,
        actions: &mut Vec<Action>,
    ) {
        let Some(Peer::Proxy(notebook)) = self.peers.by_connection.get(&connection).copied() else {
            return;
        };
        if self.belongs(job, notebook) {
            self.subscribe(connection, job, through, actions);
        }
    }

    fn belongs(&self, job: JobId, notebook: NotebookId) -> bool {
        self.jobs
            .get(job)
            .is_some_and(|job| job.follower() == notebook)
    }

    fn submit(
        &mut self,
        connection: ConnectionId,
        submission: Submission,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let (id, notebook) = (submission.job, submission.notebook);
        let open = self.jobs.get(id).map(|job| job.notebook);
        match open.or_else(|| self.jobs.closed(id)) {
            // Another notebook must not learn that the job exists.
            Some(of) if of != notebook => self.forgotten(connection, id, actions),
            Some(_) if open.is_none() => self.submitted_again(connection, id, actions),
            Some(_) if self.peers.is_followed(id, notebook) => {}
            Some(_) => self.resume(connection, id, 0, now, actions),
            None if self.has_too_many(notebook) => self.one_too_many(connection, id, actions),
            None => self.accept(submission, now, actions),
        }
    }

    fn accept(&mut self, mut submission: Submission, now: Now, actions: &mut Vec<Action>) {
        let id = submission.job;
        let Some(notebook) = self.peers.notebooks.get_mut(&submission.notebook) else {
            return;
        };
        let Some(account) = notebook.account.clone() else {
            return;
        };
        notebook.subscriptions.insert(id, Subscription::Live);
        let name = submission.notebook_name.chars().take(LONGEST_NAME);
        submission.notebook_name = one_line(&name.collect::<String>());
        submission.cell.gpu = submission.cell.gpu.as_deref().map(one_line);
        let granted = self.accounts.grant(&account, &mut submission.cell);
        let submission = Arc::new(submission);
        self.peers
            .owners
            .insert(submission.notebook, account.owner.clone());
        let write = self.jobs.add(submission, account.clone(), now.unix_ms);
        actions.push(Action::Write(write));
        self.foresee(id);
        self.history.submitted(&account, now.unix_ms);
        if let Err(refusal) = granted {
            self.finish(id, Outcome::Refused, Some(refusal), now, actions);
        }
        self.disordered = true;
    }

    /// No answer is kept for a worker that is disconnected: it asks its open questions again when it
    /// reconnects. A later assignment also starts from a new state.
    fn answer(
        &mut self,
        from: ConnectionId,
        id: JobId,
        question: u64,
        answer: Answer,
        actions: &mut Vec<Action>,
    ) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        if let Answer::State(state) = &answer {
            let wanted = job.state_wanted.take_if(|wanted| *wanted == question);
            if wanted.is_none() || !matches!(job.phase(), Phase::Queued | Phase::Assigned) {
                return;
            }
            job.submission = None;
            actions.push(Action::Write(Write::ReplaceState {
                job: id,
                state: Box::new(state.clone()),
            }));
        }
        let job = self.jobs.get(id).filter(|job| job.is_running());
        if let Some(to) = job.and_then(|job| self.peers.runner(job)) {
            let message = ToWorker::Answer {
                job: id,
                question,
                answer,
            };
            actions.push(Action::Relay { from, to, message });
        }
    }

    fn resume(
        &mut self,
        connection: ConnectionId,
        id: JobId,
        after: u64,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        if !self.claim(id, after) {
            self.proxy_is_ahead(connection, id, now, actions);
            return;
        }
        self.subscribe(connection, id, after, actions);
        if let Some(job) = self.jobs.get_mut(id)
            && let Some(waiting) = job.waiting.clone()
        {
            actions.push(Action::ToProxy(connection, waiting.message(id, now)));
            job.shown = Some((waiting, now.instant));
        }
    }

    pub(super) fn subscribe(
        &mut self,
        connection: ConnectionId,
        id: JobId,
        after: u64,
        actions: &mut Vec<Action>,
    ) {
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        let Some(notebook) = self.peers.notebooks.get_mut(&job.follower()) else {
            return;
        };
        let subscription = if after >= job.last_event() {
            Subscription::Live
        } else {
            actions.push(Action::CatchUp {
                connection,
                job: id,
                after,
            });
            Subscription::CatchingUp
        };
        notebook.subscriptions.insert(id, subscription);
    }

    pub(super) fn cancel(&mut self, id: JobId, now: Now, actions: &mut Vec<Action>) {
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        let runner = self.peers.runner(job);
        match (job.phase(), runner) {
            (Phase::Finished, _) => return,
            // As far as the broker knows it has not started, so it can end here. If the worker
            // reconnects with it, the broker revokes it.
            (Phase::Queued, _) | (Phase::Assigned, None) => {
                self.finish_cancelled(id, now, actions);
                return;
            }
            (Phase::Assigned | Phase::Started, _) if job.cancel_wanted => return,
            (Phase::Assigned | Phase::Started, Some(connection)) => {
                actions.push(Action::ToWorker(connection, ToWorker::Cancel { job: id }));
            }
            // The worker gets `Cancel` when it reconnects.
            (Phase::Started, None) => {}
        }
        if let Some(job) = self.jobs.get_mut(id) {
            job.cancel_wanted = true;
            let stopped = job.stopped.clone();
            actions.push(Action::Write(Write::WantCancel { job: id, stopped }));
        }
    }

    /// If the worker has nothing left of the job, it has already reported that.
    fn deferred_wanted(&mut self, from: ConnectionId, id: JobId, actions: &mut Vec<Action>) {
        let is_due =
            |job: &&mut Job| matches!(job.remainder(), Remainder::Deferred | Remainder::Sent);
        let Some(job) = self.jobs.get_mut(id).filter(is_due) else {
            return;
        };
        job.deferred_wanted = true;
        if let Some(to) = self.jobs.get(id).and_then(|job| self.peers.runner(job)) {
            let message = ToWorker::DeferredWanted { job: id };
            actions.push(Action::Relay { from, to, message });
        }
    }

    pub(super) fn abandon(
        &mut self,
        id: JobId,
        how: Abandoned,
        now: Now,
        actions: &mut Vec<Action>,
    ) {
        let Some(job) = self.jobs.get_mut(id) else {
            return;
        };
        job.abandoned = Some(how);
        match job.phase() {
            Phase::Finished => self.close(id, actions),
            _ => self.cancel(id, now, actions),
        }
    }

    /// The job was closed while its notebook was disconnected. The notebook has shown another outcome.
    fn on_closed_job_given_up(
        &self,
        connection: ConnectionId,
        job: JobId,
        outcome: Option<Outcome>,
        actions: &mut Vec<Action>,
    ) {
        actions.push(Action::Write(match outcome {
            Some(outcome) => Write::GiveUp { job, outcome },
            None => Write::Remove { job },
        }));
        actions.push(Action::ToProxy(connection, ToProxy::Closed { job }));
    }
}
