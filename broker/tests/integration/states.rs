//! Saved states in both databases: kept by name, replaced as a whole, and gone after they are deleted.

use crate::{
    chunks::chunk,
    foreign::state_of,
    harness::{Broker, Rules},
};
use baton_postgres_tests::{Disk, Server};
use baton_protocol::JobId;
use baton_transport::{ChunkClient, LinkError};

async fn is_kept_and_deleted(broker: &Broker) {
    let states = ChunkClient::new(&broker.dial).unwrap();
    let states = states.of_owner("ada".to_owned(), None);
    let (first, second) = (chunk(1, 18), chunk(2, 18));
    let of = |hash| state_of(JobId::random(), hash);
    match states.save_state("friday", &of(first.0)).await {
        Err(LinkError::Refused { problem }) => assert_eq!(problem.status, 409),
        other => panic!("its chunk is not here: {other:?}"),
    }
    states.put(&[first.clone(), second.clone()]).await.unwrap();
    let (old, new) = (of(first.0), of(second.0));
    states.save_state("friday", &old).await.unwrap();
    states.save_state("monday", &old).await.unwrap();
    let saved = states.save_state("friday", &new).await.unwrap();
    assert_eq!((saved.bytes, saved.variables), (18, 1));
    assert_eq!(states.load_state("friday").await.unwrap(), new);
    assert_eq!(states.load_state("monday").await.unwrap(), old);
    let listed = states.states().await.unwrap();
    let names: Vec<&str> = listed.iter().map(|state| state.name.as_str()).collect();
    assert_eq!(names, ["friday", "monday"]);
    states.delete_state("friday").await.unwrap();
    match states.load_state("friday").await {
        Err(LinkError::Refused { problem }) => assert_eq!(problem.status, 404),
        other => panic!("it was deleted: {other:?}"),
    }
    assert_eq!(states.states().await.unwrap().len(), 1);
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
