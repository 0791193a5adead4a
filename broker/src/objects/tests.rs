#![allow(clippy::unwrap_used)]

use super::*;
use crate::objects::ChunkPlace;
use baton_object_store_tests::Server;
use jiff::Timestamp;
use reqwest::Method;

/// A real store refuses a grant after its lifetime.
#[tokio::test]
async fn a_grant_expires() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let server = Server::start();
    let Ok(ChunkPlace::Objects(address)) = server.address().parse() else {
        panic!("{} is no bucket", server.address());
    };
    let options = ObjectOptions::of(server.variables());
    let objects = Objects::open(&address, &options, None, u64::MAX).unwrap();
    let row = ObjectRow {
        hash: baton_chunks::hash(b"five!"),
        object: "1".to_owned(),
        bytes: 5,
    };
    let path = objects.path(&row);
    objects
        .provider
        .store()
        .put(&path, Bytes::from_static(b"five!").into())
        .await
        .unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let fresh = objects.download_grant(&row).await.unwrap().url;
    let variables = server.variables();
    let secret = variables
        .iter()
        .find(|(name, _)| name == "AWS_SECRET_ACCESS_KEY");
    let secret = &secret.unwrap().1;
    for (seconds, status) in [(0, 200), (240, 200), (360, 403)] {
        let then = Timestamp::from_second(Timestamp::now().as_second() - seconds).unwrap();
        let date = then.strftime("%Y%m%dT%H%M%SZ").to_string();
        let mut url: reqwest::Url = fresh.parse().unwrap();
        let aged: Vec<(String, String)> = url
            .query_pairs()
            .into_owned()
            .map(|(key, value)| match key.as_str() {
                "X-Amz-Date" => (key, date.clone()),
                "X-Amz-Credential" => {
                    let mut parts: Vec<&str> = value.split('/').collect();
                    parts[1] = &date[..8];
                    (key, parts.join("/"))
                }
                _ => (key, value),
            })
            .collect();
        url.query_pairs_mut().clear().extend_pairs(aged);
        let signed = s3::with_headers(&url, &Method::GET, secret, &[]);
        let answer = client.get(signed.unwrap()).send().await.unwrap();
        assert_eq!(answer.status(), status, "signed {seconds} s ago");
    }
}
