//! Chunks through a separate process. Their bytes bypass the process that runs the queue, which
//! still decides who may have them.

use crate::{
    chunks::{chunk, class, fetched, naming, submit},
    harness::{Broker, FakeProxy, FakeWorker, Rules, within},
};
use baton_broker::{ChunkListener, serve_chunks};
use baton_protocol::{CHUNK_BYTES, ChunkHash, NotebookId, address::BrokerAddress};
use baton_transport::{ChunkClient, Dial, LinkError, Token};
use tokio::{sync::oneshot, task::JoinHandle};

/// A listener in front of a broker on TCP whose token is `sesame`.
pub(crate) struct Listener {
    pub(crate) dial: Dial,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<anyhow::Result<()>>,
}

impl Listener {
    async fn stop(self) {
        drop(self.stop);
        within("an end", self.serving).await.unwrap().unwrap();
    }
}

pub(crate) async fn beside(broker: &Broker) -> Listener {
    let listener = ChunkListener {
        listen: "127.0.0.1:0".parse().unwrap(),
        tls: None,
        behind_tls_proxy: false,
        ca_file: None,
        chunks_folder: broker.folder.path().join("chunks"),
        chunks_limit_bytes: 1 << 30,
        connections_a_person: 100,
        broker: broker.dial.address.to_string(),
        token: "sesame".to_owned(),
    };
    let (ready, address) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let serving = tokio::spawn(serve_chunks(
        listener,
        |address| ready.send(address).unwrap(),
        async { drop(stopped.await) },
    ));
    let address = within("a listener", address).await.unwrap();
    let address = BrokerAddress::Http(format!("http://{address}"));
    let token = Some(Token::new("sesame"));
    Listener {
        dial: Dial {
            address,
            token,
            ca_file: None,
        },
        stop,
        serving,
    }
}

#[tokio::test]
async fn chunks_may_go_through_a_process_of_their_own() {
    let rules = Rules {
        token: Some("sesame"),
        tcp: true,
        people: Some(class()),
        person_limit_bytes: Some((3 << 20) + 4096),
        ..Rules::default()
    };
    let broker = Broker::start_with(rules).await;
    let listener = beside(&broker).await;
    let chunk_client_of = |token: &str| {
        let address = listener.dial.address.clone();
        let token = Some(Token::new(token));
        ChunkClient::new(&Dial {
            address,
            token,
            ca_file: None,
        })
        .unwrap()
    };
    let at_broker = |token: &str| ChunkClient::new(&broker.dial_as(token)).unwrap();

    let chunks: Vec<_> = (0..4).map(|seed| chunk(seed, CHUNK_BYTES)).collect();
    let (some, one_more) = chunks.split_at(3);
    let hashes: Vec<ChunkHash> = some.iter().map(|(hash, _)| *hash).collect();
    let ada = chunk_client_of("ada");
    ada.put(some).await.unwrap();
    assert_eq!(at_broker("ada").missing(&hashes).await.unwrap(), []);
    assert_eq!(fetched(&ada, &hashes).await.unwrap(), some);
    assert_eq!(fetched(&at_broker("ada"), &hashes).await.unwrap(), some);
    match ada.put(one_more).await {
        Err(LinkError::StoreFull { text }) => {
            assert!(
                text.starts_with("Quota exceeded: ada uses 3 MiB of 3 MiB"),
                "{text}"
            )
        }
        other => panic!("{other:?}"),
    }

    let nobody = [chunk(9, 10).0];
    for cheat in [
        chunk_client_of("bob"),
        chunk_client_of("bob").of_owner("ada".to_owned(), None),
        chunk_client_of("vic"),
        chunk_client_of("sesame").of_notebook(NotebookId::random()),
    ] {
        let [foreign, nothing] = [&hashes[..1], &nobody]
            .map(async |hashes| fetched(&cheat, hashes).await.unwrap_err().to_string());
        assert_eq!(foreign.await, nothing.await);
    }
    for stranger in ["", "nobody", "ada bob"] {
        let refused =
            |done: Result<(), LinkError>| matches!(done, Err(LinkError::Unauthorized { .. }));
        assert!(
            refused(chunk_client_of(stranger).put(one_more).await),
            "{stranger}"
        );
        assert!(
            refused(fetched(&chunk_client_of(stranger), &hashes).await.map(drop)),
            "{stranger}"
        );
    }
    // Only the listener may claim that an account holds a chunk.
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    for (token, spoken_for, status) in [
        ("bob", "Bearer bob", 403),
        ("bob", "Bearer sesame", 403),
        ("sesame", "Bearer x", 401),
    ] {
        for question in ["hold", "held"] {
            let url = format!("{}/v1/chunks/{question}", broker.dial.address);
            let body = baton_protocol::encode(&vec![(hashes[0], 10_u64)]);
            let request = client
                .post(url)
                .bearer_auth(token)
                .header("baton-for", spoken_for);
            assert_eq!(
                request.body(body).send().await.unwrap().status(),
                status,
                "{token}"
            );
        }
    }

    let mut worker = FakeWorker::new(&broker.dial).await;
    let mut proxy = FakeProxy::new(&broker.dial_as("ada")).await;
    submit(&mut proxy, naming(&chunks[0])).await;
    let (_, submission) = worker.assignment().await;
    let of_job = chunk_client_of("sesame").of_notebook(submission.notebook);
    assert_eq!(fetched(&of_job, &hashes[..1]).await.unwrap(), &some[..1]);
    listener.stop().await;
}
