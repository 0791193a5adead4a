//! Messages of proxies.

use super::{
    Action, Batch, ConnectionId, Dispatch, Job, Observation, Peer, Phase, Remainder, Subscription,
    estimate, graces,
    job::Abandoned,
    lost_records::{self, Claim},
    orphans::{self, EventsAfter},
    refusals,
    transitions::{abandon, cancel, end_by_broker, stop},
};
use crate::{Account, StopReason, Unwelcome, record::Write};
use baton_humanize::one_line;
use baton_protocol::{
    Answer, JobId, NotebookId, Outcome, Refusal, RemoteError, Submission,
    proxy::{FromProxy, ToProxy},
    wording::with_safety,
    worker::ToWorker,
};
use std::sync::Arc;

/// The longest text of a submission that people read, in characters: a page has room for no more.
const LONGEST_TEXT: usize = 200;

pub(super) fn on_connected(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    id: NotebookId,
    account: Account,
    batch: &mut Batch,
) {
    if !dispatch.peers.is_of(id, &account) {
        let refused = ToProxy::Refused(Refusal::NotYours {});
        batch.send_proxy(connection, refused);
        batch.close(connection);
        return;
    }
    let notebook = dispatch.peers.notebooks.entry(id).or_default();
    if let Some(older) = notebook.connection.replace(connection) {
        // What its reader still reports must not change what the newer connection has subscribed to.
        dispatch.peers.by_connection.remove(&older);
        batch.close(older);
    }
    let autosave = dispatch.accounts.courses().of(&account.course).autosave;
    let course = Some(account.course.clone()).filter(|course| !course.is_empty());
    notebook.account = Some(account);
    notebook.deadline = None;
    notebook.subscriptions.clear();
    dispatch
        .peers
        .by_connection
        .insert(connection, Peer::Proxy(id));
    let broker_version = env!("CARGO_PKG_VERSION").to_owned();
    batch.send_proxy(
        connection,
        ToProxy::Welcome {
            broker_version,
            autosave,
            course,
        },
    );
}

pub(super) fn on_message(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    message: FromProxy,
    batch: &mut Batch,
) {
    let Some(Peer::Proxy(notebook)) = dispatch.peers.by_connection.get(&connection).copied() else {
        return;
    };
    match message {
        FromProxy::Submit(submission) if submission.notebook == notebook => {
            submit(dispatch, connection, submission, batch);
        }
        FromProxy::GivenUp { job, outcome } if dispatch.jobs.closed(job) == Some(notebook) => {
            on_closed_job_given_up(connection, job, outcome, batch);
        }
        FromProxy::Attach { job, after } => {
            let events = EventsAfter { job, number: after };
            orphans::attach(dispatch, connection, notebook, events, batch);
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
            if !belongs(dispatch, job, notebook) =>
        {
            refusals::unknown_job(connection, job, batch);
        }
        FromProxy::Submit(_) => {}
        FromProxy::Answer {
            job,
            question,
            answer,
        } => on_answer(dispatch, connection, job, question, answer, batch),
        FromProxy::Resume { job, after } => {
            orphans::adopt(dispatch, job, batch);
            resume(dispatch, connection, job, after, batch);
        }
        FromProxy::Detach { job } => orphans::on_detach(dispatch, connection, job, batch),
        FromProxy::Cancel { job } => {
            batch.send_proxy(connection, ToProxy::Cancelling { job });
            cancel(dispatch, job, batch);
        }
        FromProxy::DeferredWanted { job } => deferred_wanted(dispatch, connection, job, batch),
        FromProxy::Applied { job } => abandon(dispatch, job, Abandoned::AsItEnded, batch),
        FromProxy::GivenUp { job, outcome } => {
            let how = outcome.map_or(Abandoned::NoTrace, Abandoned::Reported);
            abandon(dispatch, job, how, batch);
        }
        FromProxy::Goodbye {} => {
            dispatch.peers.by_connection.remove(&connection);
            batch.close(connection);
            graces::on_goodbye(dispatch, notebook, batch);
        }
    }
}

pub(super) fn on_refused(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    message: FromProxy,
    why: &Unwelcome,
    batch: &mut Batch,
) {
    let Some(Peer::Proxy(notebook)) = dispatch.peers.by_connection.get(&connection).copied() else {
        return;
    };
    let id = match message {
        FromProxy::Submit(submission) if submission.notebook == notebook => {
            let (id, kind) = (submission.job, submission.cell.kind);
            let is_new = !dispatch.jobs.knows(id);
            if is_new && *why != Unwelcome::Foreign {
                return refusals::too_large(connection, id, kind, why, batch);
            }
            submit(dispatch, connection, submission, batch);
            if !is_new {
                return;
            }
            id
        }
        FromProxy::Answer { job, question, .. } if belongs(dispatch, job, notebook) => {
            let open = dispatch.jobs.get_mut(job);
            match open.is_some_and(|open| open.close_question(question)) {
                true => job,
                false => return,
            }
        }
        _ => return,
    };
    end_unwelcome(dispatch, id, why, batch);
}

pub(super) fn on_not_sent(dispatch: &mut Dispatch, id: JobId, bytes: usize, batch: &mut Batch) {
    end_unwelcome(dispatch, id, &Unwelcome::Message { bytes }, batch);
}

fn end_unwelcome(dispatch: &mut Dispatch, id: JobId, why: &Unwelcome, batch: &mut Batch) {
    let Some(job) = dispatch.jobs.get_mut(id) else {
        return;
    };
    batch.log(Observation::MessageRefused {
        job: id,
        why: why.sentence(job.kind),
    });
    match job.phase() {
        Phase::Finished => {}
        Phase::Queued | Phase::Assigned => {
            let error = RemoteError::of_baton(
                "GpuServiceError",
                with_safety(&why.sentence(job.kind), job.kind),
                why.hint(job.kind),
            );
            end_by_broker(dispatch, id, Outcome::Refused, Some(error), batch);
        }
        Phase::Started => {
            let reason = StopReason::Refused {
                why: why.sentence(job.kind),
                hint: why.hint(job.kind),
            };
            stop(dispatch, id, reason, batch);
        }
    }
}

pub(super) fn on_caught_up(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    job: JobId,
    through: u64,
    batch: &mut Batch,
) {
    let Some(Peer::Proxy(notebook)) = dispatch.peers.by_connection.get(&connection).copied() else {
        return;
    };
    let job = dispatch.jobs.get(job);
    if let Some(job) = job.filter(|job| job.follower() == notebook) {
        dispatch.peers.send_after(connection, job, through, batch);
    }
}

fn belongs(dispatch: &Dispatch, job: JobId, notebook: NotebookId) -> bool {
    dispatch
        .jobs
        .get(job)
        .is_some_and(|job| job.follower() == notebook)
}

fn submit(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    submission: Submission,
    batch: &mut Batch,
) {
    let (id, notebook) = (submission.job, submission.notebook);
    let kind = submission.cell.kind;
    let open = dispatch.jobs.get(id).map(|job| job.notebook);
    match open.or_else(|| dispatch.jobs.closed(id)) {
        // Another notebook must not learn that the job exists.
        Some(of) if of != notebook => refusals::unknown_job(connection, id, batch),
        Some(_) if open.is_none() => refusals::submitted_again(connection, id, kind, batch),
        Some(_) if dispatch.peers.is_followed(id, notebook) => {}
        Some(_) => resume(dispatch, connection, id, 0, batch),
        None if refusals::has_too_many(&dispatch.jobs, notebook) => {
            refusals::one_too_many(connection, id, kind, batch)
        }
        None => accept(dispatch, submission, batch),
    }
}

fn accept(dispatch: &mut Dispatch, mut submission: Submission, batch: &mut Batch) {
    let id = submission.job;
    let Some(notebook) = dispatch.peers.notebooks.get_mut(&submission.notebook) else {
        return;
    };
    let Some(account) = notebook.account.clone() else {
        return;
    };
    notebook.subscriptions.insert(id, Subscription::Live);
    shorten_texts(&mut submission);
    let granted = dispatch.accounts.grant(&account, &mut submission.cell);
    let submission = Arc::new(submission);
    dispatch
        .peers
        .owners
        .insert(submission.notebook, account.owner.clone());
    let write = dispatch
        .jobs
        .add(submission, account.clone(), batch.now.unix_ms);
    batch.write(write);
    estimate::foresee(dispatch, id);
    dispatch.history.submitted(&account, batch.now.unix_ms);
    if let Err(refusal) = granted {
        end_by_broker(dispatch, id, Outcome::Refused, Some(refusal), batch);
    }
    dispatch.plan_is_stale = true;
}

/// Pages, errors and logs show these texts.
fn shorten_texts(submission: &mut Submission) {
    let cell = &mut submission.cell;
    let texts = [&mut submission.notebook_name, &mut cell.python_version];
    let texts = texts.into_iter().chain(&mut cell.gpu);
    for text in texts.chain(&mut cell.environment) {
        let short: String = text.chars().take(LONGEST_TEXT).collect();
        *text = one_line(&short);
    }
}

/// Only an open question is answered, so no notebook sends its worker more than the worker asks for.
/// No answer is kept for a worker that is disconnected: it asks its open questions again when it
/// reconnects. A later assignment also starts from a new state.
fn on_answer(
    dispatch: &mut Dispatch,
    from: ConnectionId,
    id: JobId,
    question: u64,
    answer: Answer,
    batch: &mut Batch,
) {
    let Some(job) = dispatch.jobs.get_mut(id) else {
        return;
    };
    let counts = match answer {
        Answer::Preparing {} => job.sign_question(question, batch.now),
        _ => job.close_question(question),
    };
    if !counts {
        return;
    }
    if let Answer::State(state) = &answer {
        let may_change = matches!(job.phase(), Phase::Queued | Phase::Assigned);
        if job.state_wanted != Some(question) || !may_change {
            return;
        }
        batch.write(job.replace_state(state.clone()));
    }
    if let Some(to) = dispatch.peers.runner(job).filter(|_| job.is_running()) {
        let message = ToWorker::Answer {
            job: id,
            question,
            answer,
        };
        batch.push(Action::Relay { from, to, message });
    }
}

/// The worker's queue had no room for it, so the notebook's connection is closed.
pub(super) fn on_not_relayed(dispatch: &mut Dispatch, message: &ToWorker) {
    if let ToWorker::Answer { job, question, .. } = message
        && let Some(job) = dispatch.jobs.get_mut(*job)
    {
        job.open_question(*question);
    }
}

fn resume(
    dispatch: &mut Dispatch,
    connection: ConnectionId,
    id: JobId,
    after: u64,
    batch: &mut Batch,
) {
    let claim = lost_records::claim(dispatch, id, after);
    if let Some(claim) = claim.filter(Claim::is_ahead) {
        return lost_records::proxy_is_ahead(dispatch, connection, claim, batch);
    }
    let Some(job) = dispatch.jobs.get_mut(id) else {
        return;
    };
    dispatch.peers.subscribe(connection, job, after, batch);
    if let Some(waiting) = job.waiting.clone() {
        batch.send_proxy(connection, waiting.message(id, batch.now));
        job.shown = Some((waiting, batch.now.instant));
    }
}

/// If the worker has nothing left of the job, it has already reported that.
fn deferred_wanted(dispatch: &mut Dispatch, from: ConnectionId, id: JobId, batch: &mut Batch) {
    let is_due = |job: &&mut Job| matches!(job.remainder(), Remainder::Deferred | Remainder::Sent);
    let Some(job) = dispatch.jobs.get_mut(id).filter(is_due) else {
        return;
    };
    job.deferred_wanted = true;
    if let Some(to) = dispatch.peers.runner(job) {
        let message = ToWorker::DeferredWanted { job: id };
        batch.push(Action::Relay { from, to, message });
    }
}

/// The job was closed while its notebook was disconnected. The notebook has shown another outcome.
fn on_closed_job_given_up(
    connection: ConnectionId,
    job: JobId,
    outcome: Option<Outcome>,
    batch: &mut Batch,
) {
    batch.write(match outcome {
        Some(outcome) => Write::GiveUp { job, outcome },
        None => Write::Remove { job },
    });
    batch.send_proxy(connection, ToProxy::Closed { job });
}
