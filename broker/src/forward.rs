//! A follower forwards every connection to the leader, byte by byte.
//!
//! So several brokers can share one address. A connection ends when either of the two brokers ends,
//! and its peer reconnects. With TLS, the leader decrypts, so all brokers need a certificate for
//! the shared address.

use crate::{engine::Leadership, listen::Listen};
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

/// If the leader's machine is down, a connection to it is not refused but hangs.
const PATIENCE: Duration = Duration::from_secs(3);

/// Further connections are closed, because a wrong address could lead back to this broker.
const MOST: usize = 8192;

/// Accepts connections. While another broker is known to be the leader, it forwards them.
pub(crate) struct Gate<L> {
    listener: L,
    leadership: watch::Receiver<Leadership>,
    stop: CancellationToken,
    room: Arc<Semaphore>,
}

impl<L> Gate<L> {
    pub(crate) fn new(
        listener: L,
        leadership: &watch::Sender<Leadership>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            listener,
            leadership: leadership.subscribe(),
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
            let Leadership::Follower { leader } = self.leadership.borrow().clone() else {
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
                // If this fails, the connection is slower but works.
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
    let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
    timeout(PATIENCE, connecting).await.map_err(timed_out)?
}

/// The address for other brokers, `HOST:PORT` or `unix:PATH`; `None` if it is unknown.
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
