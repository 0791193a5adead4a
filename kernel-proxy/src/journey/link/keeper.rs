//! The link is opened here, with the work that keeps it: dials, greets, resumes, and passes commands and news on.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use baton_protocol::proxy::{FromProxy, ToProxy};
use baton_protocol::{JobEvent, JobId, NotebookId, PROTOCOL_VERSION, Refusal, Submission};
use baton_transport::{Backoff, ChunkLane, Connection, LinkError};
use tokio::sync::{mpsc, watch};

use super::{Command, EndedSessions, Lanes, Link, News, Status, describe};
use crate::config::BrokerChoice;
use crate::journey::autostart::{NoBroker, Obstacle, dial_or_start};
use crate::journey::notice::Place;

const COMMANDS: usize = 64;
const NEWS: usize = 256;
/// A broker that accepts but does not greet is not one.
const WELCOME_TIMEOUT: Duration = Duration::from_secs(10);

/// The link, and the work that keeps it: the owner polls that future beside its own.
pub(in crate::journey) fn open(
    choice: BrokerChoice,
    course: Option<String>,
    notebook: NotebookId,
    patience: Duration,
) -> (Link, EndedSessions, impl Future<Output = ()>) {
    let (commands, command_receiver) = mpsc::channel(COMMANDS);
    let (news_sender, news) = mpsc::channel(NEWS);
    let (status_sender, status) = watch::channel(Status::Down { reason: None });
    let tries_anew = status_sender.clone();
    let (ended_sender, workers) = mpsc::unbounded_channel();
    let keeper = Keeper {
        choice,
        course,
        notebook,
        patience,
        commands: command_receiver,
        news: news_sender,
        ended: ended_sender,
        status: status_sender,
        jobs: HashMap::new(),
        unsent: Vec::new(),
    };
    let link = Link {
        commands,
        news,
        watched: None,
        kept: VecDeque::new(),
        tries_anew,
        status,
    };
    (link, EndedSessions { workers }, keeper.keep())
}

struct Keeper {
    choice: BrokerChoice,
    course: Option<String>,
    notebook: NotebookId,
    /// Of the chunk lane.
    patience: Duration,
    commands: mpsc::Receiver<Command>,
    news: mpsc::Sender<(JobId, News)>,
    ended: mpsc::UnboundedSender<String>,
    status: watch::Sender<Status>,
    jobs: HashMap<JobId, Job>,
    /// For the next connection.
    unsent: Vec<FromProxy>,
}

enum Job {
    Open(OpenJob),
    /// Nothing more is wanted of it, which the broker has not confirmed yet.
    Over(Box<FromProxy>),
}

struct OpenJob {
    submission: Box<Submission>,
    /// What the running cell was last answered, or that what it left is wanted.
    answer: Option<Box<FromProxy>>,
    /// Number of the last event that was passed on.
    seen: u64,
}

type Broker = Connection<ToProxy, FromProxy>;

impl Keeper {
    async fn keep(mut self) {
        // Nothing is started or dialled for a student who never writes `%%gpu`.
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
                NoBroker::Yet(reason) => (
                    reason.clone(),
                    Status::Down {
                        reason: Some(reason),
                    },
                ),
                NoBroker::Unable(reason) => (reason.clone(), Status::Unable { reason }),
                NoBroker::Ever(obstacle) => {
                    self.status.send_replace(Status::Refused(obstacle));
                    match self.collect_commands_until_wake().await {
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
        let waits = self.jobs.values().any(|job| matches!(job, Job::Open(_)));
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
                NoBroker::Yet(format!("{address} accepts connections but does not answer"))
            })?
            .map_err(|error| no_broker(error, waits))?;
        match answer {
            Some(ToProxy::Welcome { .. }) => {
                let lane = ChunkLane::new(&dial).map_err(|error| no_broker(error, waits))?;
                let lane = lane
                    .with_patience(self.patience)
                    .of_owner(owner(), self.course.clone());
                self.status.send_replace(Status::Up(Lanes {
                    chunks: lane,
                    near: dial.address.is_near(),
                    token: dial.token,
                }));
                Ok(broker)
            }
            Some(ToProxy::Refused(refusal)) => Err(refused(&refusal)),
            _ => Err(NoBroker::Yet(format!(
                "{} is not a Baton broker",
                dial.address
            ))),
        }
    }

    /// Until the connection breaks (why), or the proxy ends (`None`).
    async fn serve(&mut self, broker: &mut Broker) -> Option<NoBroker> {
        if let Err(error) = self.resume(broker).await {
            return Some(NoBroker::Yet(describe(&error)));
        }
        loop {
            let result = tokio::select! {
                command = self.commands.recv() => match command {
                    Some(command) => self.obey(command, broker).await,
                    None => {
                        // One that does not hear it ends the session after a while.
                        let _ = broker.send(&FromProxy::Goodbye {}).await;
                        return None;
                    }
                },
                message = broker.receive() => match message {
                    Ok(Some(ToProxy::Refused(refusal))) => return Some(refused(&refusal)),
                    Ok(Some(message)) => self.hear(message, broker).await,
                    Ok(None) => {
                        return Some(NoBroker::Yet("the broker closed the connection".to_owned()));
                    }
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = result {
                return Some(NoBroker::Yet(describe(&error)));
            }
        }
    }

    async fn resume(&mut self, broker: &mut Broker) -> Result<(), LinkError> {
        for message in std::mem::take(&mut self.unsent) {
            broker.send(&message).await?;
        }
        for (id, job) in &self.jobs {
            match job {
                Job::Open(open) => {
                    let (job, after) = (*id, open.seen);
                    broker.send(&FromProxy::Resume { job, after }).await?;
                    if let Some(answer) = &open.answer {
                        broker.send(answer).await?;
                    }
                }
                Job::Over(last_word) => broker.send(last_word).await?,
            }
        }
        Ok(())
    }

    async fn obey(&mut self, command: Command, broker: &mut Broker) -> Result<(), LinkError> {
        match self.note(command) {
            Noted::Submission(submission) => broker.send(&FromProxy::Submit(*submission)).await,
            Noted::Once(message) | Noted::Repeated(message) => broker.send(&message).await,
            Noted::Nothing => Ok(()),
        }
    }

    /// What a command means for the book-keeping, connected or not.
    fn note(&mut self, command: Command) -> Noted {
        match command {
            Command::Wake => Noted::Nothing,
            Command::Submit(submission) => {
                let open = OpenJob {
                    submission: submission.clone(),
                    answer: None,
                    seen: 0,
                };
                self.jobs.insert(submission.job, Job::Open(open));
                Noted::Submission(submission)
            }
            Command::Send(message) => Noted::Once(message),
            Command::Answer(job, message) => match self.jobs.get_mut(&job) {
                Some(Job::Open(open)) => {
                    open.answer = Some(message.clone());
                    Noted::Repeated(message)
                }
                _ => Noted::Nothing,
            },
            Command::LastWord(job, message) => match self.jobs.get_mut(&job) {
                Some(job @ Job::Open(_)) => {
                    *job = Job::Over(message.clone());
                    Noted::Repeated(message)
                }
                _ => Noted::Nothing,
            },
        }
    }

    async fn hear(&mut self, message: ToProxy, broker: &mut Broker) -> Result<(), LinkError> {
        match message {
            ToProxy::Place {
                job,
                place,
                last_place,
                moved_back,
                waiting,
                gpu,
                estimate,
                message,
            } => {
                let place = Place {
                    place,
                    last_place,
                    moved_back,
                    reason: waiting,
                    gpu,
                    estimate,
                    message,
                };
                self.tell(job, News::Place(place)).await;
            }
            ToProxy::Events { job, events } => {
                for numbered in events {
                    let Some(Job::Open(open)) = self.jobs.get_mut(&job) else {
                        return Ok(());
                    };
                    if numbered.number <= open.seen {
                        continue;
                    }
                    if numbered.number > open.seen + 1 {
                        let after = open.seen;
                        return broker.send(&FromProxy::Resume { job, after }).await;
                    }
                    open.seen = numbered.number;
                    if let JobEvent::Rest { .. } = numbered.event {
                        open.answer = None;
                    }
                    self.tell(job, News::Event(Box::new(numbered.event))).await;
                }
            }
            ToProxy::SessionEnded { worker } => {
                // The receiver is gone only when the proxy ends.
                let _ = self.ended.send(worker);
            }
            ToProxy::Cancelling { job } => self.tell(job, News::Cancelling).await,
            ToProxy::Closed { job } => self.confirmed(job),
            ToProxy::UnknownJob { job } => match self.jobs.get(&job) {
                Some(Job::Open(open)) if open.seen == 0 => {
                    let submission = open.submission.as_ref().clone();
                    return broker.send(&FromProxy::Submit(submission)).await;
                }
                Some(Job::Open(_)) => self.tell(job, News::Lost).await,
                _ => self.confirmed(job),
            },
            ToProxy::Welcome { .. } | ToProxy::Refused(_) => {}
        }
        Ok(())
    }

    /// The broker has nothing of it that still waits for a word.
    fn confirmed(&mut self, job: JobId) {
        if let Some(Job::Over(_)) = self.jobs.get(&job) {
            self.jobs.remove(&job);
        }
    }

    async fn tell(&self, job: JobId, news: News) {
        // A call that is over has no ears, and needs none.
        let _ = self.news.send((job, news)).await;
    }

    /// Waits out a delay, still taking commands. False when the proxy ends.
    async fn pause(&mut self, delay: Duration) -> bool {
        let until = tokio::time::Instant::now() + delay;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(until) => return true,
                command = self.commands.recv() => match command {
                    // A student who runs a cell now should not wait for a delay that grew meanwhile.
                    Some(Command::Wake) => return true,
                    Some(command) => self.keep_for_later(command),
                    None => return false,
                },
            }
        }
    }

    async fn collect_commands_until_wake(&mut self) -> bool {
        loop {
            match self.commands.recv().await {
                Some(Command::Wake) => return true,
                Some(command) => self.keep_for_later(command),
                None => return false,
            }
        }
    }

    fn keep_for_later(&mut self, command: Command) {
        // A submission is sent again when the broker says that it does not know the job.
        if let Noted::Once(message) = self.note(command) {
            self.unsent.push(*message);
        }
    }
}

/// What is to be sent, if the broker is connected.
enum Noted {
    Submission(Box<Submission>),
    Once(Box<FromProxy>),
    /// `resume` says it again.
    Repeated(Box<FromProxy>),
    Nothing,
}

/// `waits`: there are cells for which it is worth trying again.
fn no_broker(error: LinkError, waits: bool) -> NoBroker {
    let reason = describe(&error);
    match error {
        LinkError::Unauthorized { .. } => NoBroker::Ever(Obstacle {
            reason,
            hint: "ask your course staff for the token, and see `baton config show`",
        }),
        LinkError::TooMuch { problem, .. } if !waits => NoBroker::Ever(Obstacle {
            reason: problem.detail,
            hint: "shut down notebooks that you do not use, then run the cell again",
        }),
        LinkError::Certificate { address, problem } if !waits => NoBroker::Ever(Obstacle {
            reason: format!("there is no safe connection to the broker at {address}: {problem}"),
            hint: problem.hint(),
        }),
        LinkError::CaFile { .. } => NoBroker::Ever(Obstacle {
            reason,
            hint: "correct `ca_file` (`baton config show` says where it is set), then restart the kernel",
        }),
        LinkError::Refused { problem } => NoBroker::Ever(Obstacle {
            reason: problem.detail,
            hint: "correct `broker_address` (`baton config show` says where it is set), then restart the kernel",
        }),
        LinkError::Unable { .. } => NoBroker::Unable(reason),
        _ => NoBroker::Yet(reason),
    }
}

fn refused(refusal: &Refusal) -> NoBroker {
    let reason = refusal.to_string();
    let hint = match refusal {
        Refusal::Unable { .. } => return NoBroker::Unable(reason),
        Refusal::NotInCourse { .. } | Refusal::WhichCourse { .. } => {
            "name the course with `course` in ~/.config/baton/config.toml or with BATON_COURSE, then restart the kernel"
        }
        Refusal::NotYours {} => "restart the kernel",
        // The last four are said to workers only.
        Refusal::ProtocolVersion { .. }
        | Refusal::NoHello {}
        | Refusal::NotYourName { .. }
        | Refusal::WorkerConnected { .. }
        | Refusal::Replaced { .. }
        | Refusal::OutOfBounds { .. } => {
            "install the same version of Baton on both ends, or ask your course staff"
        }
    };
    NoBroker::Ever(Obstacle { reason, hint })
}

fn owner() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::Uid::current());
    match user {
        Ok(Some(user)) => user.name,
        _ => nix::unistd::Uid::current().to_string(),
    }
}
