//! Signs an address of a blob: a shared access signature, which the `object_store` crate cannot limit to creating.
//!
//! With the permission to create, and without the one to write, a blob can be uploaded but never overwritten:
//! <https://learn.microsoft.com/en-us/rest/api/storageservices/create-service-sas#permissions-for-a-directory-container-or-blob>.
//!
//! **Invariant:** nothing here is read from a clock or a network.

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::Url;
use ring::hmac;

/// Of the signature, and of the broker's own requests.
pub(super) const VERSION: &str = "2023-11-03";

#[derive(Debug, Clone, Copy)]
pub(super) enum Permission {
    Create,
    Read,
}

/// What signs.
pub(super) enum SigningKey {
    /// The account's own.
    Account(Vec<u8>),
    /// The service gave it to an identity for a while.
    Delegated(DelegatedKey),
}

/// <https://learn.microsoft.com/en-us/rest/api/storageservices/get-user-delegation-key>
pub(super) struct DelegatedKey {
    pub(super) value: Vec<u8>,
    pub(super) object_id: String,
    pub(super) tenant_id: String,
    pub(super) start: String,
    pub(super) expiry: String,
    pub(super) service: String,
    pub(super) version: String,
}

impl DelegatedKey {
    /// From the service's answer. `None`: it is none.
    pub(super) fn read(xml: &str) -> Option<Self> {
        // No value has characters that XML escapes.
        let text = |name: &str| {
            let (_, rest) = xml.split_once(&format!("<{name}>"))?;
            let (text, _) = rest.split_once(&format!("</{name}>"))?;
            Some(text.to_owned())
        };
        Some(Self {
            value: BASE64_STANDARD.decode(text("Value")?).ok()?,
            object_id: text("SignedOid")?,
            tenant_id: text("SignedTid")?,
            start: text("SignedStart")?,
            expiry: text("SignedExpiry")?,
            service: text("SignedService")?,
            version: text("SignedVersion")?,
        })
    }
}

/// One blob, from one time to another; both as `2026-09-01T08:00:00Z`.
pub(super) struct Scope<'a> {
    pub(super) account: &'a str,
    pub(super) container: &'a str,
    pub(super) blob: &'a str,
    pub(super) permission: Permission,
    /// `https`, or both.
    pub(super) protocol: &'a str,
    pub(super) start: &'a str,
    pub(super) expiry: &'a str,
}

/// Makes the blob's address good for the scope.
pub(super) fn sign(mut url: Url, key: &SigningKey, scope: &Scope<'_>) -> Url {
    let permission = match scope.permission {
        Permission::Create => "c",
        Permission::Read => "r",
    };
    let resource = format!("/blob/{}/{}/{}", scope.account, scope.container, scope.blob);
    let of_key: Vec<(&str, &str)> = match key {
        SigningKey::Account(_) => Vec::new(),
        SigningKey::Delegated(key) => vec![
            ("skoid", &key.object_id),
            ("sktid", &key.tenant_id),
            ("skt", &key.start),
            ("ske", &key.expiry),
            ("sks", &key.service),
            ("skv", &key.version),
        ],
    };

    let mut lines = vec![permission, scope.start, scope.expiry, &resource];
    lines.extend(of_key.iter().map(|(_, value)| *value));
    lines.extend(match key {
        // The policy.
        SigningKey::Account(_) => vec![""],
        // Who is authorised, who is not, and a correlation.
        SigningKey::Delegated(_) => vec!["", "", ""],
    });
    // An address of the network; then the kind of resource; a snapshot, encryption, and five headers of the answer.
    lines.extend(["", scope.protocol, VERSION, "b"]);
    lines.extend([""; 7]);

    let secret = match key {
        SigningKey::Account(secret) => secret,
        SigningKey::Delegated(key) => &key.value,
    };
    let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
    let signature = hmac::sign(&secret, lines.join("\n").as_bytes());
    url.query_pairs_mut()
        .append_pair("sv", VERSION)
        .append_pair("sp", permission)
        .append_pair("st", scope.start)
        .append_pair("se", scope.expiry)
        .append_pair("sr", "b")
        .append_pair("spr", scope.protocol)
        .extend_pairs(of_key)
        .append_pair("sig", &BASE64_STANDARD.encode(signature));
    url
}
