//! The connection to the broker: opened by the first `%%gpu` cell, kept, and opened again when it breaks.
//!
//! In: commands of the running call. Out: news of its job, each event once and in order whatever the network does.
//! After a reconnect every open job is resumed from the last event that was seen.

mod keeper;

use std::collections::VecDeque;

use baton_protocol::proxy::FromProxy;
use baton_protocol::{JobEvent, JobId, Outcome, Submission};
use baton_transport::{ChunkLane, Token};
use tokio::sync::{mpsc, watch};

pub(super) use self::keeper::open;
use super::autostart::Obstacle;
use super::notice::Place;

/// The call's end of the link.
pub(super) struct Link {
    commands: mpsc::Sender<Command>,
    news: mpsc::Receiver<(JobId, News)>,
    /// A job whose news are kept while those of another are asked for.
    watched: Option<JobId>,
    kept: VecDeque<News>,
    tries_anew: watch::Sender<Status>,
    status: watch::Receiver<Status>,
}

/// The workers on which a session of this notebook has ended that held what no other can have.
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

    /// A new session begins: what was said of earlier ones no longer matters.
    pub(super) fn forget(&mut self) {
        while self.workers.try_recv().is_ok() {}
    }
}

enum Command {
    /// A call needs the broker.
    Wake,
    Submit(Box<Submission>),
    Send(Box<FromProxy>),
    /// As `Send`, and once more after each reconnect until the next answer or the job's end.
    Answer(JobId, Box<FromProxy>),
    /// Nothing more is wanted of the job. Said again after each reconnect until the broker has stored it.
    LastWord(JobId, Box<FromProxy>),
}

#[derive(Debug)]
pub(super) enum News {
    Place(Place),
    Event(Box<JobEvent>),
    /// The broker has heard that the student does not want to wait.
    Cancelling,
    /// The broker lost the job after it had begun to tell of it.
    Lost,
}

pub(super) enum Step {
    News(News),
    Status(Status),
}

/// The ways to a worker, as far as the broker's address tells.
#[derive(Clone)]
pub(super) struct Lanes {
    pub(super) chunks: ChunkLane,
    /// Workers may be on this machine.
    pub(super) near: bool,
    pub(super) token: Option<Token>,
}

#[derive(Clone)]
pub(super) enum Status {
    Down {
        /// Why the last attempt failed.
        reason: Option<String>,
    },
    Up(Lanes),
    /// The broker lacks what it needs; it is tried again.
    Unable {
        reason: String,
    },
    /// Trying again is of no use.
    Refused(Obstacle),
}

impl Link {
    /// What kept the broker from serving this notebook may be over.
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

    pub(super) async fn send(&self, message: FromProxy) {
        self.command(Command::Send(Box::new(message))).await;
    }

    /// For what a running cell waits for: a message that a broker may lose when it ends.
    pub(super) async fn answer(&self, job: JobId, message: FromProxy) {
        self.command(Command::Answer(job, Box::new(message))).await;
    }

    /// The call ended without what the job did, and for the student like this; none: its cell is submitted anew.
    pub(super) async fn give_up(&self, job: JobId, outcome: Option<Outcome>) {
        let word = FromProxy::GivenUp { job, outcome };
        self.command(Command::LastWord(job, Box::new(word))).await;
    }

    /// The job's change is home, or never will be.
    pub(super) async fn applied(&self, job: JobId) {
        let word = FromProxy::Applied { job };
        self.command(Command::LastWord(job, Box::new(word))).await;
    }

    pub(super) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    /// The lanes, as soon as there are any.
    pub(super) fn lanes(&self) -> impl Future<Output = Lanes> + use<> {
        let mut status = self.status.clone();
        async move {
            loop {
                if let Status::Up(lanes) = &*status.borrow_and_update() {
                    return lanes.clone();
                }
                if status.changed().await.is_err() {
                    return std::future::pending().await;
                }
            }
        }
    }

    pub(super) async fn status_changed(&mut self) {
        // The keeper lives as long as the link does; if it is gone, so is everything else.
        if self.status.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// What happens next to this job or to the connection; news of jobs that were abandoned are dropped. Cancel safe.
    pub(super) async fn next_of(&mut self, job: JobId) -> Step {
        loop {
            tokio::select! {
                news = self.news.recv() => match news {
                    Some((of, news)) if of == job => return Step::News(news),
                    Some((of, news)) if self.watched == Some(of) => self.kept.push_back(news),
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

    /// From now on, the news of this job are kept. There are a few of them at most.
    pub(super) fn watch(&mut self, job: Option<JobId>) {
        self.watched = job;
        self.kept.clear();
    }

    /// What happens next to the watched job. Cancel safe.
    pub(super) async fn next_of_watched(&mut self) -> News {
        if let Some(news) = self.kept.pop_front() {
            return news;
        }
        loop {
            match self.news.recv().await {
                Some((of, news)) if self.watched == Some(of) => return news,
                Some(_) => {}
                None => std::future::pending().await,
            }
        }
    }

    async fn command(&self, command: Command) {
        // Only a proxy that is shutting down has no keeper, and then nobody waits for the answer.
        let _ = self.commands.send(command).await;
    }
}

/// An error with its causes, in one line.
pub(super) fn describe(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
