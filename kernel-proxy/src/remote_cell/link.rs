//! The connection to the broker: opened by the first `%%gpu` cell, kept, and opened again when it breaks.
//!
//! In: commands of the running cell. Out: updates about its job, each event once and in order on any network.
//! After a reconnect the link resumes every open job after the last event that it has seen.

mod driver;
mod followed;

use super::{autostart::Obstacle, status_line::ShownQueuePosition};
use baton_protocol::{Answer, Excess, JobEvent, JobId, Outcome, Submission, proxy::FromProxy};
use baton_transport::{ChunkClient, Token};
use std::collections::VecDeque;
use tokio::sync::{mpsc, watch};

pub(super) use self::driver::open;

/// The running cell's end of the link.
pub(super) struct Link {
    commands: mpsc::Sender<Command>,
    updates: mpsc::Receiver<(JobId, JobUpdate)>,
    /// A job whose updates are kept while another job's updates are read.
    watched: Option<JobId>,
    kept: VecDeque<JobUpdate>,
    tries_anew: watch::Sender<Status>,
    status: watch::Receiver<Status>,
}

/// Workers whose session of this notebook ended and took objects with it that only it held.
pub(super) struct EndedSessions {
    workers: mpsc::UnboundedReceiver<String>,
}

impl EndedSessions {
    /// Cancel safe.
    pub(super) async fn next(&mut self) -> String {
        match self.workers.recv().await {
            Some(worker) => worker,
            None => std::future::pending().await,
        }
    }

    /// Forgets the sessions that ended so far, because a new session begins.
    pub(super) fn forget(&mut self) {
        while self.workers.try_recv().is_ok() {}
    }
}

enum Command {
    /// A cell needs the broker.
    Wake,
    Submit(Box<Submission>),
    /// Follow a job of an earlier kernel from its beginning.
    Attach(JobId),
    Send(Box<FromProxy>),
    /// Answers the job's question with this number. Repeated after each reconnect, and when the worker repeats the
    /// question.
    Answer(JobId, u64, Answer),
    /// Says that the answers to the job's open questions are being prepared.
    Prepare(JobId),
    /// Asks for the job's deferred state. Repeated after each reconnect until it arrives.
    WantDeferred(JobId),
    /// The proxy is done with the job. Repeated after each reconnect until the broker confirms it.
    Final(JobId, Box<FromProxy>),
}

#[derive(Debug)]
pub(super) enum JobUpdate {
    Position(ShownQueuePosition),
    Event(Box<JobEvent>),
    /// The broker has received the cancellation.
    Cancelling,
    /// The broker lost a job that it had reported before.
    Lost,
    /// The broker would not accept the submission or an answer.
    TooLarge(Excess),
}

pub(super) enum Step {
    Update(JobUpdate),
    Status(Status),
}

/// What a cell uses of a connected broker.
#[derive(Clone)]
pub(super) struct BrokerAccess {
    pub(super) chunks: ChunkClient,
    /// Workers may be on this machine.
    pub(super) near: bool,
    /// The course wants the notebook's variables to be saved when its kernel ends.
    pub(super) autosave: bool,
    pub(super) token: Option<Token>,
}

#[derive(Clone)]
pub(super) enum Status {
    Down {
        /// Why the last attempt failed.
        reason: Option<String>,
    },
    Up(BrokerAccess),
    /// The broker cannot serve at the moment; the driver keeps trying.
    Unable {
        reason: String,
    },
    /// Another attempt cannot succeed until someone removes the obstacle. The driver keeps trying while jobs are open.
    Refused(Obstacle),
}

impl Link {
    /// Tells the driver that a cell starts. A broker that refused this notebook is tried again.
    pub(super) async fn wake(&self) {
        self.tries_anew.send_if_modified(|status| {
            let refused = matches!(status, Status::Refused(_) | Status::Unable { .. });
            if refused {
                *status = Status::Down { reason: None };
            }
            refused
        });
        self.command(Command::Wake).await;
    }

    pub(super) async fn submit(&self, submission: Submission) {
        self.command(Command::Submit(Box::new(submission))).await;
    }

    pub(super) async fn attach(&self, job: JobId) {
        self.command(Command::Attach(job)).await;
    }

    /// Stops following the attached job, which goes on; another kernel may attach it.
    pub(super) async fn detach(&self, job: JobId) {
        let message = FromProxy::Detach { job };
        self.command(Command::Final(job, Box::new(message))).await;
    }

    pub(super) async fn send(&self, message: FromProxy) {
        self.command(Command::Send(Box::new(message))).await;
    }

    pub(super) async fn answer(&self, job: JobId, question: u64, answer: Answer) {
        self.command(Command::Answer(job, question, answer)).await;
    }

    /// Tells the worker that the answers to the job's questions are being prepared.
    pub(super) async fn prepare(&self, job: JobId) {
        self.command(Command::Prepare(job)).await;
    }

    pub(super) async fn want_deferred(&self, job: JobId) {
        self.command(Command::WantDeferred(job)).await;
    }

    /// Ends a job whose result is not used. `outcome` is what the student was told; `None` if the cell is submitted again.
    pub(super) async fn give_up(&self, job: JobId, outcome: Option<Outcome>) {
        let message = FromProxy::GivenUp { job, outcome };
        self.command(Command::Final(job, Box::new(message))).await;
    }

    /// Ends a job whose changes are applied, or never will be.
    pub(super) async fn applied(&self, job: JobId) {
        let message = FromProxy::Applied { job };
        self.command(Command::Final(job, Box::new(message))).await;
    }

    pub(super) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// Waits until the broker is connected.
    pub(super) fn broker(&self) -> impl Future<Output = BrokerAccess> + use<> {
        let mut status = self.status.clone();
        async move {
            loop {
                if let Status::Up(broker) = &*status.borrow_and_update() {
                    return broker.clone();
                }
                if status.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        }
    }

    pub(super) async fn status_changed(&mut self) {
        // The driver lives as long as the link.
        if self.status.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the next update about this job or the connection, and drops updates about abandoned
    /// jobs. Cancel safe.
    pub(super) async fn next_of(&mut self, job: JobId) -> Step {
        loop {
            tokio::select! {
                updates = self.updates.recv() => match updates {
                    Some((of, updates)) if of == job => return Step::Update(updates),
                    Some((of, updates)) if self.watched == Some(of) => self.kept.push_back(updates),
                    Some(_) => {}
                    None => std::future::pending().await,
                },
                changed = self.status.changed() => match changed {
                    Ok(()) => return Step::Status(self.status.borrow_and_update().clone()),
                    Err(_) => std::future::pending().await,
                },
            }
        }
    }

    /// Keeps this job's updates from now on; there are few of them.
    pub(super) fn watch(&mut self, job: Option<JobId>) {
        self.watched = job;
        self.kept.clear();
    }

    /// Returns the next update about the watched job. Cancel safe.
    pub(super) async fn next_of_watched(&mut self) -> JobUpdate {
        if let Some(updates) = self.kept.pop_front() {
            return updates;
        }
        loop {
            match self.updates.recv().await {
                Some((of, updates)) if self.watched == Some(of) => return updates,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }

    async fn command(&self, command: Command) {
        // Without a driver the proxy is shutting down, and nothing waits for the answer.
        let _ = self.commands.send(command).await;
    }
}
