//! One ZMTP connection, byte by byte, so that a test can also misbehave.

use baton_jupyter_wire::{
    connection::Endpoint,
    wire::{Ended, Tracker, decode_message, encode_message},
};
use bytes::Bytes;
use std::{
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    time::Duration,
};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) trait Stream: Read + Write {
    fn set_patience(&self, patience: Duration);
}

impl Stream for TcpStream {
    fn set_patience(&self, patience: Duration) {
        self.set_read_timeout(Some(patience)).unwrap();
    }
}

impl Stream for UnixStream {
    fn set_patience(&self, patience: Duration) {
        self.set_read_timeout(Some(patience)).unwrap();
    }
}

pub(crate) struct Peer {
    pub(crate) stream: Box<dyn Stream>,
    tracker: Tracker,
    /// Read, but not parsed yet.
    unread: Bytes,
    /// Parsed, but not a whole message yet.
    open: Vec<u8>,
}

impl Peer {
    /// Connects without a handshake.
    pub(crate) fn dial(endpoint: &Endpoint) -> Self {
        let stream: Box<dyn Stream> = match endpoint {
            Endpoint::Tcp { host, port } => {
                let stream = TcpStream::connect((host.as_str(), *port)).unwrap();
                stream.set_nodelay(true).unwrap();
                Box::new(stream)
            }
            Endpoint::Ipc(path) => Box::new(UnixStream::connect(path).unwrap()),
        };
        stream.set_patience(PATIENCE);
        Self {
            stream,
            tracker: Tracker::default(),
            unread: Bytes::new(),
            open: Vec::new(),
        }
    }

    pub(crate) fn connect(endpoint: &Endpoint, socket_type: &str, identity: &str) -> Self {
        let mut peer = Self::dial(endpoint);
        let mut greeting = [0; 64];
        greeting[0] = 0xff;
        greeting[9] = 0x7f;
        greeting[10] = 3;
        greeting[12..16].copy_from_slice(b"NULL");
        peer.stream.write_all(&greeting).unwrap();
        let mut ready = b"\x05READY".to_vec();
        for (name, value) in [("Socket-Type", socket_type), ("Identity", identity)] {
            ready.push(u8::try_from(name.len()).unwrap());
            ready.extend(name.as_bytes());
            ready.extend(u32::try_from(value.len()).unwrap().to_be_bytes());
            ready.extend(value.as_bytes());
        }
        let mut command = vec![4, u8::try_from(ready.len()).unwrap()];
        command.extend(ready);
        peer.stream.write_all(&command).unwrap();
        peer.await_ready();
        peer
    }

    /// Nothing may be sent before the other end is ready.
    fn await_ready(&mut self) {
        let next = self.next().expect("the other end shakes hands");
        assert!(next.is_none(), "a command comes first");
    }

    pub(crate) fn subscribe(&mut self, prefix: &str) {
        let frame = [b"\x01", prefix.as_bytes()].concat();
        self.send(&[frame.into()]);
    }

    pub(crate) fn send(&mut self, frames: &[Bytes]) {
        self.stream.write_all(&encode_message(frames)).unwrap();
    }

    /// The next message; `None` when the other end closed the connection.
    pub(crate) fn receive(&mut self) -> Option<Vec<Bytes>> {
        loop {
            if let Some(message) = self.next()? {
                return Some(message);
            }
        }
    }

    /// The next message, or `Some(None)` for a command.
    #[expect(clippy::option_option, reason = "closed, a command, a message")]
    fn next(&mut self) -> Option<Option<Vec<Bytes>>> {
        loop {
            if self.unread.is_empty() {
                self.unread = self.read()?;
            }
            let step = self.tracker.advance(&self.unread).unwrap();
            let is_message = step
                .ended
                .as_ref()
                .map(|ended| matches!(ended, Ended::Message(_)));
            self.open.extend_from_slice(&self.unread[..step.used]);
            self.unread = self.unread.slice(step.used..);
            if let Some(is_message) = is_message {
                let wire = std::mem::take(&mut self.open);
                return Some(is_message.then(|| decode_message(wire.into()).unwrap()));
            }
        }
    }

    fn read(&mut self) -> Option<Bytes> {
        let mut bytes = vec![0; 64 << 10];
        let count = match self.stream.read(&mut bytes) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("nothing came: {error}"),
        };
        bytes.truncate(count);
        (count > 0).then(|| bytes.into())
    }
}
