//! Sign-ins: random ids that browsers and notebooks of a JupyterHub use instead of a token. An id
//! is valid only for this broker.
//!
//! In: a [`Grant`], which says what the id stands for. Out: the id, once. Later, the grant for an
//! id, even after a restart of the broker and on another leader.
//!
//! **Invariant:** the database contains the hash of an id, never the id. A token of the Hub is
//! encrypted with the id, so the broker can decrypt it only while a request carries the id.

use crate::clock::unix_ms;
use baton_broker_store::{SignInRow, Store, StoreError};
use baton_protocol::{decode, encode};
use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// After this time a browser must sign in again.
const BROWSER: Duration = Duration::from_secs(7 * 24 * 3600);
/// After this time a notebook must show the Hub's token again. Until then, a person whom the Hub
/// has removed can still use this broker.
pub(crate) const NOTEBOOK: Duration = Duration::from_secs(3600);

/// How long a row is cached. Another broker may have ended the sign-in while it was the leader.
const REMEMBERED: Duration = Duration::from_secs(10);
const MOST_REMEMBERED: usize = 10_000;

const TOKEN: &str = "token";
const HUB: &str = "hub";
const NOTEBOOK_KIND: &str = "notebook";

/// What a sign-in stands for. Not `Debug`, because it may hold a token.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Grant {
    /// A token of the broker or of the people file, by its hash. The sign-in ends with the token.
    Token { person: String, token_hash: String },
    /// A person who signed in with the Hub, and the token that the Hub made for this service.
    Hub { person: String, token: String },
    /// The notebooks of a person, whose server has shown its token.
    Notebook {
        person: String,
        courses: Vec<String>,
    },
}

/// A random id and its lifetime. Not `Debug`, because the id is a secret.
pub(crate) struct SignIn {
    pub(crate) id: String,
    pub(crate) lifetime: Duration,
}

/// When a row was read, and the row, or `None` if there was none.
type Known = (Instant, Option<SignInRow>);

pub(crate) struct SignIns {
    store: Store,
    /// By hash of the id.
    known: Mutex<HashMap<[u8; 32], Known>>,
}

impl Grant {
    fn lifetime(&self) -> Duration {
        match self {
            Self::Token { .. } | Self::Hub { .. } => BROWSER,
            Self::Notebook { .. } => NOTEBOOK,
        }
    }
}

impl SignIns {
    pub(crate) fn new(store: Store) -> Self {
        Self {
            store,
            known: Mutex::default(),
        }
    }

    pub(crate) async fn begin(&self, grant: Grant) -> Result<SignIn, StoreError> {
        let half = || uuid::Uuid::new_v4().simple();
        let id = format!("{}{}", half(), half());
        let lifetime = grant.lifetime();
        let now_ms = unix_ms();
        let (kind, person, content) = match grant {
            Grant::Token { person, token_hash } => (TOKEN, person, token_hash.into_bytes()),
            Grant::Hub { person, token } => (HUB, person, seal(&id, token.into_bytes())?),
            Grant::Notebook { person, courses } => (NOTEBOOK_KIND, person, encode(&courses)),
        };
        let row = SignInRow {
            kind: kind.to_owned(),
            person,
            content,
            expires_ms: now_ms + i64::try_from(lifetime.as_millis()).unwrap_or(i64::MAX),
        };
        let hash = hash(&id);
        self.store.sign_ins().keep(&hash, &row, now_ms).await?;
        Ok(SignIn { id, lifetime })
    }

    /// Returns `None` if the id has expired, was ended, or never existed.
    pub(crate) async fn of(&self, id: &str) -> Result<Option<Grant>, StoreError> {
        let row = self.row(hash(id)).await?;
        let Some(row) = row.filter(|row| unix_ms() < row.expires_ms) else {
            return Ok(None);
        };
        let person = row.person;
        let damaged = || StoreError::Damaged { what: "a sign-in" };
        let text = |bytes| String::from_utf8(bytes).map_err(|_| damaged());
        Ok(Some(match row.kind.as_str() {
            TOKEN => Grant::Token {
                person,
                token_hash: text(row.content)?,
            },
            HUB => Grant::Hub {
                person,
                token: text(open(id, row.content)?)?,
            },
            NOTEBOOK_KIND => Grant::Notebook {
                person,
                courses: decode(&row.content)?,
            },
            _ => return Err(damaged()),
        }))
    }

    pub(crate) async fn end(&self, id: &str) -> Result<(), StoreError> {
        let hash = hash(id);
        self.store.sign_ins().end(&hash).await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(&hash);
        Ok(())
    }

    async fn row(&self, hash: [u8; 32]) -> Result<Option<SignInRow>, StoreError> {
        {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((at, row)) = known.get(&hash)
                && at.elapsed() < REMEMBERED
            {
                return Ok(row.clone());
            }
        }
        let row = self.store.sign_ins().get(&hash).await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_REMEMBERED {
            known.clear();
        }
        known.insert(hash, (Instant::now(), row.clone()));
        Ok(row)
    }
}

fn hash(id: &str) -> [u8; 32] {
    baton_chunks::hash(id.as_bytes()).0
}

fn key(id: &str) -> Result<LessSafeKey, StoreError> {
    let key = blake3::derive_key("baton 2026-11-23 token of a sign-in", id.as_bytes());
    let key = UnboundKey::new(&CHACHA20_POLY1305, &key);
    key.map(LessSafeKey::new).map_err(|_| unsealable())
}

/// Each key encrypts only one text, so a constant nonce is safe.
fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; 12])
}

fn seal(id: &str, mut text: Vec<u8>) -> Result<Vec<u8>, StoreError> {
    let sealed = key(id)?.seal_in_place_append_tag(nonce(), Aad::empty(), &mut text);
    sealed.map_err(|_| unsealable())?;
    Ok(text)
}

fn open(id: &str, mut sealed: Vec<u8>) -> Result<Vec<u8>, StoreError> {
    let text = key(id)?.open_in_place(nonce(), Aad::empty(), &mut sealed);
    Ok(text.map_err(|_| unsealable())?.to_vec())
}

fn unsealable() -> StoreError {
    StoreError::Damaged {
        what: "an encrypted token",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use baton_broker_store::Database;

    async fn store(folder: &tempfile::TempDir) -> Store {
        let database = Database::Sqlite(folder.path().join("broker.db"));
        let store = Store::open(&database).await.unwrap();
        store.acquire_leadership().await.unwrap();
        store
    }

    fn grants() -> [Grant; 3] {
        let person = || "ada".to_owned();
        [
            Grant::Token {
                person: person(),
                token_hash: "c0ffee".to_owned(),
            },
            Grant::Hub {
                person: person(),
                token: "of-the-hub".to_owned(),
            },
            Grant::Notebook {
                person: person(),
                courses: vec!["ml".to_owned()],
            },
        ]
    }

    #[tokio::test]
    async fn a_sign_in_outlives_the_broker_and_not_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let before = SignIns::new(store(&folder).await);
        let mut ids = Vec::new();
        for grant in grants() {
            ids.push(before.begin(grant).await.unwrap().id);
        }
        let after = SignIns::new(store(&folder).await);
        for (id, grant) in ids.iter().zip(grants()) {
            assert!(before.of(id).await.unwrap().as_ref() == Some(&grant));
            assert!(after.of(id).await.unwrap().as_ref() == Some(&grant));
            after.end(id).await.unwrap();
            assert!(after.of(id).await.unwrap().is_none());
        }
        assert!(after.of("made up").await.unwrap().is_none());
        for file in std::fs::read_dir(folder.path()).unwrap() {
            let content = std::fs::read(file.unwrap().path()).unwrap();
            let has = |secret: &[u8]| content.windows(secret.len()).any(|part| part == secret);
            assert!(!has(b"of-the-hub"));
            assert!(!ids.iter().any(|id| has(id.as_bytes())));
        }
    }

    #[test]
    fn what_is_sealed_opens_with_the_same_id_only() {
        let sealed = seal("one", b"secret".to_vec()).unwrap();
        assert_eq!(open("one", sealed.clone()).unwrap(), b"secret");
        assert!(open("two", sealed).is_err());
    }
}
