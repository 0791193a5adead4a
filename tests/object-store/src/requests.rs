//! Plain requests to the servers, and ports for them.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    time::Duration,
};

/// Ports that no other test server takes while this exists, even when its server is stopped. They lie below the ports
/// that Linux gives to connections.
pub(crate) struct Ports<const COUNT: usize> {
    pub(crate) numbers: [u16; COUNT],
    /// Listens on the last port of the block, so that other processes skip the block.
    _taken: TcpListener,
}

impl<const COUNT: usize> Ports<COUNT> {
    pub(crate) fn free() -> Self {
        const FIRST: u16 = 10_000;
        const EACH: u16 = 10;
        const ALL: u16 = 1000;
        let listen = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let own = (std::process::id() % u32::from(ALL)) as u16;
        let mut firsts = (0..ALL).map(|number| FIRST + (own + number) % ALL * EACH);
        let take = |first: u16| {
            let _taken = listen(first + EACH - 1).ok()?;
            let numbers = std::array::from_fn(|number| first + number as u16);
            let are_free = numbers.iter().all(|port| listen(*port).is_ok());
            are_free.then_some(Self { numbers, _taken })
        };
        firsts.find_map(take).unwrap()
    }
}

/// Of the answer, if there is one.
pub(crate) fn status(port: u16, method: &str, path: &str, body: &str) -> Option<u16> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(5))).ok()?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8_lossy(&answer);
    answer.split(' ').nth(1)?.parse().ok()
}

/// Of a request that makes what may be there already.
pub(crate) fn is_made(status: Option<u16>) -> bool {
    status.is_some_and(|status| status < 300 || status == 409)
}
