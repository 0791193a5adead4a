//! Before the cell: a slot, a session that fits, and the state it needs.
//!
//! In: a job. Out: a session that is ready to be sent the cell, or an ending if the job cannot go on.
//! Dropping the future ends the session.

use super::{
    Ending, Job,
    deferred::Deferred,
    plan::{Plan, plan},
};
use crate::{
    context::Context,
    deadline::at,
    gpu::Cell,
    messages,
    mirror::{self, Files, MirrorError, SessionMirror},
    questions::UnexpectedAnswer,
    session::{AfterCell, Session},
    transfer::{Source, Transport, open, receive},
};
use baton_chunks::Ledger;
use baton_protocol::{Answer, JobEvent, JobKind, Outcome, RemoteError, State, StateVersion};
use baton_transport::Received;
use std::{
    error::Error,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Everything that the cell needs. The next step, its start, is visible to the student.
pub(crate) struct Ready<'context> {
    pub(crate) session: Session,
    /// The version on which the state builds.
    pub(crate) base: StateVersion,
    pub(crate) state: Received,
    /// How the result is sent back.
    pub(crate) transport: Transport,
    /// Held until the job is over.
    pub(crate) _slot: tokio::sync::SemaphorePermit<'context>,
}

pub(crate) async fn prepare<'context>(
    context: &'context Arc<Context>,
    session: &mut Option<Session>,
    deferred: &mut Deferred,
    job: &mut Job,
) -> Result<Ready<'context>, Ending> {
    let kind = job.submission.cell.kind;
    let slot = context
        .permits
        .acquire()
        .await
        .map_err(|_| shutting_down(kind))?;
    let mut state = job.submission.state.clone();
    let python = python(context, job).map_err(Ending::not_started)?;
    let reasons = reasons_against(kind, session.as_ref(), &python, job.environment.as_deref());
    let is_usable = reasons.is_empty();
    job.warnings.extend(reasons);
    loop {
        let base = state.base();
        let usable = session.as_ref().filter(|_| is_usable);
        let held = usable.and_then(|session| session.held_for(base));
        let plan = plan(held.map(|held| held.version), base);
        let opened = match plan {
            Plan::Continue | Plan::StartFresh => open(&context.access, state).await,
            Plan::AskForState => None,
        };
        let Some((source, transport)) = opened else {
            // A session with deferred state is kept here: the notebook asks for that state before it sends a
            // complete one.
            drop(session.take_if(|_| !deferred.needs_session()));
            state = ask_for_state(job, plan).await?;
            continue;
        };
        let (mut ready, state) = match plan {
            Plan::Continue => {
                memory_is_kept(kind, session, deferred).await?;
                continue_in_session(context, kind, session, base, source).await?
            }
            Plan::StartFresh | Plan::AskForState => {
                drop(session.take());
                start_fresh(context, job, &python, source).await?
            }
        };
        if let Err(ending) = with_files(&mut ready, job).await {
            // The session may have deferred state that nothing else has.
            *session = Some(ready);
            return Err(ending);
        }
        return Ok(Ready {
            session: ready,
            base,
            state,
            transport,
            _slot: slot,
        });
    }
}

/// The Python of the job's environment. This may have changed since the broker chose this worker; another worker may still
/// have it.
fn python(context: &Context, job: &Job) -> Result<PathBuf, RemoteError> {
    let environment = job.environment.as_deref();
    let python = context.python(environment, &job.submission.cell);
    python.map_err(|why| {
        let environment = environment.unwrap_or_default();
        messages::environment_not_ready(job.submission.cell.kind, environment, &why)
    })
}

/// Why the job cannot run in this session, as warnings.
fn reasons_against(
    kind: JobKind,
    session: Option<&Session>,
    python: &Path,
    environment: Option<&str>,
) -> Vec<String> {
    let lost_mirror = has_lost_mirror(session).then(|| messages::mirror_lost_before(kind));
    let is_of_another = session.is_some_and(|session| session.python() != python);
    let another = is_of_another.then(|| messages::another_environment(kind, environment));
    lost_mirror.into_iter().chain(another).collect()
}

async fn ask_for_state(job: &Job, plan: Plan) -> Result<State, Ending> {
    let kind = job.submission.cell.kind;
    let answered = job.questions.ask(|question| match plan {
        Plan::AskForState => JobEvent::StateWanted { question },
        Plan::Continue | Plan::StartFresh => JobEvent::BytesWanted { question },
    });
    match answered.await {
        Ok(Answer::State(state)) if is_what_was_asked(&state, plan) => Ok(state),
        Ok(_) => Err(state_lost(kind, &UnexpectedAnswer)),
        // The agent is ending.
        Err(_) => Err(shutting_down(kind)),
    }
}

/// Another state would only lead to the same question again.
fn is_what_was_asked(state: &State, plan: Plan) -> bool {
    let can_be_opened = plan == Plan::AskForState || matches!(state, State::Chunks(_));
    state.base().messages == 0 && can_be_opened
}

async fn continue_in_session(
    context: &Context,
    kind: JobKind,
    kept: &mut Option<Session>,
    base: StateVersion,
    source: Source,
) -> Result<(Session, Received), Ending> {
    let session = kept.as_mut().ok_or_else(|| shutting_down(kind))?;
    if let Some(gpu) = session.gpu() {
        // Discards what it has used since its last cell, because that belongs to no cell.
        gpu.usage().await;
        // Its memory returns to the GPU while the state is being transferred.
        gpu.cell(Cell::Expected);
    }
    let held = session.take_held(base).map(|held| held.ledger);
    let state = receive(&context.access, source, held.unwrap_or_default())
        .await
        .map_err(|error| state_lost(kind, &error))?;
    let session = kept.take().ok_or_else(|| shutting_down(kind))?;
    Ok((session, state))
}

/// Waits until the deferred state of earlier cells exists outside the session, because the next cell may overwrite
/// it.
async fn memory_is_kept(
    kind: JobKind,
    kept: &mut Option<Session>,
    deferred: &mut Deferred,
) -> Result<(), Ending> {
    while deferred.needs_session()
        && let Some(session) = kept
    {
        tokio::select! {
            // What the session has handed over counts, even if this task was late to look.
            biased;
            event = session.after_cell(false) => match event {
                AfterCell::DeferredReady(snapshot, keeper) => deferred.on_ready(snapshot, keeper),
                AfterCell::Ended(death) => {
                    *kept = None;
                    deferred.lose_session();
                    let error = messages::died_with_earlier_results(kind, death.status);
                    return Err(Ending::without_state(Outcome::WorkerLost, error));
                }
                AfterCell::Released => {}
            },
            () = at(deferred.next_look()) => {
                if !deferred.is_overdue(Some(session)).await {
                    continue;
                }
                *kept = None;
                deferred.lose_session();
                let error = messages::kept_earlier_results(kind);
                return Err(Ending::without_state(Outcome::WorkerLost, error));
            }
            sent = deferred.next() => {
                if let Some(sent) = sent {
                    session.has_sent(sent);
                }
            }
        }
    }
    Ok(())
}

async fn start_fresh(
    context: &Arc<Context>,
    job: &mut Job,
    python: &Path,
    source: Source,
) -> Result<(Session, Received), Ending> {
    let kind = job.submission.cell.kind;
    let session = start_session(context, job, python);
    let state = async {
        let assembled = receive(&context.access, source, Ledger::default()).await;
        assembled.map_err(|error| state_lost(kind, &error))
    };
    let (session, state) = tokio::try_join!(session, state)?;
    let (cell, hello) = (&job.submission.cell, &session.hello);
    if hello.python_version != cell.python_version {
        let lockable = job.environment.as_deref();
        let lockable = lockable.filter(|name| context.environments.lock(name).is_some());
        let ends = (
            &*cell.python_version,
            &*hello.python_version,
            &*hello.python,
        );
        let error = messages::python_differs(kind, ends, lockable);
        return Err(Ending::without_state(Outcome::Refused, error));
    }
    Ok((session, state))
}

/// Starts a session, and tries once more if it could not start. If a trial session fails here, too, another worker
/// may take the job.
async fn start_session(
    context: &Arc<Context>,
    job: &mut Job,
    python: &Path,
) -> Result<Session, Ending> {
    let kind = job.submission.cell.kind;
    let mut is_second = false;
    loop {
        let files = files_for(context, job)
            .await
            .map_err(|error| files_lost(kind, &error))?;
        let started = context
            .start_session(
                &job.submission,
                job.account,
                (job.environment.as_deref(), python.to_owned()),
                files,
            )
            .await;
        match started {
            Ok(session) => return Ok(session),
            Err(error) if !is_second && error.may_pass() => {
                tracing::warn!(%error, "A session could not start; trying once more");
                is_second = true;
            }
            Err(error) => {
                tracing::warn!(%error, "A session could not start");
                let tried = match &job.environment {
                    Some(_) => context.try_a_session_of(python).await.map(drop),
                    None => context.try_a_session().await,
                };
                return Err(match tried {
                    Ok(()) => {
                        let error = messages::not_started(kind, error.explained());
                        Ending::without_state(Outcome::Refused, error)
                    }
                    Err(_) => Ending::not_started(messages::no_session_starts(error.explained())),
                });
            }
        }
    }
}

/// A session that may not work in the notebook's own folder works in a mirror of it.
async fn files_for(context: &Arc<Context>, job: &mut Job) -> Result<Option<Files>, MirrorError> {
    let Some(folder) = &job.submission.cell.notebook_folder else {
        return Ok(None);
    };
    let (choice, access) = (context.config.files, &context.access);
    let own = mirror::own_folder(choice, folder, &job.questions, &access.chunk_client).await;
    let files = match own {
        Some(folder) => Files::Own(folder),
        None => {
            let mirror = SessionMirror::create(&context.config, access, folder)?;
            Files::Mirrored(Box::new(mirror))
        }
    };
    Ok(Some(files))
}

/// Whether the session's mirror is damaged. What a cell changes in a damaged mirror cannot be determined.
fn has_lost_mirror(session: Option<&Session>) -> bool {
    let mirror = session.and_then(|session| session.mirror.as_ref());
    mirror.is_some_and(SessionMirror::is_lost)
}

async fn with_files(session: &mut Session, job: &mut Job) -> Result<(), Ending> {
    if let Some(mirror) = &mut session.mirror {
        let questions = job.questions.clone();
        let prepared = mirror.prepare(&job.submission.cell, questions).await;
        prepared.map_err(|error| files_lost(job.submission.cell.kind, &error))?;
    }
    Ok(())
}

fn files_lost(kind: JobKind, error: &MirrorError) -> Ending {
    tracing::warn!(%error, "A notebook's files could not be mirrored");
    Ending::without_state(Outcome::WorkerLost, messages::files_lost(kind, error))
}

fn state_lost(kind: JobKind, error: &(dyn Error + 'static)) -> Ending {
    tracing::warn!(%error, "State could not be fetched");
    Ending::without_state(Outcome::WorkerLost, messages::state_lost(kind, error))
}

fn shutting_down(kind: JobKind) -> Ending {
    Ending::without_state(Outcome::WorkerLost, messages::shutting_down(kind))
}
