//! Compares signatures with those of the `object_store` crate, where it can make the same.
#![allow(clippy::unwrap_used)]

use super::*;
use baton_object_store_tests::{Kind, Server};
use bytes::Bytes;
use object_store::{ObjectStoreExt, signer::Signer};
use reqwest::Method;

const KEY: &str = "b25seSBmb3IgYSB0ZXN0IG9mIEJhdG9uLCBub3QgYSBzZWNyZXQ=";

#[tokio::test]
async fn it_signs_as_the_crate_does() {
    for endpoint in ["", "http://127.0.0.1:10000/class"] {
        let mut options = vec![
            ("AZURE_STORAGE_ACCOUNT_NAME", "class"),
            ("AZURE_STORAGE_ACCOUNT_KEY", KEY),
            ("AZURE_ALLOW_HTTP", "true"),
        ];
        if !endpoint.is_empty() {
            options.push(("AZURE_STORAGE_ENDPOINT", endpoint));
        }
        let connector = Connector { ca_file: None };
        let azure = Azure::open("bucket", options.into_iter(), connector).unwrap();
        let path = Path::from("baton/ab/abc.def");
        let of_crate = azure.store.signed_url(Method::GET, &path, GRANT_LIFETIME);
        let of_crate = of_crate.await.unwrap();
        let value = |name: &str| {
            let mut pairs = of_crate.query_pairs();
            pairs.find(|(key, _)| key == name).unwrap().1.into_owned()
        };
        assert_eq!(value("sv"), sas::VERSION);

        let mut url = of_crate.clone();
        url.set_query(None);
        let own = azure.sign(&path, Permission::Read).await.unwrap();
        assert_eq!(own.path(), url.path());
        let (start, expiry) = (value("st"), value("se"));
        let scope = |protocol| Scope {
            account: "class",
            container: "bucket",
            blob: path.as_ref(),
            permission: Permission::Read,
            protocol,
            start: &start,
            expiry: &expiry,
        };
        let key = azure.key().await.unwrap();
        let signature = |protocol| {
            let url = sas::sign(url.clone(), &key, &scope(protocol));
            let mut pairs = url.query_pairs();
            pairs.find(|(key, _)| key == "sig").unwrap().1.into_owned()
        };
        // The crate's signature names no protocol.
        assert_eq!(signature(""), value("sig"));
        assert_ne!(signature("https"), value("sig"));
    }
}

/// Azurite checks the time of grants.
#[tokio::test]
async fn a_grant_expires() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let server = Server::of(Kind::Azure);
    let variables = server.variables();
    let options = variables
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    let azure = Azure::open("class", options, Connector { ca_file: None }).unwrap();
    let path = Path::from("baton/ab/abc.def");
    azure
        .store
        .put(&path, Bytes::from_static(b"five!").into())
        .await
        .unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let now = Timestamp::now();
    let key = azure.key().await.unwrap();
    for (seconds, status) in [(0, 200), (240, 200), (360, 403), (-600, 403)] {
        let mut url = azure.sign(&path, Permission::Read).await.unwrap();
        url.set_query(None);
        let then = Timestamp::from_second(now.as_second() - seconds).unwrap();
        let scope = Scope {
            account: &azure.account,
            container: "class",
            blob: path.as_ref(),
            permission: Permission::Read,
            protocol: "https,http",
            start: &text(then - CLOCKS),
            expiry: &text(then + GRANT_LIFETIME),
        };
        let url = sas::sign(url, &key, &scope);
        let answer = client.get(url).send().await.unwrap();
        assert_eq!(answer.status(), status, "signed {seconds} s ago");
    }
}

#[test]
fn settings_that_cannot_work_say_what_is_wrong() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let account = ("AZURE_STORAGE_ACCOUNT_NAME", "class");
    for (options, expected) in [
        (vec![], "AZURE_STORAGE_ACCOUNT_NAME is missing"),
        (
            vec![account, ("AZURE_STORAGE_ACCOUNT_KEY", "no key!")],
            "AZURE_STORAGE_ACCOUNT_KEY is not an account's key",
        ),
        (
            vec![account, ("AZURE_STORAGE_ENDPOINT", "nowhere")],
            "AZURE_STORAGE_ENDPOINT is not an address",
        ),
        (
            vec![account, ("AZURE_STORAGE_USE_EMULATOR", "true")],
            "set AZURE_STORAGE_ENDPOINT instead",
        ),
    ] {
        let connector = Connector { ca_file: None };
        let opened = Azure::open("bucket", options.into_iter(), connector);
        let error = opened.err().unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
