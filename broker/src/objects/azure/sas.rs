//! Signs the URL of a blob with a shared access signature. The `object_store` crate cannot limit
//! one to creating.
//!
//! With the permission to create, and without the one to write, a blob can be uploaded but never overwritten:
//! <https://learn.microsoft.com/en-us/rest/api/storageservices/create-service-sas#permissions-for-a-directory-container-or-blob>.
//!
//! **Invariant:** no clock and no network are used here.

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::Url;
use ring::hmac;

/// The API version of the signature, and of the broker's own requests.
pub(super) const VERSION: &str = "2023-11-03";

#[derive(Debug, Clone, Copy)]
pub(super) enum Permission {
    Create,
    Read,
}

/// The key that signs.
pub(super) enum SigningKey {
    /// The key of the account.
    Account(Vec<u8>),
    /// A key that the service has issued to an identity for a limited time.
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
    /// Parses the service's response. Returns `None` if that contains no key.
    pub(super) fn read(xml: &str) -> Option<Self> {
        // No value contains characters that XML escapes.
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

/// What a signature permits: one blob, from `start` to `expiry`, both as `2026-09-01T08:00:00Z`.
pub(super) struct Scope<'a> {
    pub(super) account: &'a str,
    pub(super) container: &'a str,
    pub(super) blob: &'a str,
    pub(super) permission: Permission,
    /// `https`, or both protocols.
    pub(super) protocol: &'a str,
    pub(super) start: &'a str,
    pub(super) expiry: &'a str,
}

/// Adds the signature for this scope to the blob's URL.
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
        // The stored access policy.
        SigningKey::Account(_) => vec![""],
        // The authorised and the unauthorised user, and a correlation id.
        SigningKey::Delegated(_) => vec!["", "", ""],
    });
    // The IP address, the protocol, the version and the kind of resource. Then a snapshot, the
    // encryption scope, and five headers of the response.
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
