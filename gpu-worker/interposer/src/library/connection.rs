//! The connection to the worker, for all threads of the session.
//!
//! In: messages, and requests for more memory. Out: answers. The agent reads from the connection; see `agent.rs`.

use super::wire::{FRAME_BYTES, FromSession, SOCKET, TOKEN, ToSession};
use std::{
    io::{self, Read as _, Write as _},
    net::Shutdown,
    os::{
        fd::{AsRawFd as _, RawFd},
        unix::net::UnixStream,
    },
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// How long to wait for the worker's first message.
pub(super) const WELCOME: Duration = Duration::from_secs(5);

/// How a process of a session finds its worker.
pub(super) struct Introduction {
    pub(super) socket: String,
    pub(super) token: u128,
}

/// Returns `None` outside of sessions.
pub(super) fn introduction() -> Option<Introduction> {
    let socket = std::env::var(SOCKET).ok()?;
    let token = u128::from_str_radix(&std::env::var(TOKEN).ok()?, 16).ok()?;
    Some(Introduction { socket, token })
}

pub(super) struct Connection {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    stream: Option<Arc<UnixStream>>,
    /// How many connections there have been.
    generation: u64,
    /// The answer to the only request for memory that may be open.
    answer: Option<bool>,
    is_lost: bool,
}

/// The answer to a request for memory. A yes is valid for one connection only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Yes { generation: u64 },
    No,
}

impl Connection {
    pub(super) const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                stream: None,
                generation: 0,
                answer: None,
                is_lost: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Sends a message if there is a connection. Otherwise the next hello contains it, or it no longer matters.
    pub(super) fn send(&self, message: &FromSession) {
        if let Some(stream) = &self.state().stream {
            let _ = stream.as_ref().write_all(&message.encode());
        }
    }

    /// Sends a request for more memory, again after each reconnect. Only one thread at a time may ask.
    pub(super) fn ask_to_grow(&self, request: &FromSession) -> Answer {
        let mut state = self.state();
        loop {
            while state.stream.is_none() && !state.is_lost {
                state = self.wait(state);
            }
            if state.is_lost {
                return Answer::No;
            }
            let generation = state.generation;
            state.answer = None;
            if let Some(stream) = &state.stream {
                let _ = stream.as_ref().write_all(&request.encode());
            }
            while state.answer.is_none() && state.stream.is_some() && state.generation == generation
            {
                state = self.wait(state);
            }
            match state.answer.take() {
                Some(true) if state.generation == generation => {
                    return Answer::Yes { generation };
                }
                Some(false) => return Answer::No,
                _ => {}
            }
        }
    }

    pub(super) fn answer(&self, is_yes: bool) {
        self.state().answer = Some(is_yes);
        self.changed.notify_all();
    }

    pub(super) fn generation(&self) -> u64 {
        self.state().generation
    }

    pub(super) fn open(&self, stream: Arc<UnixStream>) {
        let mut state = self.state();
        state.stream = Some(stream);
        state.generation += 1;
        state.answer = None;
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn close(&self) {
        self.state().stream = None;
        self.changed.notify_all();
    }

    /// Ends the connection, and never opens another one.
    pub(super) fn hang_up(&self) {
        if let Some(stream) = &self.state().stream {
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.give_up();
    }

    /// No worker will answer any more.
    pub(super) fn give_up(&self) {
        self.state().is_lost = true;
        self.changed.notify_all();
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        (self.changed.wait(state)).unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Assembles frames; a read that ends early loses nothing.
///
/// The connection has one descriptor, because forked children close the inherited one by its number.
pub(super) struct Frames {
    stream: Arc<UnixStream>,
    frame: [u8; FRAME_BYTES],
    filled: usize,
}

impl Frames {
    pub(super) fn new(stream: Arc<UnixStream>) -> Self {
        Self {
            stream,
            frame: [0; FRAME_BYTES],
            filled: 0,
        }
    }

    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.stream.as_raw_fd()
    }

    /// Returns `None` when the stream's read timeout has passed.
    pub(super) fn next(&mut self) -> io::Result<Option<ToSession>> {
        while self.filled < FRAME_BYTES {
            match self.stream.as_ref().read(&mut self.frame[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.filled += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.filled = 0;
        ToSession::decode(&self.frame)
            .map(Some)
            .map_err(|_| io::ErrorKind::InvalidData.into())
    }
}
