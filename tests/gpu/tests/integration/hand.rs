//! A worker's end that says what a test wants, when it wants: for what must happen at one moment of a hand-over.

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use baton_interposer::wire::{FRAME_BYTES, FromSession, ToSession};

use crate::world::{Client, World, eventually};

const PATIENCE: Duration = Duration::from_secs(10);

/// One process' connection. It may allocate what it asks for.
pub(crate) struct Hand {
    stream: UnixStream,
    said: Receiver<FromSession>,
    epoch: u64,
}

impl Hand {
    /// A program, and the worker's end that it found instead of the world's.
    pub(crate) fn with_client(world: &mut World, variables: &[(&str, &str)]) -> (Self, Client) {
        let token = world.admit(None);
        world.stop_worker();
        let _ = std::fs::remove_file(world.socket());
        let listener = UnixListener::bind(world.socket()).unwrap();
        let hand = std::thread::spawn(move || Self::accept(&listener, 1 << 40));
        let client = world.client_of(token, variables);
        (hand.join().unwrap(), client)
    }

    fn accept(listener: &UnixListener, cap_bytes: u64) -> Self {
        let (stream, _) = listener.accept().unwrap();
        let mut reader = stream.try_clone().unwrap();
        assert!(matches!(read(&mut reader), Some(FromSession::Hello(_))));
        let (sender, said) = channel();
        std::thread::spawn(move || take_in(reader, &sender));
        let mut hand = Self {
            stream,
            said,
            epoch: 0,
        };
        hand.say(ToSession::Welcome { cap_bytes });
        hand
    }

    pub(crate) fn say(&mut self, message: ToSession) {
        self.stream.write_all(&message.encode()).unwrap();
    }

    pub(crate) fn grant(&mut self) {
        self.epoch += 1;
        let epoch = self.epoch;
        self.say(ToSession::Grant { epoch });
    }

    /// Takes the lease back while the GPU computes, and returns when nothing more passes the gate: a program's second
    /// thread stands there.
    pub(crate) fn close_gate(&mut self, world: &World, client: &mut Client) {
        self.drop_lease();
        // For the GPU it waits behind the closed gate.
        assert!(eventually(|| world.machine.waiting().unwrap() == 1));
        client.does("launch-aside nothing 1000000");
        self.until(|message| message == FromSession::Want);
    }

    /// What was said that was not waited for.
    pub(crate) fn said(&self) -> Vec<FromSession> {
        self.said.try_iter().collect()
    }

    pub(crate) fn drop_lease(&mut self) {
        let epoch = self.epoch;
        self.say(ToSession::Drop { epoch });
    }

    /// The worker's end ends.
    pub(crate) fn leave(self) {
        self.stream.shutdown(Shutdown::Both).unwrap();
    }

    pub(crate) fn until_yielded(&self) {
        self.until(|message| matches!(message, FromSession::Yielded { .. }));
    }

    pub(crate) fn until(&self, is_meant: impl Fn(FromSession) -> bool) -> FromSession {
        let end = Instant::now() + PATIENCE;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let message = self.said.recv_timeout(left).unwrap();
            if is_meant(message) {
                return message;
            }
        }
    }
}

fn read(stream: &mut UnixStream) -> Option<FromSession> {
    let mut frame = [0; FRAME_BYTES];
    stream.read_exact(&mut frame).ok()?;
    Some(FromSession::decode(&frame).unwrap())
}

fn take_in(mut reader: UnixStream, said: &Sender<FromSession>) {
    let mut writer = reader.try_clone().unwrap();
    while let Some(message) = read(&mut reader) {
        if let FromSession::Grew { bytes } = message {
            let _ = writer.write_all(&ToSession::Grow { bytes }.encode());
        }
        let _ = said.send(message);
    }
}
