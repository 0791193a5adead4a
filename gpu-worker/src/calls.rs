//! System calls of a session that wait until the worker answers them.
//!
//! In: which calls wait, and a function that decides about them (the *judge*). Out: the filter for the session's first
//! process, and an answer to each call.
//!
//! **Invariant:** every call that waits gets an answer, or fails when the worker ends.

mod memory;
mod sys;
mod table;

use nix::{
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
};
use std::{
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    sync::Arc,
};
use tokio::sync::oneshot;

pub(crate) use self::memory::{read_memory, read_text};
pub(crate) use self::sys::{Notification, Watching, bytes, file_of};
pub(crate) use self::table::{About, Connect, FlagsOf, PathOf, Target, TimesOf, Watched};

/// How often to ask again for an answer that the judge could not give at once.
const LOOK_EVERY_MS: u8 = 5;

/// How many calls of a session may wait for the judge's answer at once. Each may hold descriptors of the worker.
pub(crate) const MOST_WAITING: usize = 512;

/// What becomes of a call that waits. [`Answer::Refuse`] lets it fail with this error number.
pub(crate) enum Answer {
    /// The system carries it out.
    Resume,
    /// It returns zero, because the worker has carried it out.
    Done,
    Refuse(i32),
    /// It returns a new descriptor of this file.
    Give {
        file: OwnedFd,
        closes_on_exec: bool,
    },
}

/// A system call that waits. If this is dropped, the call fails with `EIO`.
pub(crate) struct Waiting {
    listener: Arc<OwnedFd>,
    id: Option<u64>,
}

impl Waiting {
    pub(crate) fn resume(self) {
        self.answer(&Answer::Resume);
    }

    /// Lets the call fail with this error number.
    pub(crate) fn refuse(self, errno: i32) {
        self.answer(&Answer::Refuse(errno));
    }

    pub(crate) fn answer(mut self, answer: &Answer) {
        let Some(id) = self.id.take() else { return };
        match answer {
            Answer::Resume => sys::resume(&self.listener, id),
            Answer::Done => sys::is_done(&self.listener, id),
            Answer::Refuse(errno) => sys::refuse(&self.listener, id, *errno),
            Answer::Give {
                file,
                closes_on_exec,
            } => sys::give(&self.listener, id, file.as_fd(), *closes_on_exec),
        }
    }

    /// Whether the call still waits. If it does, everything that was read of its thread until now was indeed from this
    /// thread. If not, the thread may have ended, and its id may belong to another one.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.id.is_some_and(|id| sys::waits(&self.listener, id))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            sys::refuse(&self.listener, id, libc::EIO);
        }
    }
}

/// A call that the judge could not answer at once.
pub(crate) struct Later {
    pub(crate) waiting: Waiting,
    /// Returns `None` while there is no answer. It must not block.
    pub(crate) again: Box<dyn FnMut() -> Option<Answer>>,
}

/// Tells whether the session's calls wait. This is known once the session's process has sent the listener, or once all
/// copies of its end of the connection are closed, including that of the worker.
pub(crate) struct Works(oneshot::Receiver<bool>);

impl Works {
    pub(crate) async fn known(self) -> bool {
        self.0.await.unwrap_or(false)
    }
}

/// Starts a thread that answers the system calls of a session, and ends with the session's last process. Must be called
/// before the session's process starts. `judge` runs on this thread, and meanwhile other calls of the session wait.
pub(crate) fn watch(
    watched: Watched,
    judge: impl FnMut(Notification, Waiting) -> Option<Later> + Send + 'static,
) -> io::Result<(Works, Watching)> {
    let (from_session, to_worker) = UnixStream::pair()?;
    let (says, works) = oneshot::channel();
    let watching = Watching::new(watched, to_worker, &from_session);
    std::thread::Builder::new()
        .name("baton-calls".to_owned())
        .spawn(move || {
            let listener = sys::receive_listener(&from_session);
            // There is no receiver if the session did not start.
            let _ = says.send(listener.is_some());
            if let Some(listener) = listener {
                listen(&Arc::new(listener), judge);
            }
        })?;
    Ok((Works(works), watching))
}

fn listen(listener: &Arc<OwnedFd>, mut judge: impl FnMut(Notification, Waiting) -> Option<Later>) {
    let mut open: Vec<Later> = Vec::new();
    loop {
        let mut ready = [PollFd::new(listener.as_fd(), PollFlags::POLLIN)];
        let patience = match open.is_empty() {
            true => PollTimeout::NONE,
            false => PollTimeout::from(LOOK_EVERY_MS),
        };
        match poll(&mut ready, patience) {
            Ok(_) => {}
            Err(nix::Error::EINTR) => continue,
            Err(_) => return,
        }
        open = std::mem::take(&mut open)
            .into_iter()
            .filter_map(look_again)
            .collect();
        let events = ready[0].revents().unwrap_or(PollFlags::POLLHUP);
        if events.is_empty() {
            continue;
        }
        if !events.contains(PollFlags::POLLIN) {
            return;
        }
        match sys::receive(listener) {
            Ok(Some(notification)) => {
                let waiting = Waiting {
                    listener: listener.clone(),
                    id: Some(notification.id),
                };
                match judge(notification, waiting) {
                    Some(later) if open.len() < MOST_WAITING => open.push(later),
                    Some(later) => later.waiting.refuse(libc::EAGAIN),
                    None => {}
                }
            }
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "System calls of a session are no longer observed");
                return;
            }
        }
    }
}

fn look_again(mut later: Later) -> Option<Later> {
    match (later.again)() {
        Some(answer) => later.waiting.answer(&answer),
        None if later.waiting.is_waited_for() => return Some(later),
        None => {}
    }
    None
}
