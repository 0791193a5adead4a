//! Accepts connections and serves HTTP on them.
//!
//! A peer that begins a request and never ends it would occupy a connection for ever, and memory
//! for what it has sent. So the head of each request must arrive within [`HEAD_WITHIN`], including
//! later ones on the same connection. A body must arrive at [`SLOWEST_BYTES`] per second after
//! [`BODY_GRACE`], and bytes that arrive faster allow no longer pause than that; only the time during
//! which the broker waits for it counts. Responses have no time limit, because pages and WebSockets
//! stay open, but their peer must read ([`Metered`]).
//!
//! A connection that has not shown a token has less time, and gives way to newer ones ([`guests`]). Any other counts for the person
//! whose request it carried last.
//!
//! If connections used up all file descriptors, the broker could neither read a chunk nor report
//! the problem. So the last [`HEADROOM`] are reserved for its own use. A connection that would take
//! one of them gets an error and is closed.

use super::{
    attempts::Peer,
    guests::{self, Guest, Guests, TimeIsUp},
    headers,
    meter::{Meter, Metered},
    seldom::Seldom,
};
use crate::web::ApiError;
use axum::{
    Extension, Router,
    body::{Body, Bytes, HttpBody},
    extract::Request,
    middleware::{self, Next},
    response::Response,
    serve::Listener,
};
use futures_util::{
    StreamExt,
    stream::{self, Stream},
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use std::{io::ErrorKind, net::IpAddr, os::fd::AsFd, pin::pin, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;
use tower::Layer;

/// A program whose idle connection is closed after this time opens a new one for its next request.
const HEAD_WITHIN: Duration = Duration::from_secs(60);
const BODY_GRACE: Duration = Duration::from_secs(30);
const HEADROOM: usize = 16;
/// What one connection may buffer of a head or a body. Strangers can open many connections.
const BUFFER_BYTES: usize = 64 << 10;
const SLOWEST_BYTES: u32 = 4096;

/// Accepts connections until `stop`. Open connections end after their next response.
pub(crate) async fn serve<L: Listener<Addr: Remote>>(
    mut listener: L,
    router: Router,
    stop: CancellationToken,
) {
    let admission = Arc::new(Admission::default());
    let router = router
        .layer(middleware::from_fn(only_patiently))
        .layer(middleware::from_fn(keeps_its_place));
    let refusing = Router::new()
        .fallback(async || ApiError::NoDescriptors)
        .layer(middleware::from_fn(headers::secure));
    loop {
        let (stream, address) = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let has_headroom = has_headroom();
        if !has_headroom && let Some(count) = admission.without_descriptors.count(Instant::now()) {
            let why = ApiError::NoDescriptors;
            tracing::error!(count, "{why}: refused {count} connections");
        }
        let connection = Connection {
            stream,
            address: address.ip(),
            router: if has_headroom { &router } else { &refusing }.clone(),
            keep_alive: has_headroom,
        };
        tokio::spawn(connection.serve(Arc::clone(&admission), stop.clone()));
    }
}

/// What all connections of a listener share.
#[derive(Default)]
struct Admission {
    guests: Guests,
    /// Connections that were closed because their address has too many.
    turned_away: Seldom,
    without_descriptors: Seldom,
}

impl Admission {
    fn turn_away(&self) {
        if let Some(count) = self.turned_away.count(Instant::now()) {
            tracing::warn!(
                count,
                "Closed {count} connections that had shown no token: their addresses have too many"
            );
        }
    }
}

/// A connection that was accepted.
struct Connection<Io> {
    stream: Io,
    /// `None` if its other end is on this machine.
    address: Option<IpAddr>,
    router: Router,
    keep_alive: bool,
}

impl<Io: AsyncRead + AsyncWrite + Unpin + Send + 'static> Connection<Io> {
    /// Serves until it is closed, until `stop`, or until its peer has shown no token for too long.
    async fn serve(self, admission: Arc<Admission>, stop: CancellationToken) {
        let Some(guest) = admission.guests.enter(self.address).await else {
            return admission.turn_away();
        };
        let meter = Meter::default();
        let service = Extension(Peer(self.address)).layer(self.router);
        let service = Extension(meter.clone()).layer(Extension(guest.clone()).layer(service));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_WITHIN)
            .max_buf_size(BUFFER_BYTES)
            .keep_alive(self.keep_alive)
            .serve_connection(
                TokioIo::new(Metered::new(self.stream, meter)),
                TowerToHyperService::new(service),
            )
            .with_upgrades();
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            time_is_up = guest.time_is_up() => {
                if time_is_up == TimeIsUp::GivesWay {
                    return admission.turn_away();
                }
                connection.as_mut().graceful_shutdown();
                match timeout(guests::WITHIN, connection).await {
                    Ok(ended) => ended,
                    Err(_) => return,
                }
            }
        };
        if let Err(error) = ended {
            tracing::debug!("A connection has ended: {error}");
        }
    }
}

/// The address of a connection's other end.
pub(crate) trait Remote {
    /// `None` if it is on this machine.
    fn ip(&self) -> Option<IpAddr>;
}

impl Remote for std::net::SocketAddr {
    fn ip(&self) -> Option<IpAddr> {
        Some(self.ip())
    }
}

impl Remote for tokio::net::unix::SocketAddr {
    fn ip(&self) -> Option<IpAddr> {
        None
    }
}

fn has_headroom() -> bool {
    let stderr = std::io::stderr();
    let copy = |_| stderr.as_fd().try_clone_to_owned();
    (0..HEADROOM)
        .map(copy)
        .collect::<Result<Vec<_>, _>>()
        .is_ok()
}

/// A connection does not give way while its complete request is answered.
async fn keeps_its_place(request: Request, next: Next) -> Response {
    let guest = request.extensions().get::<Guest>().cloned();
    let guest = guest.filter(|_| request.body().is_end_stream());
    if let Some(guest) = &guest {
        guest.asks(true);
    }
    let response = next.run(request).await;
    if let Some(guest) = &guest {
        guest.asks(false);
    }
    response
}

async fn only_patiently(request: Request, next: Next) -> Response {
    let in_time = |body: Body| Body::from_stream(in_time(body.into_data_stream()));
    next.run(request.map(in_time)).await
}

/// Fails if the broker has waited for the peer longer than the bytes received so far allow.
fn in_time(
    parts: impl Stream<Item = Result<Bytes, axum::Error>> + Unpin,
) -> impl Stream<Item = Result<Bytes, axum::Error>> {
    let begin = Some((parts, BODY_GRACE));
    stream::unfold(begin, async |state| {
        let (mut parts, left) = state?;
        let asked = Instant::now();
        let Ok(part) = timeout(left, parts.next()).await else {
            let late = axum::Error::new(std::io::Error::from(ErrorKind::TimedOut));
            return Some((Err(late), None));
        };
        let part = part?;
        let bytes = part.as_ref().map_or(0, Bytes::len);
        let earned = Duration::from_secs_f64(bytes as f64 / f64::from(SLOWEST_BYTES));
        let left = left.saturating_sub(asked.elapsed()) + earned;
        let left = left.min(BODY_GRACE);
        Some((part, Some((parts, left))))
    })
    .fuse()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use axum::routing::{get, post};
    use std::io;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
        sync::mpsc,
        time::sleep,
    };

    /// Peers connect through pipes, so that only the paused clock affects the timing.
    struct Pipes(mpsc::Receiver<DuplexStream>);

    impl Listener for Pipes {
        type Io = DuplexStream;
        type Addr = ();

        async fn accept(&mut self) -> (DuplexStream, ()) {
            match self.0.recv().await {
                Some(pipe) => (pipe, ()),
                None => std::future::pending().await,
            }
        }

        fn local_addr(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Another process of this user, which needs no token.
    impl Remote for () {
        fn ip(&self) -> Option<IpAddr> {
            None
        }
    }

    struct Peer {
        pipe: DuplexStream,
        since: Instant,
    }

    impl Peer {
        async fn of(pipes: &mpsc::Sender<DuplexStream>) -> Self {
            let (pipe, other) = duplex(1 << 16);
            pipes.send(other).await.unwrap();
            let since = Instant::now();
            Self { pipe, since }
        }

        async fn says(&mut self, text: &str) {
            self.pipe.write_all(text.as_bytes()).await.unwrap();
        }

        /// Everything that it receives until the connection ends, and how many seconds that took.
        async fn hears(mut self) -> (String, u64) {
            let mut heard = Vec::new();
            self.pipe.read_to_end(&mut heard).await.unwrap();
            let heard = String::from_utf8(heard).unwrap();
            (heard, self.since.elapsed().as_secs())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_that_does_not_go_on_is_left() {
        let (pipes, listener) = mpsc::channel(1);
        let slowly = async || {
            sleep(Duration::from_secs(7200)).await;
            "at last"
        };
        let count = async |body: Bytes| body.len().to_string();
        let endless = async || {
            Body::from_stream(stream::repeat_with(|| Ok::<_, io::Error>("x".repeat(1000))))
        };
        let router = Router::new()
            .route("/slowly", get(slowly))
            .route("/endless", get(endless))
            .route("/count", post(count));
        let stop = CancellationToken::new();
        let served = tokio::spawn(serve(Pipes(listener), router, stop.clone()));
        let post = "POST /count HTTP/1.1\r\nhost: x\r\ncontent-length: 600000\r\n\r\n";

        let silent = Peer::of(&pipes).await;
        assert_eq!(silent.hears().await, (String::new(), 60));

        let mut drops = Peer::of(&pipes).await;
        drops.says("GET /slowly HTTP/1.1\r\n").await;
        for second in 0..59 {
            sleep(Duration::from_secs(1)).await;
            drops.says(&format!("x-{second}: y\r\n")).await;
        }
        assert_eq!(drops.hears().await, (String::new(), 60));

        let mut no_body = Peer::of(&pipes).await;
        no_body.says(post).await;
        let (heard, seconds) = no_body.hears().await;
        assert!(heard.starts_with("HTTP/1.1 400"), "{heard}");
        assert_eq!(seconds, 30);

        let mut trickle = Peer::of(&pipes).await;
        trickle.says(post).await;
        while trickle.since.elapsed() < Duration::from_secs(30) {
            sleep(Duration::from_secs(1)).await;
            // The connection may have been closed already.
            drop(trickle.pipe.write_all(b"x").await);
        }
        let (heard, seconds) = trickle.hears().await;
        assert!(heard.starts_with("HTTP/1.1 400"), "{heard}");
        assert!(seconds <= 31, "{seconds}");

        // A fast beginning allows no longer pause.
        let mut stops = Peer::of(&pipes).await;
        stops.says(post).await;
        stops.says(&"x".repeat(599_999)).await;
        let (heard, seconds) = stops.hears().await;
        assert!(heard.starts_with("HTTP/1.1 400"), "{heard}");
        assert_eq!(seconds, 30);

        // A response that its peer does not read.
        let mut deaf = Peer::of(&pipes).await;
        deaf.says("GET /endless HTTP/1.1\r\nhost: x\r\n\r\n").await;
        sleep(Duration::from_secs(61)).await;
        let (heard, seconds) = deaf.hears().await;
        assert!(heard.starts_with("HTTP/1.1 200"), "{heard}");
        assert_eq!(seconds, 61);

        // A slow upload, and then an idle connection.
        let mut steady = Peer::of(&pipes).await;
        steady.says(post).await;
        for _ in 0..100 {
            sleep(Duration::from_secs(1)).await;
            steady.says(&"x".repeat(6000)).await;
        }
        let (heard, seconds) = steady.hears().await;
        assert!(heard.starts_with("HTTP/1.1 200"), "{heard}");
        assert!(heard.ends_with("600000"), "{heard}");
        assert_eq!(seconds, 160);

        let mut waiting = Peer::of(&pipes).await;
        waiting
            .says("GET /slowly HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            .await;
        let (heard, seconds) = waiting.hears().await;
        assert!(heard.ends_with("at last"), "{heard}");
        assert_eq!(seconds, 7200);

        let idle = Peer::of(&pipes).await;
        sleep(Duration::from_secs(1)).await;
        stop.cancel();
        assert_eq!(idle.hears().await, (String::new(), 1));
        served.await.unwrap();
    }
}
