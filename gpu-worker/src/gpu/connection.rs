//! The interposers' connections: frames in, frames out.

use std::{io, time::Duration};

use baton_interposer::wire::{FRAME_BYTES, FromSession, ToSession};
use nix::unistd::{Pid, Uid};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy, sink},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf, SocketAddr},
    },
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::{sleep, timeout},
};

use super::{
    Token,
    arbitration::{Arrival, Input},
};
use crate::processes;

const PAUSE: Duration = Duration::from_millis(100);

/// How long to wait for a process: for its first message, until it reads from a full connection, and until it
/// has ended after it was cut off.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many messages may be queued for a process that does not read.
const UNREAD: usize = 64;

pub(super) async fn accept_all(listener: UnixListener, inputs: mpsc::Sender<Input>) {
    let mut connections = JoinSet::new();
    let mut count = 0;
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, card)) = accepted else {
                    // Probably too many files are open.
                    sleep(PAUSE).await;
                    continue;
                };
                count += 1;
                connections.spawn(serve(count, stream, card, inputs.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(number: u64, stream: UnixStream, card: SocketAddr, inputs: mpsc::Sender<Input>) {
    let end = converse(number, stream, &card, &inputs).await;
    tracing::debug!("A session's connection to the GPU ended: {end:?}");
    let _ = inputs.send(Input::Left(number)).await;
}

async fn converse(
    number: u64,
    stream: UnixStream,
    card: &SocketAddr,
    inputs: &mpsc::Sender<Input>,
) -> io::Result<()> {
    let peer = stream.peer_cred()?;
    if peer.uid() != Uid::effective().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let peer = Pid::from_raw(peer.pid().unwrap_or_default());
    let process = processes::caller(peer, card.as_abstract_name());
    let (mut reader, writer) = stream.into_split();
    let hello = match timeout(PATIENCE, receive(&mut reader)).await?? {
        FromSession::Hello(hello) => hello,
        FromSession::Look { token } => return show(token, writer, inputs).await,
        _ => return Err(io::ErrorKind::InvalidData.into()),
    };
    let (outgoing, messages) = mpsc::channel(UNREAD);
    let arrival = Arrival {
        number,
        hello,
        process,
        outgoing,
    };
    let _ = inputs.send(Input::Arrived(arrival)).await;
    tokio::select! {
        end = forward(number, &mut reader, inputs) => end,
        end = send_all(writer, messages) => {
            // The process's memory is freed only when it ends, so its end is waited for.
            let _ = timeout(PATIENCE, copy(&mut reader, &mut sink())).await;
            end
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

/// Ends when the process is cut off.
async fn send_all(
    mut writer: OwnedWriteHalf,
    mut messages: mpsc::Receiver<ToSession>,
) -> io::Result<()> {
    while let Some(message) = messages.recv().await {
        timeout(PATIENCE, writer.write_all(&message.encode())).await??;
    }
    Ok(())
}
