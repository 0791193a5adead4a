//! The sweep of an object store, with a real one and both databases.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::objects::{ChunkPlace, ObjectOptions};
use baton_broker_queue::Account;
use baton_broker_store::{Database, ObjectRow, StateRow};
use baton_object_store_tests::{Kind, Server};
use baton_postgres_tests::Disk;
use baton_protocol::{Grant, LEAST_COUNTED_BYTES, api::SavedState};
use bytes::Bytes;

const MINUTE: i64 = 60_000;
const RETENTION: Retention = Retention {
    chunks: Duration::from_secs(600),
    jobs: Duration::from_secs(7 * 24 * 3600),
};

struct Place {
    store: Store,
    objects: Arc<Objects>,
}

impl Place {
    /// Lets a person upload a chunk and hold it since this time.
    async fn has(&self, person: &str, text: &'static str, at_ms: i64) -> ObjectRow {
        let account = account(person);
        let new = row(text);
        self.store
            .objects()
            .allow_upload(&account, std::slice::from_ref(&new), at_ms)
            .await
            .unwrap();
        // It may already have a key.
        let own = self
            .store
            .objects()
            .own(&account, &[new.hash])
            .await
            .unwrap();
        let row = own[&new.hash].0.clone();
        let rows = std::slice::from_ref(&row);
        let grant = self.objects.upload_grant(&row).await.unwrap();
        upload(&grant, Bytes::from_static(text.as_bytes())).await;
        self.store
            .objects()
            .confirm(&account, rows, at_ms)
            .await
            .unwrap();
        row
    }

    async fn sweep(&self, now_ms: i64) -> usize {
        let chunks = ChunkStore::Objects(Arc::clone(&self.objects));
        let swept = sweep(&self.store, &chunks, RETENTION, -MINUTE, now_ms).await;
        swept.unwrap().chunks
    }

    async fn is_there(&self, row: &ObjectRow) -> bool {
        let sizes = self.objects.sizes(vec![row.clone()]).await.unwrap();
        sizes.iter().any(|(_, bytes)| bytes.is_some())
    }
}

fn account(person: &str) -> Account {
    Account {
        owner: person.to_owned(),
        course: "ml".to_owned(),
    }
}

fn row(text: &str) -> ObjectRow {
    ObjectRow {
        hash: baton_chunks::hash(text.as_bytes()),
        object: uuid::Uuid::new_v4().simple().to_string(),
        bytes: text.len() as u64,
    }
}

async fn upload(grant: &Grant, bytes: Bytes) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut request = client.put(&grant.url).body(bytes);
    for (name, value) in &grant.headers {
        request = request.header(name, value);
    }
    let answer = request.send().await.unwrap();
    assert!(answer.status().is_success(), "{}", answer.status());
}

#[tokio::test]
async fn objects_go_with_their_last_row_and_lost_ones_are_found() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let servers = [Kind::S3, Kind::Azure, Kind::Google].map(Server::of);
    let postgres = baton_postgres_tests::Server::start(Disk::NoSync);
    let folder = tempfile::tempdir().unwrap();
    let sqlite = Database::Sqlite(folder.path().join("broker.db"));
    let postgres = Database::named(&postgres.url());
    for (database, prefix) in [(sqlite, "one"), (postgres, "two")] {
        let store = Store::open(&database).await.unwrap();
        store.acquire_leadership().await.unwrap();
        for server in &servers {
            let objects = open(server, prefix).await;
            let place = Place {
                store: store.clone(),
                objects,
            };
            check(&place).await;
            check_states(&place).await;
        }
    }
}

async fn open(server: &Server, prefix: &str) -> Arc<Objects> {
    let address = format!("{}/{prefix}", server.address()).parse().unwrap();
    let ChunkPlace::Objects(address) = address else {
        panic!("{address} is no bucket");
    };
    let options = ObjectOptions::of(server.variables());
    let objects = Objects::open(&address, &options, None, 1 << 20).unwrap();
    objects.check().await.unwrap();
    Arc::new(objects)
}

/// This also holds if the upload is never reported.
#[tokio::test]
async fn an_upload_of_another_length_than_its_grants_is_deleted() {
    drop(rustls::crypto::ring::default_provider().install_default());
    let server = Server::of(Kind::Azure);
    let folder = tempfile::tempdir().unwrap();
    let database = Database::Sqlite(folder.path().join("broker.db"));
    let store = Store::open(&database).await.unwrap();
    store.acquire_leadership().await.unwrap();
    let place = Place {
        store,
        objects: open(&server, "one").await,
    };
    let ada = account("ada");
    let rows = ["right", "longer", "never"].map(row);
    place
        .store
        .objects()
        .allow_upload(&ada, &rows, 0)
        .await
        .unwrap();
    let [right, longer, _] = &rows;
    for (row, bytes) in [(right, 5), (longer, 3 << 20)] {
        let grant = place.objects.upload_grant(row).await.unwrap();
        upload(&grant, Bytes::from(vec![7; bytes])).await;
    }
    let check = async || check_uploads(&place.store, &place.objects).await;
    assert_eq!(check().await.unwrap(), 1);
    assert!(place.is_there(right).await && !place.is_there(longer).await);
    assert_eq!(check().await.unwrap(), 0);
    // It still counts until its row is deleted.
    assert_eq!(place.store.objects().pending_of("ada").await.unwrap(), 3);
    assert_eq!(place.store.objects().pending_of("bob").await.unwrap(), 0);
    let mut adopted_ms = Some(0);
    let chunks = ChunkStore::Objects(Arc::clone(&place.objects));
    let grant = place.objects.upload_grant(longer).await.unwrap();
    upload(&grant, Bytes::from(vec![7; 3 << 20])).await;
    round(&place.store, &chunks, RETENTION, &mut adopted_ms, MINUTE).await;
    assert!(!place.is_there(longer).await);
    assert_eq!(place.sweep(11 * MINUTE).await, 3);
    assert_eq!(place.store.objects().pending_of("ada").await.unwrap(), 0);
    assert!(!place.is_there(right).await);
}

/// States keep a chunk even if its object was found damaged and was uploaded again.
async fn check_states(place: &Place) {
    let eve = account("eve");
    let kept = place.has("eve", "kept", 0).await;
    let save = async |name: &str| {
        let entry = SavedState {
            name: name.to_owned(),
            notebook: None,
            saved_ms: 0,
            bytes: 4,
            variables: 1,
        };
        let state = StateRow {
            entry,
            body: Vec::new(),
            chunks: vec![kept.hash],
        };
        place.store.states().save(&eve, &state).await.unwrap();
    };
    save("one").await;
    assert_eq!(place.sweep(60 * MINUTE).await, 0);
    assert!(place.is_there(&kept).await);
    place.store.objects().mark_missing(&kept).await.unwrap();
    let hashes = [kept.hash];
    let held = place.store.objects().held(&eve, &hashes).await;
    assert!(held.unwrap().is_empty());
    place.objects.delete(vec![kept.clone()]).await;
    let again = place.has("eve", "kept", 60 * MINUTE).await;
    assert_eq!(again, kept);
    save("two").await;
    assert!(place.store.states().delete(&eve, "one").await.unwrap());
    assert_eq!(place.sweep(120 * MINUTE).await, 0);
    assert!(place.is_there(&again).await);
    assert!(place.store.states().delete(&eve, "two").await.unwrap());
    assert_eq!(place.sweep(180 * MINUTE).await, 1);
    assert!(!place.is_there(&again).await);

    // Only the course held this public chunk, and a course cannot upload, so the row is deleted.
    let course = account("");
    let lost = place.has("", "lost", 0).await;
    place.store.objects().mark_missing(&lost).await.unwrap();
    let own = place
        .store
        .objects()
        .own(&course, &[lost.hash])
        .await
        .unwrap();
    assert!(own.is_empty());
    assert_eq!(place.objects.delete(vec![lost]).await, 0);
}

async fn check(place: &Place) {
    let of_ada = place.has("ada", "old", 0).await;
    let of_bob = place.has("bob", "old", 8 * MINUTE).await;
    // Two accounts hold one object: a course, and a person who requested it.
    let public = place.has("", "public", 0).await;
    let hashes = [public.hash];
    let (course, ada) = (account(""), account("ada"));
    let sharing = place
        .store
        .objects()
        .share(&course, &ada, &hashes, 8 * MINUTE);
    sharing.await.unwrap();
    // An object that the person may upload themselves stays theirs.
    let other = ObjectRow {
        object: "0".repeat(32),
        ..public.clone()
    };
    let bob = account("bob");
    let expecting = place
        .store
        .objects()
        .allow_upload(&bob, std::slice::from_ref(&other), 0);
    expecting.await.unwrap();
    let sharing = place.store.objects().share(&course, &bob, &hashes, 0);
    sharing.await.unwrap();
    let own = place.store.objects().own(&bob, &hashes).await.unwrap();
    assert_eq!(own[&public.hash], (other, false));
    let held = place.store.objects().held(&bob, &hashes).await.unwrap();
    assert_eq!(held[&public.hash], public);
    // This one may be uploaded, but never is.
    let never = row("never");
    let expecting = place
        .store
        .objects()
        .allow_upload(&ada, std::slice::from_ref(&never), 0);
    expecting.await.unwrap();
    assert_eq!(
        place.store.objects().bytes().await.unwrap(),
        5 * LEAST_COUNTED_BYTES
    );

    // Ada's object, and two that do not exist, which is no error.
    assert_eq!(place.sweep(11 * MINUTE).await, 3);
    assert!(!place.is_there(&of_ada).await && place.is_there(&of_bob).await);
    assert!(place.is_there(&public).await);
    let held = place.store.objects().held(&ada, &hashes).await.unwrap();
    assert_eq!(held[&public.hash], public);
    assert_eq!(
        place.store.objects().bytes().await.unwrap(),
        2 * LEAST_COUNTED_BYTES
    );

    // An object that was uploaded after its row was swept is found, unless its upload may just have ended.
    let grant = place.objects.upload_grant(&never).await.unwrap();
    upload(&grant, Bytes::from_static(b"never")).await;
    let look = |now_ms| look_through(&place.store, &place.objects, now_ms);
    let now_ms = unix_ms();
    assert_eq!(look(now_ms).await.unwrap(), 0);
    assert!(place.is_there(&never).await);
    assert_eq!(look(now_ms + 120 * MINUTE).await.unwrap(), 1);
    assert!(!place.is_there(&never).await);
    assert!(place.is_there(&of_bob).await && place.is_there(&public).await);

    assert_eq!(place.sweep(30 * MINUTE).await, 2);
    assert!(!place.is_there(&of_bob).await && !place.is_there(&public).await);
    assert_eq!(place.store.objects().bytes().await.unwrap(), 0);
}
