//! The broker encrypts, and its clients detect any other server.

use crate::{
    chunks::chunk,
    harness::{Broker, FakeProxy, FakeWorker, Rules, not_being_written, within},
};
use baton_broker::{ChunkListener, Config, Listen, TlsFiles, serve_chunks};
use baton_protocol::{
    address::BrokerAddress,
    proxy::{FromProxy, ToProxy},
};
use baton_transport::{Api, ChunkClient, Dial, LinkError, connect, tls::TlsProblem};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use std::{fs::File, path::Path, time::Duration};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
};

/// Signs certificates in a folder.
struct Authority {
    folder: TempDir,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).unwrap();
        Self {
            folder,
            issuer: Issuer::new(params, key),
        }
    }

    /// Signs a certificate for a name, valid to the end of a year. Replaces the previous one.
    fn sign(&self, name: &str, until: i32) -> TlsFiles {
        let files = TlsFiles {
            certificate: self.folder.path().join("broker.pem"),
            key: self.folder.path().join("broker.key"),
        };
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(until, 12, 31);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        replace(&files.certificate, &certificate.pem());
        replace(&files.key, &key.serialize_pem());
        files
    }

    async fn broker(&self, name: &str, until: i32) -> Broker {
        let rules = Rules {
            token: Some("sesame"),
            tcp: true,
            tls: Some(self.sign(name, until)),
            ca_file: Some(self.folder.path().join("ca.pem")),
            ..Rules::default()
        };
        Broker::start_with(rules).await
    }
}

fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    not_being_written(&File::options().append(true).open(&new).unwrap());
    std::fs::rename(new, path).unwrap();
}

const HERE: &str = "127.0.0.1";
const LONG: i32 = 2090;

async fn refused(dial: &Dial) -> LinkError {
    let connected = connect::<ToProxy, FromProxy>(dial, "/v1/proxy").await;
    connected.err().unwrap()
}

/// The problem that both a WebSocket and an HTTP request report.
async fn problem(dial: &Dial) -> TlsProblem {
    let asked = Api::new(dial).unwrap().get("/health/live").await;
    match (refused(dial).await, asked.unwrap_err()) {
        (LinkError::Certificate { problem, .. }, LinkError::Certificate { problem: asked, .. })
            if problem == asked =>
        {
            problem
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn messages_and_chunks_are_encrypted() {
    let authority = Authority::new();
    let broker = authority.broker(HERE, LONG).await;
    assert!(broker.dial.address.is_encrypted());
    let mut proxy = FakeProxy::new(&broker.dial).await;
    let mut worker = FakeWorker::new(&broker.dial).await;
    let job = proxy.submit().await;
    assert_eq!(worker.run_to_end().await, job);
    let chunk_client = ChunkClient::new(&broker.dial).unwrap();
    let chunk_client = chunk_client.of_owner("ada".to_owned(), None);
    let chunks: Vec<_> = (0..40).map(|number| chunk(number, 1 << 18)).collect();
    chunk_client.put(&chunks).await.unwrap();
    let names: Vec<_> = chunks.iter().map(|(name, _)| *name).collect();
    assert_eq!(chunk_client.missing(&names).await.unwrap(), []);
}

#[tokio::test]
async fn browsers_keep_what_they_are_given_for_encrypted_pages() {
    let authority = Authority::new();
    let broker = authority.broker(HERE, LONG).await;
    let ca = std::fs::read(authority.folder.path().join("ca.pem")).unwrap();
    let browser = reqwest::Client::builder()
        .tls_certs_only([reqwest::Certificate::from_pem(&ca).unwrap()])
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .unwrap();
    let page = format!("{}/?token=sesame", broker.dial.address);
    let answer = browser.get(page).send().await.unwrap();
    let header = |name: &str| answer.headers()[name].to_str().unwrap().to_owned();
    assert!(header("set-cookie").contains("; Secure"));
    assert!(header("strict-transport-security").starts_with("max-age="));
}

#[tokio::test]
async fn a_client_accepts_a_new_authority_in_its_file() {
    let authority = Authority::new();
    let broker = authority.broker(HERE, LONG).await;
    let earlier = Authority::new();
    let ca_file = earlier.folder.path().join("ca.pem");
    let dial = Dial {
        ca_file: Some(ca_file.clone()),
        ..broker.dial.clone()
    };
    let client = Api::new(&dial).unwrap();
    client.get("/health/live").await.unwrap_err();
    std::fs::copy(authority.folder.path().join("ca.pem"), &ca_file).unwrap();
    client.get("/health/live").await.unwrap();
}

#[tokio::test]
async fn a_certificate_that_proves_nothing_is_named() {
    let authority = Authority::new();
    let broker = authority.broker(HERE, LONG).await;
    let foreign = Authority::new();
    let dial = Dial {
        ca_file: Some(foreign.folder.path().join("ca.pem")),
        ..broker.dial.clone()
    };
    assert_eq!(problem(&dial).await, TlsProblem::UnknownAuthority);
    let dial = Dial {
        ca_file: None,
        ..broker.dial.clone()
    };
    assert_eq!(problem(&dial).await, TlsProblem::UnknownAuthority);
    authority.sign(HERE, 2020);
    assert_eq!(problem(&broker.dial).await, TlsProblem::Expired);
    authority.sign("broker.example.edu", LONG);
    let names = vec!["broker.example.edu".to_owned()];
    let other = problem(&broker.dial).await;
    assert_eq!(other, TlsProblem::OtherName(names));
    let error = refused(&broker.dial).await;
    assert!(!error.is_transient());
    let address = &broker.dial.address;
    assert_eq!(
        error.to_string(),
        format!(
            "There is no safe connection to the broker at {address}: \
             its certificate is for broker.example.edu\n\
             hint: use that name in `broker_address` (BATON_BROKER_ADDRESS)"
        )
    );
    let dial = Dial {
        ca_file: Some(broker.folder.path().join("nothing.pem")),
        ..broker.dial.clone()
    };
    assert!(matches!(refused(&dial).await, LinkError::CaFile { .. }));
}

#[tokio::test]
async fn both_ends_have_to_encrypt_or_none() {
    let authority = Authority::new();
    let broker = authority.broker(HERE, LONG).await;
    let with_scheme = |dial: &Dial, from: &str, to: &str| Dial {
        address: dial
            .address
            .to_string()
            .replacen(from, to, 1)
            .parse()
            .unwrap(),
        ..dial.clone()
    };
    let plain = with_scheme(&broker.dial, "https", "http");
    let asked = Api::new(&plain).unwrap().get("/health/live").await;
    for error in [refused(&plain).await, asked.unwrap_err()] {
        assert_eq!(
            error.to_string(),
            "This broker speaks HTTPS only\nhint: begin its address with https://"
        );
    }
    let rules = Rules {
        token: Some("sesame"),
        tcp: true,
        ..Rules::default()
    };
    let broker = Broker::start_with(rules).await;
    let encrypted = with_scheme(&broker.dial, "http", "https");
    assert_eq!(problem(&encrypted).await, TlsProblem::NotEncrypted);
}

#[tokio::test]
async fn a_new_certificate_counts_for_new_connections_and_ends_none() {
    let authority = Authority::new();
    let broker = authority.broker(HERE, LONG).await;
    let mut proxy = FakeProxy::new(&broker.dial).await;
    authority.sign("other.example.edu", LONG);
    assert!(matches!(
        problem(&broker.dial).await,
        TlsProblem::OtherName(_)
    ));
    proxy.expect_silence().await;
    // While only one of the two files is renewed, nothing changes.
    let files = authority.sign(HERE, LONG);
    broker.get("/health/live").await;
    let key = KeyPair::generate().unwrap().serialize_pem();
    replace(&files.key, &key);
    broker.get("/health/live").await;
    replace(&files.certificate, "no certificate");
    broker.get("/health/live").await;
}

#[tokio::test]
async fn a_peer_that_says_nothing_holds_up_nobody() {
    let authority = Authority::new();
    let broker = authority.broker(HERE, LONG).await;
    let address = broker.dial.address.to_string().replace("https://", "");
    let silent = TcpStream::connect(&address).await.unwrap();
    let mut half = TcpStream::connect(&address).await.unwrap();
    half.write_all(&[22, 3, 1]).await.unwrap();
    broker.get("/health/live").await;
    drop(silent);
    let mut rude = TcpStream::connect(&address).await.unwrap();
    rude.write_all(b"\0 no protocol at all").await.unwrap();
    let mut answer = String::new();
    within("an answer", rude.read_to_string(&mut answer))
        .await
        .unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
}

#[tokio::test]
async fn chunks_through_a_process_of_their_own_are_encrypted() {
    let authority = Authority::new();
    let broker = authority.broker(HERE, LONG).await;
    let chunk_client_beside = async |ca_file: &Path| {
        let listener = ChunkListener {
            listen: "127.0.0.1:0".parse().unwrap(),
            tls: Some(authority.sign(HERE, LONG)),
            behind_tls_proxy: false,
            chunks_folder: broker.folder.path().join("chunks"),
            chunks_limit_bytes: 1 << 30,
            connections_a_person: 100,
            broker: broker.dial.address.to_string(),
            ca_file: Some(ca_file.to_owned()),
            token: "sesame".to_owned(),
        };
        let (ready, address) = oneshot::channel();
        let ready = |address| ready.send(address).unwrap();
        tokio::spawn(serve_chunks(listener, ready, std::future::pending()));
        let address = within("a listener", address).await.unwrap();
        let dial = Dial {
            address: BrokerAddress::Http(format!("https://{address}")),
            ..broker.dial.clone()
        };
        let chunk_client = ChunkClient::new(&dial).unwrap();
        chunk_client
            .of_owner("ada".to_owned(), None)
            .with_patience(Duration::ZERO)
    };
    let chunks = [chunk(1, 1 << 20)];
    let chunk_client = chunk_client_beside(&authority.folder.path().join("ca.pem")).await;
    chunk_client.put(&chunks).await.unwrap();
    let foreign = Authority::new();
    let chunk_client = chunk_client_beside(&foreign.folder.path().join("ca.pem")).await;
    let error = chunk_client.put(&chunks).await.unwrap_err().to_string();
    let expected = "no safe connection to the broker at https://";
    assert!(error.contains(expected), "{error}");
}

#[tokio::test]
async fn a_port_that_others_reach_is_encrypted_or_said_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let everywhere = "0.0.0.0:0".parse().unwrap();
    let config = || {
        let in_folder = |name: &str| folder.path().join(name);
        let listen = Listen::Tcp(everywhere);
        let mut config = Config::new(listen, in_folder("broker.db"), in_folder("chunks"));
        config.token = Some("sesame".to_owned());
        config
    };
    let ended = baton_broker::run(config(), |_| {}, std::future::pending()).await;
    let error = ended.unwrap_err().to_string();
    assert!(
        error.contains("0.0.0.0:0 is reachable from other machines")
            && error.contains("broker.behind_tls_proxy"),
        "{error}"
    );
    let listener = ChunkListener {
        listen: everywhere,
        tls: None,
        behind_tls_proxy: false,
        chunks_folder: folder.path().join("chunks"),
        chunks_limit_bytes: 1 << 30,
        connections_a_person: 100,
        broker: "http://127.0.0.1:1".to_owned(),
        ca_file: None,
        token: "sesame".to_owned(),
    };
    let ended = serve_chunks(listener, |_| {}, std::future::pending()).await;
    assert!(ended.unwrap_err().to_string().contains("0.0.0.0:0"));
    let mut behind = config();
    behind.behind_tls_proxy = true;
    baton_broker::run(behind, |_| {}, std::future::ready(()))
        .await
        .unwrap();
    let mut half = config();
    let authority = Authority::new();
    let files = authority.sign(HERE, LONG);
    half.tls = Some(TlsFiles {
        key: files.certificate.clone(),
        ..files
    });
    let ended = baton_broker::run(half, |_| {}, std::future::pending()).await;
    assert!(format!("{:#}", ended.unwrap_err()).contains("It contains no private key"));
}
