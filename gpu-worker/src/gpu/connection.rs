//! The interposers' connections: frames in, frames out.
//!
//! Each session has a socket of its own, so that no session can reach, or keep from connecting, processes of another.
//!
//! **Invariant:** no session can use up the worker's descriptors. The arbitration limits how many connections a
//! session has. A connection that has not sent its first message is closed when many newer ones have come to its socket.

use super::{
    Token,
    arbitration::{Arrival, Input},
};
use crate::processes;
use baton_interposer::wire::{FRAME_BYTES, FromSession, ToSession};
use nix::unistd::{Pid, Uid};
use std::{io, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy, sink},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf, SocketAddr},
    },
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{sleep, timeout},
};

const PAUSE: Duration = Duration::from_millis(100);

/// How long to wait for a process: for its first message, until it reads from a full connection, and until it
/// has ended after it was cut off.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many messages may be queued for a process that does not read.
const UNREAD: usize = 64;

/// A connection that has not sent its first message when this many newer ones have come is closed.
const NEWER: u64 = 64;

/// Accepts connections at one socket. Those that it has accepted do not end with it.
pub(super) async fn accept_all(listener: UnixListener, accepted: mpsc::Sender<Accepted>) {
    let newest = watch::Sender::new(0);
    loop {
        let Ok((stream, card)) = listener.accept().await else {
            // Probably too many files are open.
            sleep(PAUSE).await;
            continue;
        };
        let place = *newest.borrow() + 1;
        newest.send_replace(place);
        let connection = Accepted {
            stream,
            card,
            place,
            newest: newest.subscribe(),
        };
        if accepted.send(connection).await.is_err() {
            return;
        }
    }
}

/// A connection at one of the sockets.
pub(super) struct Accepted {
    stream: UnixStream,
    card: SocketAddr,
    /// How many connections its socket had accepted, with this one.
    place: u64,
    /// How many connections its socket has accepted by now.
    newest: watch::Receiver<u64>,
}

/// Serves the connections of all sockets.
pub(super) async fn serve_all(mut accepted: mpsc::Receiver<Accepted>, inputs: mpsc::Sender<Input>) {
    let mut connections = JoinSet::new();
    let mut number = 0;
    loop {
        tokio::select! {
            Some(accepted) = accepted.recv() => {
                number += 1;
                let connection = Connection { number, inputs: inputs.clone() };
                connections.spawn(connection.serve(accepted));
            }
            Some(_) = connections.join_next() => {}
            else => return,
        }
    }
}

struct Connection {
    number: u64,
    inputs: mpsc::Sender<Input>,
}

impl Connection {
    async fn serve(self, accepted: Accepted) {
        let end = self.converse(accepted).await;
        tracing::debug!("A session's connection to the GPU ended: {end:?}");
        let _ = self.inputs.send(Input::Left(self.number)).await;
    }

    async fn converse(&self, accepted: Accepted) -> io::Result<()> {
        let Accepted {
            stream,
            card,
            place,
            mut newest,
        } = accepted;
        let peer = stream.peer_cred()?;
        if peer.uid() != Uid::effective().as_raw() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let peer = Pid::from_raw(peer.pid().unwrap_or_default());
        let process = processes::caller(peer, card.as_abstract_name());
        let (mut reader, writer) = stream.into_split();
        let last = place + NEWER;
        let first = tokio::select! {
            biased;
            first = timeout(PATIENCE, receive(&mut reader)) => first??,
            _ = newest.wait_for(|newest| *newest > last) => {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
        };
        let hello = match first {
            FromSession::Hello(hello) => hello,
            FromSession::Look { token } => return show(token, writer, &self.inputs).await,
            _ => return Err(io::ErrorKind::InvalidData.into()),
        };
        let (outgoing, messages) = mpsc::channel(UNREAD);
        let arrival = Arrival {
            number: self.number,
            hello,
            process,
            inner_process: processes::innermost_number(process).unwrap_or(process),
            outgoing,
        };
        let _ = self.inputs.send(Input::Arrived(arrival)).await;
        let mut is_welcome = false;
        tokio::select! {
            end = forward(self.number, &mut reader, &self.inputs) => end,
            end = send_all(writer, messages, &mut is_welcome) => {
                if is_welcome {
                    // The process's memory is freed only when it ends, so its end is waited for.
                    let _ = timeout(PATIENCE, copy(&mut reader, &mut sink())).await;
                }
                end
            }
        }
    }
}

/// Answers what the session has, for the driver's monitoring in one of its processes.
async fn show(
    token: Token,
    mut writer: OwnedWriteHalf,
    inputs: &mpsc::Sender<Input>,
) -> io::Result<()> {
    let (answer, has) = oneshot::channel();
    let _ = inputs.send(Input::Looked(token, answer)).await;
    for message in has.await.unwrap_or_default() {
        timeout(PATIENCE, writer.write_all(&message.encode())).await??;
    }
    Ok(())
}

async fn forward(
    number: u64,
    reader: &mut OwnedReadHalf,
    inputs: &mpsc::Sender<Input>,
) -> io::Result<()> {
    loop {
        let message = receive(reader).await?;
        let _ = inputs.send(Input::Said(number, message)).await;
    }
}

async fn receive(reader: &mut OwnedReadHalf) -> io::Result<FromSession> {
    let mut frame = [0; FRAME_BYTES];
    reader.read_exact(&mut frame).await?;
    FromSession::decode(&frame).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Ends when the process is cut off. `is_welcome`: set when it is welcomed.
async fn send_all(
    mut writer: OwnedWriteHalf,
    mut messages: mpsc::Receiver<ToSession>,
    is_welcome: &mut bool,
) -> io::Result<()> {
    while let Some(message) = messages.recv().await {
        *is_welcome |= matches!(message, ToSession::Welcome { .. });
        timeout(PATIENCE, writer.write_all(&message.encode())).await??;
    }
    Ok(())
}
