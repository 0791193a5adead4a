//! Adds headers to a signed URL, above all the length, which the `object_store` crate does not sign.
//!
//! This is AWS Signature Version 4. Everything except the headers is taken from a URL that the
//! crate has signed:
//! <https://docs.aws.amazon.com/AmazonS3/latest/API/sigv4-query-string-auth.html>.

use reqwest::{Method, Url};
use ring::{digest, hmac};

const SIGNATURE: &str = "X-Amz-Signature";
const SIGNED_HEADERS: &str = "X-Amz-SignedHeaders";

/// The URL, valid only for requests with exactly these headers and its host. The names of headers
/// are in lower case. Returns `None` if the URL was not signed.
pub(in crate::objects) fn with_headers(
    signed: &Url,
    method: &Method,
    secret: &str,
    headers: &[(&str, &str)],
) -> Option<Url> {
    let value = |name: &str| signed.query_pairs().find(|(key, _)| key == name);
    let date = value("X-Amz-Date")?.1;
    let credential = value("X-Amz-Credential")?.1;
    let (_, scope) = credential.split_once('/')?;
    let host = match (signed.host_str()?, signed.port()) {
        (host, Some(port)) => format!("{host}:{port}"),
        (host, None) => host.to_owned(),
    };

    let mut headers = headers.to_vec();
    headers.push(("host", &host));
    headers.sort_unstable();
    let names: Vec<&str> = headers.iter().map(|(name, _)| *name).collect();
    let lines: String = headers
        .iter()
        .map(|(name, value)| format!("{name}:{value}\n"))
        .collect();
    let names = names.join(";");

    let mut query: Vec<String> = signed
        .query_pairs()
        .filter(|(key, _)| key != SIGNATURE && key != SIGNED_HEADERS)
        .map(|(key, value)| format!("{}={}", encode(&key), encode(&value)))
        .collect();
    query.push(format!("{SIGNED_HEADERS}={}", encode(&names)));
    query.sort_unstable();
    let query = query.join("&");

    let path = signed.path();
    let request = format!("{method}\n{path}\n{query}\n{lines}\n{names}\nUNSIGNED-PAYLOAD");
    let hashed = hex(digest::digest(&digest::SHA256, request.as_bytes()).as_ref());
    let to_sign = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{hashed}");
    // The scope is `DAY/REGION/SERVICE/aws4_request`. Each part derives the next key.
    let key = scope
        .split('/')
        .fold(format!("AWS4{secret}").into_bytes(), |key, part| {
            mac(&key, part)
        });
    let signature = hex(&mac(&key, &to_sign));

    let mut url = signed.clone();
    url.set_query(Some(&format!("{query}&{SIGNATURE}={signature}")));
    Some(url)
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Encodes everything except unreserved characters, as the signature requires.
fn encode(text: &str) -> String {
    const RESERVED: &percent_encoding::AsciiSet = &percent_encoding::NON_ALPHANUMERIC
        .remove(b'-')
        .remove(b'.')
        .remove(b'_')
        .remove(b'~');
    percent_encoding::utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use object_store::{
        aws::AmazonS3Builder,
        path::Path,
        signer::{SignedUrlOptions, Signer},
    };
    use reqwest::header::{HeaderValue, IF_NONE_MATCH};
    use std::time::Duration;

    const SECRET: &str = "secret/with+signs";

    /// With the headers that the crate also signs, the result must equal that of the crate.
    async fn check(builder: AmazonS3Builder) {
        let store = builder
            .with_bucket_name("bucket")
            .with_region("eu-north-1")
            .with_access_key_id("key")
            .with_secret_access_key(SECRET)
            .with_http_connector(super::super::Connector { ca_file: None })
            .build()
            .unwrap();
        let options = SignedUrlOptions::new()
            .with_signed_header(IF_NONE_MATCH, HeaderValue::from_static("*"));
        let path = Path::from("a folder/ab/abc.def");
        let lifetime = Duration::from_secs(60);
        let signing = store.signed_url_opts(Method::PUT, &path, lifetime, &options);
        let url = signing.await.unwrap();
        let headers = [("if-none-match", "*")];
        let again = with_headers(&url, &Method::PUT, SECRET, &headers).unwrap();
        let pairs = |url: &Url| {
            let mut pairs: Vec<_> = url.query_pairs().into_owned().collect();
            pairs.sort_unstable();
            pairs
        };
        assert_eq!(pairs(&again), pairs(&url));
        let longer = [("content-length", "5"), ("if-none-match", "*")];
        let longer = with_headers(&url, &Method::PUT, SECRET, &longer).unwrap();
        assert_ne!(pairs(&longer), pairs(&url));
    }

    #[tokio::test]
    async fn it_signs_as_the_crate_does() {
        check(AmazonS3Builder::new()).await;
        check(
            AmazonS3Builder::new()
                .with_endpoint("http://127.0.0.1:8333")
                .with_allow_http(true),
        )
        .await;
        check(AmazonS3Builder::new().with_token("a token/of+a while")).await;
        check(AmazonS3Builder::new().with_virtual_hosted_style_request(true)).await;
    }
}
