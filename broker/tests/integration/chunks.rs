//! The *http* lane.

use crate::harness::{Broker, Rules};
use baton_blobs::hash;
use baton_link::{ChunkLane, LinkError};
use baton_protocol::{CHUNK_BYTES, ChunkHash};
use bytes::Bytes;

fn chunk(seed: u8, bytes: usize) -> (ChunkHash, Bytes) {
    let content: Bytes = (0..bytes)
        .map(|index| seed.wrapping_add(u8::try_from(index % 251).unwrap()))
        .collect();
    (hash(&content), content)
}

async fn fetched(
    lane: &ChunkLane,
    hashes: &[ChunkHash],
) -> Result<Vec<(ChunkHash, Bytes)>, LinkError> {
    let mut chunks = Vec::new();
    lane.get(hashes, |hash, bytes| {
        chunks.push((hash, bytes));
        Ok(())
    })
    .await?;
    Ok(chunks)
}

#[tokio::test]
async fn only_missing_chunks_are_wanted_and_what_was_put_comes_back() {
    let broker = Broker::start().await;
    let lane = ChunkLane::new(&broker.dial).unwrap();
    let chunks: Vec<_> = (0..20)
        .map(|seed| chunk(seed, if seed == 7 { 3 } else { CHUNK_BYTES }))
        .collect();
    let hashes: Vec<ChunkHash> = chunks.iter().map(|(hash, _)| *hash).collect();
    assert_eq!(lane.missing(&hashes).await.unwrap(), hashes);
    lane.put(&chunks[..10]).await.unwrap();
    assert_eq!(lane.missing(&hashes).await.unwrap(), hashes[10..]);
    lane.put(&chunks[10..]).await.unwrap();
    assert_eq!(fetched(&lane, &hashes).await.unwrap(), chunks);
}

#[tokio::test]
async fn an_unknown_chunk_is_said_to_be_unknown() {
    let broker = Broker::start().await;
    let lane = ChunkLane::new(&broker.dial).unwrap();
    let known = chunk(1, 100);
    lane.put(std::slice::from_ref(&known)).await.unwrap();
    let (unknown, _) = chunk(2, 100);
    let error = fetched(&lane, &[known.0, unknown]).await.unwrap_err();
    assert!(matches!(error, LinkError::UnknownChunk), "{error:?}");
}

#[tokio::test]
async fn a_full_store_says_so() {
    let rules = Rules {
        blob_limit_bytes: 3 << 20,
        ..Rules::default()
    };
    let broker = Broker::start_with(rules).await;
    let lane = ChunkLane::new(&broker.dial).unwrap();
    let chunks: Vec<_> = (0..5).map(|seed| chunk(seed, CHUNK_BYTES)).collect();
    match lane.put(&chunks).await {
        Err(LinkError::StoreFull { text }) => assert!(text.contains("no room"), "{text}"),
        other => panic!("{other:?}"),
    }
    // What fitted is there, and everything else goes on.
    assert!(lane.missing(&[chunks[0].0]).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_chunk_that_is_too_large_or_cut_is_refused() {
    let rules = Rules {
        tcp: true,
        ..Rules::default()
    };
    let broker = Broker::start_with(rules).await;
    let url = format!("{}/v1/chunks", broker.dial.address);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let put = async |body: Vec<u8>| {
        let answer = client.put(&url).body(body).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    let too_large = put(vec![0, 0x10, 0, 1, 0]).await;
    assert_eq!(too_large.0, 400);
    assert!(too_large.1.contains("at most 1048576"), "{too_large:?}");
    let cut = put(vec![0, 0, 0, 9, 1, 2]).await;
    assert_eq!(cut.0, 400);
    assert!(cut.1.contains("inside a chunk"), "{cut:?}");
}
