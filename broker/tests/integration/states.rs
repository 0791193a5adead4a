//! Saved states in both databases: kept by name, replaced as a whole, and gone after they are deleted.

use crate::{
    chunks::chunk,
    foreign::state_of,
    harness::{Broker, Rules},
};
use baton_postgres_tests::{Disk, Server};
use baton_protocol::JobId;
use baton_transport::{ChunkClient, LinkError, states};
use std::fs;

async fn is_kept_and_deleted(broker: &Broker) {
    let client = ChunkClient::new(&broker.dial).unwrap();
    let client = client.of_owner("ada".to_owned(), None);
    let (first, second) = (chunk(1, 18), chunk(2, 18));
    let of = |hash| state_of(JobId::random(), hash);
    match states::save(&client, "friday", &of(first.0)).await {
        Err(LinkError::Refused { problem }) => assert_eq!(problem.status, 409),
        other => panic!("its chunk is not here: {other:?}"),
    }
    client.put(&[first.clone(), second.clone()]).await.unwrap();
    let (old, new) = (of(first.0), of(second.0));
    states::save(&client, "friday", &old).await.unwrap();
    states::save(&client, "monday", &old).await.unwrap();
    let saved = states::save(&client, "friday", &new).await.unwrap();
    assert_eq!((saved.bytes, saved.variables), (18, 1));
    assert_eq!(states::load(&client, "friday").await.unwrap(), new);
    assert_eq!(states::load(&client, "monday").await.unwrap(), old);
    let listed = states::all(&client).await.unwrap();
    let names: Vec<&str> = listed.iter().map(|state| state.name.as_str()).collect();
    assert_eq!(names, ["friday", "monday"]);
    states::delete(&client, "friday").await.unwrap();
    match states::load(&client, "friday").await {
        Err(LinkError::Refused { problem }) => assert_eq!(problem.status, 404),
        other => panic!("it was deleted: {other:?}"),
    }
    assert_eq!(states::all(&client).await.unwrap().len(), 1);
}

#[tokio::test]
async fn no_state_is_saved_with_a_damaged_chunk() {
    let broker = Broker::start().await;
    let client = ChunkClient::new(&broker.dial).unwrap();
    let client = client.of_owner("ada".to_owned(), None);
    let sent = chunk(1, 18);
    let state = state_of(JobId::random(), sent.0);
    let name = sent.0.to_string();
    let file = broker
        .folder
        .path()
        .join("chunks")
        .join(&name[..2])
        .join(&name);
    // As after a power failure, and as on a bad disk.
    for damage in [&b""[..], &[0; 18]] {
        client.put(std::slice::from_ref(&sent)).await.unwrap();
        fs::write(&file, damage).unwrap();
        match states::save(&client, "friday", &state).await {
            Err(LinkError::Refused { problem }) => assert_eq!(problem.status, 409),
            other => panic!("its chunk is damaged: {other:?}"),
        }
        assert_eq!(client.missing(&[sent.0]).await.unwrap(), [sent.0]);
        client.put(std::slice::from_ref(&sent)).await.unwrap();
        states::save(&client, "friday", &state).await.unwrap();
        assert_eq!(
            client.get_all(&[sent.0]).await.unwrap(),
            std::slice::from_ref(&sent)
        );
    }
}

#[tokio::test]
async fn a_state_is_kept_in_sqlite() {
    is_kept_and_deleted(&Broker::start().await).await;
}

#[tokio::test]
async fn a_state_is_kept_in_postgres() {
    let server = Server::start(Disk::NoSync);
    let rules = Rules {
        database: Some(server.url()),
        ..Rules::default()
    };
    is_kept_and_deleted(&Broker::start_with(rules).await).await;
}
