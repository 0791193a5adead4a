//! Drives the link: connects, exchanges the greeting, resumes jobs, and passes commands and updates on.

use super::{
    BrokerAccess, Command, EndedSessions, JobUpdate, Link, Status,
    followed::{FollowedJob, LinkJob, answered},
};
use crate::{
    config::BrokerChoice,
    remote_cell::{
        autostart::{NoBroker, Obstacle, dial_or_start},
        status_line::{OtherJob, ShownQueuePosition},
    },
};
use baton_humanize::with_causes;
use baton_protocol::{
    JobEvent, JobId, NotebookId, NumberedEvent, PROTOCOL_VERSION, Refusal, Submission,
    proxy::{FromProxy, ToProxy},
};
use baton_transport::{Backoff, ChunkClient, Connection, LinkError};
use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};
use tokio::sync::{mpsc, watch};

const COMMANDS: usize = 64;
const UPDATES: usize = 256;
/// A peer that accepts the connection but sends no `Welcome` is not a broker.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens the link. The owner polls the returned future alongside its own work.
pub(in crate::remote_cell) fn open(
    choice: BrokerChoice,
    course: Option<String>,
    notebook: NotebookId,
    patience: Duration,
) -> (Link, EndedSessions, impl Future<Output = ()>) {
    let (commands, command_receiver) = mpsc::channel(COMMANDS);
    let (update_sender, updates) = mpsc::channel(UPDATES);
    let (status_sender, status) = watch::channel(Status::Down { reason: None });
    let tries_anew = status_sender.clone();
    // Bounded by the sessions that this notebook has had: there is one message for each.
    let (ended_sender, workers) = mpsc::unbounded_channel();
    let driver = Driver {
        choice,
        course,
        notebook,
        patience,
        commands: command_receiver,
        updates: update_sender,
        ended: ended_sender,
        status: status_sender,
        jobs: HashMap::new(),
        unsent: Vec::new(),
    };
    let link = Link {
        commands,
        updates,
        watched: None,
        kept: VecDeque::new(),
        tries_anew,
        status,
    };
    (link, EndedSessions { workers }, driver.run())
}

struct Driver {
    choice: BrokerChoice,
    course: Option<String>,
    notebook: NotebookId,
    /// How long to retry the transfer of chunks.
    patience: Duration,
    commands: mpsc::Receiver<Command>,
    updates: mpsc::Sender<(JobId, JobUpdate)>,
    ended: mpsc::UnboundedSender<String>,
    status: watch::Sender<Status>,
    jobs: HashMap<JobId, LinkJob>,
    /// Messages for the next connection.
    unsent: Vec<FromProxy>,
}

type Broker = Connection<ToProxy, FromProxy>;

impl Driver {
    async fn run(mut self) {
        // A student who never runs a `%%gpu` cell needs no broker.
        if self.commands.recv().await.is_none() {
            return;
        }
        let mut backoff = Backoff::default();
        loop {
            let ended = match self.connect().await {
                Ok(mut broker) => {
                    backoff = Backoff::default();
                    match self.serve(&mut broker).await {
                        Some(ended) => ended,
                        None => return,
                    }
                }
                Err(no_broker) => no_broker,
            };
            let (reason, status) = match ended {
                NoBroker::NotYet(reason) => (
                    reason.clone(),
                    Status::Down {
                        reason: Some(reason),
                    },
                ),
                NoBroker::Unable(reason) => (reason.clone(), Status::Unable { reason }),
                NoBroker::Refused(obstacle) => {
                    self.status.send_replace(Status::Refused(obstacle));
                    let goes_on = match self.has_open_jobs() {
                        // Another person may remove the obstacle, and jobs that run wait for that.
                        true => self.pause(backoff.next_delay()).await,
                        false => self.collect_commands_until_wake().await,
                    };
                    match goes_on {
                        true => continue,
                        false => return,
                    }
                }
            };
            tracing::info!(reason, "The broker is not connected");
            self.status.send_replace(status);
            if !self.pause(backoff.next_delay()).await {
                return;
            }
        }
    }

    async fn connect(&mut self) -> Result<Broker, NoBroker> {
        let dial = dial_or_start(&self.choice).await?;
        let waits = self.has_open_jobs();
        let greeting = async {
            let mut broker: Broker = baton_transport::connect(&dial, "/v1/proxy").await?;
            let hello = FromProxy::Hello {
                protocol_version: PROTOCOL_VERSION,
                notebook: self.notebook,
                owner: owner(),
                course: self.course.clone(),
            };
            broker.send(&hello).await?;
            Ok::<_, LinkError>((broker.receive().await?, broker))
        };
        let greeted = tokio::time::timeout(WELCOME_TIMEOUT, greeting).await;
        let (answer, broker) = greeted
            .map_err(|_| {
                let address = &dial.address;
                NoBroker::NotYet(format!("{address} accepts connections but does not answer"))
            })?
            .map_err(|error| no_broker(error, waits))?;
        match answer {
            Some(ToProxy::Welcome {
                autosave, course, ..
            }) => {
                self.course = course.or(self.course.take());
                let chunks = ChunkClient::new(&dial).map_err(|error| no_broker(error, waits))?;
                let chunks = chunks
                    .with_patience(self.patience)
                    .of_owner(owner(), self.course.clone());
                self.status.send_replace(Status::Up(BrokerAccess {
                    chunks,
                    near: dial.address.is_near(),
                    autosave,
                    token: dial.token,
                }));
                Ok(broker)
            }
            Some(ToProxy::Refused(refusal)) => Err(refused(&refusal)),
            _ => Err(NoBroker::NotYet(format!(
                "{} is not a Baton broker",
                dial.address
            ))),
        }
    }

    fn has_open_jobs(&self) -> bool {
        let mut jobs = self.jobs.values();
        jobs.any(|job| matches!(job, LinkJob::Open(_)))
    }

    /// Serves until the connection breaks (returns the reason) or the proxy ends (`None`).
    async fn serve(&mut self, broker: &mut Broker) -> Option<NoBroker> {
        if let Err(error) = self.resume(broker).await {
            return Some(NoBroker::NotYet(with_causes(&error)));
        }
        loop {
            let result = tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) => self.on_command(command, broker).await,
                    None => {
                        // If the message is lost, the broker ends the session after a while.
                        let _ = broker.send(&FromProxy::Goodbye {}).await;
                        return None;
                    }
                },
                message = broker.receive() => match message {
                    Ok(Some(ToProxy::Refused(refusal))) => return Some(refused(&refusal)),
                    Ok(Some(message)) => self.on_message(message, broker).await,
                    Ok(None) => {
                        return Some(NoBroker::NotYet("the broker closed the connection".to_owned()));
                    }
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = result {
                return Some(NoBroker::NotYet(with_causes(&error)));
            }
        }
    }

    async fn resume(&mut self, broker: &mut Broker) -> Result<(), LinkError> {
        for message in std::mem::take(&mut self.unsent) {
            self.send(broker, &message).await?;
        }
        for (id, job) in &self.jobs {
            match job {
                LinkJob::Open(open) => {
                    self.send(broker, &open.follow(*id)).await?;
                    for message in open.repeated(*id) {
                        self.send(broker, &message).await?;
                    }
                }
                LinkJob::Ended(final_message) => self.send(broker, final_message).await?,
            }
        }
        Ok(())
    }

    async fn on_command(&mut self, command: Command, broker: &mut Broker) -> Result<(), LinkError> {
        match self.note(command) {
            Noted::Submission(submission) => {
                self.send(broker, &FromProxy::Submit(*submission)).await
            }
            Noted::Once(message) | Noted::Repeated(message) => self.send(broker, &message).await,
            Noted::Signs(signs) => {
                for sign in signs {
                    self.send(broker, &sign).await?;
                }
                Ok(())
            }
            Noted::Nothing => Ok(()),
        }
    }

    /// Sends a message. One that the broker would not accept is reported to its job instead: over another connection it
    /// would not be accepted either.
    async fn send(&self, broker: &mut Broker, message: &FromProxy) -> Result<(), LinkError> {
        match (broker.send(message).await, message) {
            (
                Err(LinkError::TooLarge { excess }),
                FromProxy::Submit(Submission { job, .. }) | FromProxy::Answer { job, .. },
            ) => {
                self.send_update(*job, JobUpdate::TooLarge(excess)).await;
                Ok(())
            }
            (sent, _) => sent,
        }
    }

    /// Records a command, whether the broker is connected or not.
    fn note(&mut self, command: Command) -> Noted {
        match command {
            Command::Wake => Noted::Nothing,
            Command::Submit(submission) => {
                let open = FollowedJob::new(Some(submission.clone()));
                self.jobs.insert(submission.job, LinkJob::Open(open));
                Noted::Submission(submission)
            }
            Command::Attach(job) => {
                let open = FollowedJob::new(None);
                let follow = open.follow(job);
                self.jobs.insert(job, LinkJob::Open(open));
                Noted::Repeated(Box::new(follow))
            }
            Command::Send(message) => Noted::Once(message),
            Command::Answer(job, question, answer) => {
                let open = match self.jobs.get_mut(&job) {
                    Some(LinkJob::Open(open)) => open.questions.get_mut(&question),
                    _ => None,
                };
                match open {
                    Some(open) => {
                        *open = Some(answer.clone());
                        Noted::Repeated(Box::new(answered(job, question, answer)))
                    }
                    // The question belongs to an earlier assignment.
                    None => Noted::Nothing,
                }
            }
            Command::Prepare(job) => match self.jobs.get(&job) {
                Some(LinkJob::Open(open)) => Noted::Signs(open.signs(job)),
                _ => Noted::Nothing,
            },
            Command::WantDeferred(job) => match self.jobs.get_mut(&job) {
                Some(LinkJob::Open(open)) => {
                    open.deferred_wanted = true;
                    Noted::Repeated(Box::new(FromProxy::DeferredWanted { job }))
                }
                _ => Noted::Nothing,
            },
            Command::Final(job, message) => match self.jobs.get_mut(&job) {
                Some(job @ LinkJob::Open(_)) => {
                    *job = LinkJob::Ended(message.clone());
                    Noted::Repeated(message)
                }
                _ => Noted::Nothing,
            },
        }
    }

    async fn on_message(&mut self, message: ToProxy, broker: &mut Broker) -> Result<(), LinkError> {
        match message {
            ToProxy::QueuePosition {
                job,
                position,
                last_position,
                moved_back,
                waiting,
                gpu,
                estimate,
                message,
            } => {
                let position = ShownQueuePosition {
                    position,
                    last_position,
                    moved_back,
                    reason: waiting,
                    gpu,
                    estimate,
                    message,
                    other: OtherJob::Any,
                };
                self.send_update(job, JobUpdate::Position(position)).await;
            }
            ToProxy::Events { job, events } => return self.on_events(job, events, broker).await,
            ToProxy::SessionEnded { worker } => {
                // The receiver is gone only when the proxy ends.
                let _ = self.ended.send(worker);
            }
            ToProxy::Cancelling { job } => self.send_update(job, JobUpdate::Cancelling).await,
            ToProxy::Closed { job } => self.confirmed(job),
            ToProxy::UnknownJob { job } => return self.on_unknown_job(job, broker).await,
            ToProxy::Welcome { .. } | ToProxy::Refused(_) => {}
        }
        Ok(())
    }

    /// Skips events that were received before. After a gap, asks for the missing ones.
    async fn on_events(
        &mut self,
        job: JobId,
        events: Vec<NumberedEvent>,
        broker: &mut Broker,
    ) -> Result<(), LinkError> {
        for NumberedEvent { number, event } in events {
            let Some(LinkJob::Open(open)) = self.jobs.get_mut(&job) else {
                return Ok(());
            };
            if number <= open.seen {
                continue;
            }
            if number > open.seen + 1 {
                let follow = open.follow(job);
                return self.send(broker, &follow).await;
            }
            open.seen = number;
            match event {
                // The next worker asks its own questions.
                JobEvent::Assigned { .. } => open.questions.clear(),
                JobEvent::DeferredState { .. } => open.deferred_wanted = false,
                _ => {}
            }
            if let Some(question) = event.question()
                && let Err(answer) = open.asked(question)
            {
                if let Some(answer) = answer {
                    self.send(broker, &answered(job, question, answer)).await?;
                }
                continue;
            }
            self.send_update(job, JobUpdate::Event(Box::new(event)))
                .await;
        }
        Ok(())
    }

    /// Submits the job again if the broker never had it. Otherwise it is lost.
    async fn on_unknown_job(&mut self, job: JobId, broker: &mut Broker) -> Result<(), LinkError> {
        match self.jobs.get(&job) {
            Some(LinkJob::Open(FollowedJob {
                submission: Some(submission),
                seen: 0,
                ..
            })) => {
                let submission = submission.as_ref().clone();
                return self.send(broker, &FromProxy::Submit(submission)).await;
            }
            Some(LinkJob::Open(_)) => self.send_update(job, JobUpdate::Lost).await,
            _ => self.confirmed(job),
        }
        Ok(())
    }

    /// The broker waits for no more messages about the job.
    fn confirmed(&mut self, job: JobId) {
        if let Some(LinkJob::Ended(_)) = self.jobs.get(&job) {
            self.jobs.remove(&job);
        }
    }

    async fn send_update(&self, job: JobId, updates: JobUpdate) {
        // The receiver may be gone; its update no longer matters.
        let _ = self.updates.send((job, updates)).await;
    }

    /// Waits for a delay, and accepts commands meanwhile. Returns false when the proxy ends.
    async fn pause(&mut self, delay: Duration) -> bool {
        let until = tokio::time::Instant::now() + delay;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => return true,
                command = self.commands.recv() => match command {
                    // A student who runs a cell now should not have to wait for a long delay.
                    Some(Command::Wake) => return true,
                    Some(command) => self.defer_command(command),
                    None => return false,
                },
            }
        }
    }

    async fn collect_commands_until_wake(&mut self) -> bool {
        loop {
            match self.commands.recv().await {
                Some(Command::Wake) => return true,
                Some(command) => self.defer_command(command),
                None => return false,
            }
        }
    }

    fn defer_command(&mut self, command: Command) {
        // A submission need not be kept here: it is repeated when the broker does not know the job.
        if let Noted::Once(message) = self.note(command) {
            self.unsent.push(*message);
        }
    }
}

/// A message for the broker, if it is connected.
enum Noted {
    Submission(Box<Submission>),
    Once(Box<FromProxy>),
    /// `resume` repeats it.
    Repeated(Box<FromProxy>),
    /// They matter only now.
    Signs(Vec<FromProxy>),
    Nothing,
}

/// `waits`: cells are waiting, so another attempt is worthwhile.
fn no_broker(error: LinkError, waits: bool) -> NoBroker {
    let reason = with_causes(&error);
    match error {
        LinkError::Unauthorized { address, problem } => NoBroker::Refused(Obstacle::new(
            format!("the broker at {address} {problem}"),
            problem.hint(),
        )),
        LinkError::TooMuch { problem, .. } if !waits => NoBroker::Refused(Obstacle::new(
            problem.detail,
            "shut down notebooks that you do not use, then try again",
        )),
        LinkError::Certificate { address, problem } if !waits => NoBroker::Refused(Obstacle::new(
            format!("there is no safe connection to the broker at {address}: {problem}"),
            problem.hint(),
        )),
        LinkError::CaFile { .. } => NoBroker::Refused(Obstacle::new(
            reason,
            "correct `ca_file` (`baton config show` says where it is set), then restart the kernel",
        )),
        LinkError::Refused { problem } => NoBroker::Refused(Obstacle::new(
            problem.detail,
            "correct `broker_address` (`baton config show` says where it is set), then restart the kernel",
        )),
        LinkError::Unable { .. } => NoBroker::Unable(reason),
        _ => NoBroker::NotYet(reason),
    }
}

fn refused(refusal: &Refusal) -> NoBroker {
    let reason = refusal.to_string();
    let (hint, is_final) = match refusal {
        Refusal::Unable { .. } => return NoBroker::Unable(reason),
        Refusal::NotInCourse { .. } | Refusal::WhichCourse { .. } => (
            "name the course with `course` in ~/.config/baton/config.toml or with BATON_COURSE, then restart the kernel",
            false,
        ),
        Refusal::NotYours {} => ("restart the kernel", true),
        // The last four are for workers only.
        Refusal::ProtocolVersion { .. }
        | Refusal::NoHello {}
        | Refusal::NotYourName { .. }
        | Refusal::WorkerConnected { .. }
        | Refusal::Replaced { .. }
        | Refusal::OutOfBounds { .. } => (
            "install the same version of Baton on both ends, or ask your course staff",
            true,
        ),
    };
    NoBroker::Refused(Obstacle {
        is_final,
        ..Obstacle::new(reason, hint)
    })
}

fn owner() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::current());
    match user {
        Ok(Some(user)) => user.name,
        _ => nix::unistd::Uid::current().to_string(),
    }
}
