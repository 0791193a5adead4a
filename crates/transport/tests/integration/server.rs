//! A server in place of a broker; each test supplies the routes that answer.

use axum::{
    Router,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use baton_protocol::{address::BrokerAddress, api::Problem};
use baton_transport::{Dial, Token};
use std::net::Ipv4Addr;
use tempfile::TempDir;
use tokio::{
    net::{TcpListener, TcpSocket, UnixListener},
    task::JoinHandle,
};

pub(crate) struct Server {
    pub(crate) dial: Dial,
    task: JoinHandle<()>,
    _folder: Option<TempDir>,
}

/// An answer of the broker with a problem of this kind.
pub(crate) fn problem(status: StatusCode, kind: &str) -> Response {
    let problem = Problem {
        kind: kind.to_owned(),
        title: status.to_string(),
        status: status.as_u16(),
        detail: kind.to_owned(),
        hint: None,
    };
    let media_type = [(header::CONTENT_TYPE, "application/problem+json")];
    (status, media_type, serde_json::to_string(&problem).unwrap()).into_response()
}

impl Server {
    pub(crate) async fn tcp(router: Router) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        Self {
            dial: dial(BrokerAddress::Http(format!("http://{address}"))),
            task: tokio::spawn(async move { axum::serve(listener, router).await.unwrap() }),
            _folder: None,
        }
    }

    pub(crate) fn unix(router: Router) -> Self {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("broker.sock");
        let listener = UnixListener::bind(&path).unwrap();
        Self {
            dial: dial(BrokerAddress::Unix(path)),
            task: tokio::spawn(async move { axum::serve(listener, router).await.unwrap() }),
            _folder: Some(folder),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An address of this machine where no process listens, and the socket that keeps others from it.
pub(crate) fn nobody() -> (Dial, TcpSocket) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = socket.local_addr().unwrap();
    let dial = dial(BrokerAddress::Http(format!("http://{address}")));
    (dial, socket)
}

pub(crate) fn dial(address: BrokerAddress) -> Dial {
    let token = Some(Token::new("open sesame"));
    Dial {
        address,
        token,
        ca_file: None,
    }
}
