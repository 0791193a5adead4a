//! A worker's side that a test controls message by message, for events at a particular moment of a hand-over.

use crate::world::{Client, PATIENCE, World, eventually};
use baton_interposer::wire::{FRAME_BYTES, FromSession, ToSession};
use std::{
    io::{Read as _, Write as _},
    net::Shutdown,
    os::unix::net::{UnixListener, UnixStream},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    time::Instant,
};

/// The connection of one process. All its requests for memory are granted.
pub(crate) struct Hand {
    stream: UnixStream,
    said: Receiver<FromSession>,
    leases: Arc<Mutex<Leases>>,
}

/// Until [`Hand::drop_lease`], a lease that the process returns because it was not used for a while is granted
/// again on the next request.
#[derive(Default)]
struct Leases {
    epoch: u64,
    are_granted: bool,
}

impl Leases {
    fn grant(&mut self, mut stream: &UnixStream) {
        self.epoch += 1;
        let epoch = self.epoch;
        let _ = stream.write_all(&ToSession::Grant { epoch }.encode());
    }
}

impl Hand {
    /// A program, and the worker's side that it connects to instead of the world's.
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
        let leases = Arc::<Mutex<Leases>>::default();
        let granted = leases.clone();
        std::thread::spawn(move || take_in(reader, &sender, &granted));
        let mut hand = Self {
            stream,
            said,
            leases,
        };
        hand.send(ToSession::Welcome { cap_bytes });
        hand
    }

    pub(crate) fn send(&mut self, message: ToSession) {
        self.stream.write_all(&message.encode()).unwrap();
    }

    /// The process may have closed the connection.
    pub(crate) fn try_say(&mut self, message: ToSession) {
        let _ = self.stream.write_all(&message.encode());
    }

    pub(crate) fn grant(&mut self) {
        let mut leases = self.leases.lock().unwrap();
        leases.are_granted = true;
        leases.grant(&self.stream);
    }

    /// Takes the lease back while the GPU computes, and returns when the gate is closed and the program's
    /// second thread waits there.
    pub(crate) fn close_gate(&mut self, world: &World, client: &mut Client) {
        self.drop_lease();
        // The agent waits for the GPU behind the closed gate.
        assert!(eventually(|| world.machine.waiting().unwrap() == 1));
        client.does("launch-aside nothing 1000000");
        self.until(|message| message == FromSession::Want);
    }

    /// Messages that were received and not waited for.
    pub(crate) fn said(&self) -> Vec<FromSession> {
        self.said.try_iter().collect()
    }

    pub(crate) fn drop_lease(&mut self) {
        let epoch = {
            let mut leases = self.leases.lock().unwrap();
            leases.are_granted = false;
            leases.epoch
        };
        self.send(ToSession::Preempt { epoch });
    }

    /// Closes the worker's side.
    pub(crate) fn leave(self) {
        self.stream.shutdown(Shutdown::Both).unwrap();
    }

    /// Waits until the process has returned the last lease. It may have returned earlier ones by itself.
    pub(crate) fn until_yielded(&self) {
        let last = self.leases.lock().unwrap().epoch;
        self.until(
            |message| matches!(message, FromSession::Yielded { epoch, .. } if epoch == last),
        );
    }

    /// All further messages, until the process closes the connection or falls silent.
    pub(crate) fn until_left(&self) -> Vec<FromSession> {
        std::iter::from_fn(|| self.said.recv_timeout(PATIENCE).ok()).collect()
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

fn take_in(mut reader: UnixStream, said: &Sender<FromSession>, leases: &Mutex<Leases>) {
    let mut writer = reader.try_clone().unwrap();
    while let Some(message) = read(&mut reader) {
        // Before the process has its answer, so that a test that waited for that finds all earlier messages.
        let _ = said.send(message);
        match message {
            FromSession::Grew { bytes } => {
                let _ = writer.write_all(&ToSession::Grow { bytes }.encode());
            }
            FromSession::Want => {
                let mut leases = leases.lock().unwrap();
                if leases.are_granted {
                    leases.grant(&writer);
                }
            }
            _ => {}
        }
    }
}
