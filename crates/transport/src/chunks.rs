//! The *http* and *object_store* transports: asks which chunks are missing, and sends and fetches
//! many chunks with one request.
//!
//! All of this may be repeated without harm, so requests are retried while a broker restarts.

use crate::{Api, Backoff, Dial, LinkError, objects::ObjectClient};
use baton_protocol::{
    CHUNK_BYTES, ChunkHash, Excess, Grant, Grants, NotebookId, api::Problem, decode, encode,
};
use bytes::{Buf, Bytes, BytesMut};
use futures_util::stream;
use reqwest::{Body, Method, RequestBuilder};
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep};

const MISSING: &str = "/v1/chunks/missing";

/// The number of names in one query.
const MISSING_BATCH: usize = 8192;

/// The number of chunks in one request that stores or fetches them.
const CHUNK_BATCH: usize = 32;

/// How long to retry while the broker cannot be reached, unless [`ChunkClient::with_patience`] sets
/// another limit.
const PATIENCE: Duration = Duration::from_mins(10);

/// A client for one notebook: the broker gives chunks only to their owner.
#[derive(Debug, Clone)]
pub struct ChunkClient {
    api: Api,
    /// The owner of the chunks, which is part of every request.
    party: Vec<(&'static str, String)>,
    patience: Duration,
    objects: ObjectClient,
    /// Whether the broker last said that it transfers the bytes itself. Shared by all clients of this process.
    by_broker: Arc<AtomicBool>,
}

impl ChunkClient {
    pub fn new(dial: &Dial) -> Result<Self, LinkError> {
        Ok(Self {
            api: Api::new(dial)?,
            party: Vec::new(),
            patience: PATIENCE,
            objects: ObjectClient::new(dial.ca_file.as_deref())?,
            by_broker: Arc::default(),
        })
    }

    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// For a proxy, with the same values as in its `Hello`.
    #[must_use]
    pub fn of_owner(mut self, owner: String, course: Option<String>) -> Self {
        self.party = vec![("owner", owner)];
        self.party.extend(course.map(|course| ("course", course)));
        self
    }

    /// For a worker, while it has a job of this notebook.
    #[must_use]
    pub fn of_notebook(mut self, notebook: NotebookId) -> Self {
        self.party = vec![("notebook", notebook.to_string())];
        self
    }

    fn patience(&self) -> Patience {
        Patience {
            backoff: Backoff::default(),
            began: Instant::now(),
            limit: self.patience,
            refusals: 0,
        }
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.api.request(method, path).query(&self.party)
    }

    /// Returns the chunks that the broker does not have.
    pub async fn missing(&self, hashes: &[ChunkHash]) -> Result<Vec<ChunkHash>, LinkError> {
        let mut missing = Vec::new();
        for batch in hashes.chunks(MISSING_BATCH) {
            let batch = Bytes::from(encode(&batch));
            let answer = self.repeat(Method::POST, MISSING, batch).await?;
            missing.extend(decode::<Vec<ChunkHash>>(&answer)?);
        }
        Ok(missing)
    }

    /// Stores all of these where the broker says: at the broker itself, or in its object store.
    pub async fn put(&self, chunks: &[(ChunkHash, Bytes)]) -> Result<(), LinkError> {
        for batch in chunks.chunks(CHUNK_BATCH) {
            let mut patience = self.patience();
            while let Err(error) = self.put_some(batch).await {
                patience.pause_or_fail(error).await?;
            }
        }
        Ok(())
    }

    /// Stores those that the broker does not have.
    pub async fn put_missing(&self, mut chunks: Vec<(ChunkHash, Bytes)>) -> Result<(), LinkError> {
        let hashes: Vec<ChunkHash> = chunks.iter().map(|(hash, _)| *hash).collect();
        let missing: HashSet<ChunkHash> = self.missing(&hashes).await?.into_iter().collect();
        chunks.retain(|(hash, _)| missing.contains(hash));
        self.put(&chunks).await
    }

    /// Fetches all of these into memory.
    pub async fn get_all(
        &self,
        hashes: &[ChunkHash],
    ) -> Result<Vec<(ChunkHash, Bytes)>, LinkError> {
        let mut chunks = Vec::with_capacity(hashes.len());
        let keep = |hash, bytes| {
            chunks.push((hash, bytes));
            Ok(())
        };
        self.get(hashes, keep).await?;
        Ok(chunks)
    }

    /// Fetches all of these and passes each to `each` once, in order. Not every chunk is verified here.
    pub async fn get(
        &self,
        hashes: &[ChunkHash],
        mut each: impl FnMut(ChunkHash, Bytes) -> Result<(), LinkError>,
    ) -> Result<(), LinkError> {
        for batch in hashes.chunks(CHUNK_BATCH) {
            let mut left = batch;
            let mut patience = self.patience();
            while let Err(error) = self.get_left(&mut left, &mut each).await {
                patience.pause_or_fail(error).await?;
            }
        }
        Ok(())
    }

    /// Sends a request, repeatedly while the broker cannot be reached, and returns the whole answer.
    pub(crate) async fn repeat(
        &self,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> Result<Bytes, LinkError> {
        let mut patience = self.patience();
        loop {
            let request = self.request(method.clone(), path).body(body.clone());
            let answer = async {
                let response = self.api.send(request, path).await?;
                response
                    .bytes()
                    .await
                    .map_err(|error| self.api.broke(error))
            };
            match answer.await {
                Ok(answer) => return Ok(answer),
                Err(error) => patience.pause_or_fail(error).await?,
            }
        }
    }

    async fn put_some(&self, chunks: &[(ChunkHash, Bytes)]) -> Result<(), LinkError> {
        let wanted = || {
            let named = |(hash, bytes): &(ChunkHash, Bytes)| (*hash, bytes.len() as u64);
            encode(&chunks.iter().map(named).collect::<Vec<(ChunkHash, u64)>>())
        };
        let Some(grants) = self.grants("/v1/chunks/grants/upload", wanted).await? else {
            let put = self.put_batch(chunks).await;
            return put.map_err(|error| self.ask_again_after(error));
        };
        let put = self.objects.put(grants, chunks).await;
        if !matches!(put, Ok(()) | Err(LinkError::ObjectRefused { .. })) {
            return put;
        }
        // An earlier attempt may have succeeded although its answer was lost. Stores refuse to
        // overwrite an object, each with its own error, so the broker checks what is complete.
        let hashes: Vec<ChunkHash> = chunks.iter().map(|(hash, _)| *hash).collect();
        let answer = self.once("/v1/chunks/uploaded", encode(&hashes)).await?;
        let lost: Vec<ChunkHash> = decode(&answer)?;
        match lost.is_empty() {
            true => Ok(()),
            false => put.and(Err(LinkError::ObjectStore {
                host: "the broker's address of it".to_owned(),
                reason: "it does not have what was uploaded".to_owned(),
            })),
        }
    }

    async fn get_left(
        &self,
        left: &mut &[ChunkHash],
        each: &mut impl FnMut(ChunkHash, Bytes) -> Result<(), LinkError>,
    ) -> Result<(), LinkError> {
        let grants = self
            .grants("/v1/chunks/grants/download", || encode(left))
            .await;
        let Some(grants) = grants? else {
            let got = self.get_some(left, each).await;
            return got.map_err(|error| self.ask_again_after(error));
        };
        let are_granted = grants
            .iter()
            .map(|grant| grant.chunk)
            .eq(left.iter().copied());
        if !are_granted {
            return Err(LinkError::UnknownChunk);
        }
        let mut take = |hash, chunk| {
            each(hash, chunk)?;
            *left = left.get(1..).unwrap_or_default();
            Ok(())
        };
        let got = self.objects.get(grants, &mut take).await;
        if let Err(LinkError::DamagedChunk { hash }) = got {
            // The broker checks the chunk. If it agrees, it forgets the chunk, which can then be sent again.
            self.once("/v1/chunks/damaged", encode(&[hash])).await?;
        }
        got
    }

    /// `None`: the broker transfers the bytes itself.
    async fn grants(
        &self,
        path: &str,
        wanted: impl FnOnce() -> Vec<u8>,
    ) -> Result<Option<Vec<Grant>>, LinkError> {
        if self.by_broker.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let answer = match self.once(path, wanted()).await {
            // A chunk server beside the broker (`baton chunks`) or an older broker, neither with an object store.
            Err(LinkError::NotFound { .. }) => encode(&Grants::Broker {}).into(),
            answer => answer?,
        };
        match decode(&answer)? {
            Grants::Store { grants } => Ok(Some(grants)),
            Grants::Broker {} => {
                self.by_broker.store(true, Ordering::Relaxed);
                Ok(None)
            }
        }
    }

    /// Recognizes a broker that was restarted with an object store and no longer accepts bytes.
    fn ask_again_after(&self, error: LinkError) -> LinkError {
        match error {
            LinkError::Refused { problem }
                if problem.kind == Problem::IN_OBJECT_STORE
                    && self.by_broker.swap(false, Ordering::Relaxed) =>
            {
                let text = problem.detail;
                LinkError::Changed { text }
            }
            error => error,
        }
    }

    async fn once(&self, path: &str, body: Vec<u8>) -> Result<Bytes, LinkError> {
        let request = self.request(Method::POST, path).body(body);
        let response = self.api.send(request, path).await?;
        let body = response.bytes().await;
        body.map_err(|error| self.api.broke(error))
    }

    async fn put_batch(&self, chunks: &[(ChunkHash, Bytes)]) -> Result<(), LinkError> {
        const PATH: &str = "/v1/chunks";
        let mut parts: Vec<Result<Bytes, std::convert::Infallible>> = Vec::new();
        for (_, bytes) in chunks {
            let excess = Excess::Bytes(bytes.len());
            let length = u32::try_from(bytes.len()).map_err(|_| LinkError::TooLarge { excess })?;
            parts.push(Ok(Bytes::copy_from_slice(&length.to_be_bytes())));
            parts.push(Ok(bytes.clone()));
        }
        let body = Body::wrap_stream(stream::iter(parts));
        let request = self.request(Method::PUT, PATH).body(body);
        self.api.send(request, PATH).await.map(drop)
    }

    /// Removes from `left` the chunks that have arrived, even if the others do not.
    async fn get_some(
        &self,
        left: &mut &[ChunkHash],
        each: &mut impl FnMut(ChunkHash, Bytes) -> Result<(), LinkError>,
    ) -> Result<(), LinkError> {
        const PATH: &str = "/v1/chunks/get";
        let request = self.request(Method::POST, PATH).body(encode(left));
        let mut response = self.api.send(request, PATH).await?;
        let mut received = BytesMut::new();
        while let Some((hash, rest)) = left.split_first() {
            let chunk = loop {
                if let Some(chunk) = take_chunk(&mut received)? {
                    break chunk;
                }
                match response
                    .chunk()
                    .await
                    .map_err(|error| self.api.broke(error))?
                {
                    Some(bytes) => received.extend_from_slice(&bytes),
                    None => return Err(LinkError::Answer("chunks are missing at its end")),
                }
            };
            each(*hash, chunk)?;
            *left = rest;
        }
        Ok(())
    }
}

/// Splits the next whole chunk off what was received.
fn take_chunk(received: &mut BytesMut) -> Result<Option<Bytes>, LinkError> {
    let Some(length) = received.first_chunk() else {
        return Ok(None);
    };
    let length = u32::from_be_bytes(*length) as usize;
    if length > CHUNK_BYTES {
        return Err(LinkError::Answer("a chunk is too large"));
    }
    if received.len() < 4 + length {
        received.reserve(4 + length - received.len());
        return Ok(None);
    }
    received.advance(4);
    Ok(Some(received.split_to(length).freeze()))
}

/// The pauses between attempts while the broker cannot be reached, up to a limit.
struct Patience {
    backoff: Backoff,
    began: Instant,
    limit: Duration,
    /// How many new grants the object store has refused.
    refusals: u32,
}

/// A grant may expire on the way, and a damaged chunk may arrive intact with another grant. More
/// refusals than this are no coincidence.
const MOST_REFUSALS: u32 = 3;

impl Patience {
    async fn pause_or_fail(&mut self, error: LinkError) -> Result<(), LinkError> {
        let delay = match &error {
            // The limit also counts requests of the person's other notebooks, so add a random pause.
            LinkError::TooMuch { after, .. } => *after + Backoff::default().next_delay(),
            LinkError::ObjectRefused { .. }
            | LinkError::DamagedChunk { .. }
            | LinkError::Changed { .. }
                if self.refusals < MOST_REFUSALS =>
            {
                self.refusals += 1;
                self.backoff.next_delay()
            }
            error if error.is_transient() => self.backoff.next_delay(),
            _ => return Err(error),
        };
        if self.began.elapsed() >= self.limit {
            return Err(error);
        }
        sleep(delay).await;
        Ok(())
    }
}
