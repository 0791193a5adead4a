//! The connection to the worker, for all threads of the session.
//!
//! In: what they have to say, and questions for more memory. Out: answers. Reading is the agent's; see `agent.rs`.

use std::{
    io::{self, Read as _, Write as _},
    os::fd::{AsRawFd as _, RawFd},
    os::unix::net::UnixStream,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use super::wire::{FRAME_BYTES, FromSession, ToSession};

pub(super) struct Line {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    stream: Option<Arc<UnixStream>>,
    /// How many connections there were.
    generation: u64,
    /// To the one question for memory that may be open.
    answer: Option<bool>,
    is_lost: bool,
}

/// What became of a question for memory. A yes holds for one connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Yes { generation: u64 },
    No,
}

impl Line {
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

    /// What is said while nobody listens is in the next hello, or is of no use any more.
    pub(super) fn say(&self, message: &FromSession) {
        if let Some(stream) = &self.state().stream {
            let _ = stream.as_ref().write_all(&message.encode());
        }
    }

    /// Asks for more memory, also across connections. Only one thread at a time may ask.
    pub(super) fn ask_to_grow(&self, bytes: u64) -> Answer {
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
                let _ = stream
                    .as_ref()
                    .write_all(&FromSession::Grew { bytes }.encode());
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

    /// Nobody will listen any more.
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

/// Puts frames together; a read that is cut short loses nothing.
///
/// The connection has one descriptor, because forked children close what they inherit of it by its number.
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

    /// `None` when the stream's time is up.
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
