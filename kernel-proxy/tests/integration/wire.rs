//! Bytes that are wrong, and bytes that cannot be parsed.

use crate::{
    peer::Peer,
    proxy::{Settings, eventually},
};
use baton_jupyter_wire::{connection::Channel, message::Draft};
use serde_json::json;
use std::io::{Read as _, Write as _};

#[test]
fn a_wrong_signature_is_the_kernels_affair() {
    let mut proxy = Settings::tcp().start();
    let mut client = proxy.client();
    let mut frames = client.sign(Draft::new("kernel_info_request", "{}"));
    frames[1] = "0".repeat(64).into();
    client.shell.send(&frames);
    assert_eq!(client.run("1").reply["status"], "ok");
    client.ask_control("shutdown_request", &json!({"restart": false}));
    proxy.wait();
    let said = proxy.stderr();
    assert!(
        said.contains("Invalid Signature"),
        "the kernel saw it: {said}"
    );
}

#[test]
fn a_malformed_frame_closes_its_own_connection_alone() {
    let proxy = Settings::tcp().start();
    let mut client = proxy.client();
    let connection = proxy.settings.parsed();
    for (channel, socket_type) in [(Channel::Iopub, "SUB"), (Channel::Shell, "DEALER")] {
        let endpoint = connection.endpoint(channel).unwrap();
        let mut bad = Peer::connect(&endpoint, socket_type, "bad");
        // A frame whose length has its highest bit set.
        bad.stream
            .write_all(b"\x02\xff\xff\xff\xff\xff\xff\xff\xff")
            .unwrap();
        assert!(bad.receive().is_none(), "{socket_type}");
    }
    let mut no_zmtp = Peer::dial(&connection.endpoint(Channel::Shell).unwrap());
    no_zmtp.stream.write_all(&[b'x'; 4096]).unwrap();
    assert_eq!(client.run("1").reply["status"], "ok");
}

/// A kernel whose sockets echo all bytes.
const ECHO_KERNEL: &str = "
import json, socket, sys, threading

def echo(stream):
    while data := stream.recv(65536):
        stream.sendall(data)

def serve(path):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    while True:
        threading.Thread(target=echo, args=listener.accept()[:1]).start()

connection = json.load(open(sys.argv[sys.argv.index('-f') + 1]))
for channel in ('shell', 'iopub', 'stdin', 'control', 'hb'):
    path = '{}-{}'.format(connection['ip'], connection[channel + '_port'])
    threading.Thread(target=serve, args=(path,)).start()
";

#[test]
fn bytes_pass_unchanged_both_ways() {
    let modules = tempfile::tempdir().unwrap();
    std::fs::write(modules.path().join("echo_kernel.py"), ECHO_KERNEL).unwrap();
    let mut settings = Settings::tcp();
    settings.launcher = "echo_kernel".to_owned();
    settings.python_path = modules.path().to_owned();
    let proxy = settings.start();
    let connection = proxy.settings.parsed();
    let mut number = 1_u32;
    let sent: Vec<u8> = std::iter::repeat_with(|| {
        number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        number.to_be_bytes()[0]
    })
    .take(100_000)
    .collect();
    for channel in [
        Channel::Shell,
        Channel::Stdin,
        Channel::Control,
        Channel::Heartbeat,
    ] {
        let endpoint = connection.endpoint(channel).unwrap();
        eventually(|| std::panic::catch_unwind(|| drop(Peer::dial(&endpoint))).is_ok());
        let mut peer = Peer::dial(&endpoint);
        let mut received = vec![0; sent.len()];
        for (out, back) in sent.chunks(10_000).zip(received.chunks_mut(10_000)) {
            peer.stream.write_all(out).unwrap();
            peer.stream.read_exact(back).unwrap();
        }
        assert!(received == sent, "{channel:?}");
    }
}
