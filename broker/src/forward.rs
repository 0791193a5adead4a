//! A broker that stands by answers nobody: it hands every connection to the one that leads, byte by byte.
//!
//! With TLS the leader ends the encryption, so all of them need a certificate for that address.
//! So several brokers may stand behind one address, whichever is asked. A connection ends with either of them, and its
//! peer comes back.

use crate::{config::Listen, lead::Standing};
use axum::serve::Listener;
use baton_protocol::address::BrokerAddress;
use std::{io, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite, copy_bidirectional},
    net::{TcpStream, UnixStream},
    sync::{Semaphore, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// A leader whose machine is gone refuses nothing.
const PATIENCE: Duration = Duration::from_secs(3);

/// More connections are closed: a wrong address could lead back here.
const MOST: usize = 8192;

/// Lets connections through unless another broker is known to lead.
pub(crate) struct Gate<L> {
    listener: L,
    standing: watch::Receiver<Standing>,
    stop: CancellationToken,
    room: Arc<Semaphore>,
}

impl<L> Gate<L> {
    pub(crate) fn new(
        listener: L,
        standing: &watch::Sender<Standing>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            listener,
            standing: standing.subscribe(),
            stop,
            room: Arc::new(Semaphore::new(MOST)),
        }
    }
}

impl<L: Listener> Listener for Gate<L> {
    type Io = L::Io;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        loop {
            let (stream, address) = self.listener.accept().await;
            let Standing::StandsBy { leader } = self.standing.borrow().clone() else {
                return (stream, address);
            };
            let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
                continue;
            };
            let forwarded = forward(stream, leader);
            let stopped = self.stop.clone().cancelled_owned();
            tokio::spawn(async move {
                let _room = room;
                tokio::select! {
                    () = stopped => {}
                    () = forwarded => {}
                }
            });
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

async fn forward(mut stream: impl AsyncRead + AsyncWrite + Unpin, leader: String) {
    let forwarded = match leader.strip_prefix("unix:") {
        Some(path) => match in_time(UnixStream::connect(path)).await {
            Ok(mut onward) => copy_bidirectional(&mut stream, &mut onward).await,
            Err(error) => Err(error),
        },
        None => match in_time(TcpStream::connect(&leader)).await {
            Ok(mut onward) => {
                // Delay is a matter of taste, not of truth.
                drop(onward.set_nodelay(true));
                copy_bidirectional(&mut stream, &mut onward).await
            }
            Err(error) => Err(error),
        },
    };
    if let Err(error) = forwarded {
        tracing::debug!("A connection to the leader at {leader} has ended: {error}");
    }
}

async fn in_time<T>(connecting: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    timeout(PATIENCE, connecting).await.map_err(late)?
}

/// What other brokers may connect to: `HOST:PORT` or `unix:PATH`; `None` when that cannot be known.
pub(crate) fn address(listen: &Listen, bound: &BrokerAddress) -> Option<String> {
    match (listen, bound) {
        (Listen::Tcp(address), _) if address.ip().is_unspecified() => None,
        (_, BrokerAddress::Unix(path)) => Some(format!("unix:{}", path.display())),
        (_, BrokerAddress::Http(url)) => {
            let (_, address) = url.split_once("://").unwrap_or(("", url));
            Some(address.to_owned())
        }
    }
}
