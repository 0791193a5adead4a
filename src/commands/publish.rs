//! `baton publish`: makes data available to everyone in a course, uploaded only once.
//!
//! A file is cut into chunks as notebooks cut it: from its beginning and, for a NumPy file, also
//! from the start of its array, because that is where the variable begins.

use super::{
    act::segment,
    ask::{client, run, shown, text},
};
use crate::{service, settings::Settings};
use anyhow::Context;
use baton_protocol::{
    ChunkHash,
    api::{Page, PublicFile, Publication, Withdrawal},
};
use baton_transport::{Api, ChunkClient};
use bytes::Bytes;
use clap::{ArgGroup, Args};
use std::{
    collections::HashMap,
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// The number of chunks to read and send at once.
const BATCH: usize = 32;
/// The number of attempts: chunks that existed at the start may be deleted before the last one is uploaded.
const ROUNDS: usize = 3;

/// Make data public in a course that you are staff of, so that its cells need not upload it
#[derive(Args)]
#[command(group = ArgGroup::new("what").required(true))]
pub(crate) struct Publish {
    /// The name of the course
    course: String,
    /// The files to publish; each replaces a public file of the same name
    #[arg(value_name = "FILE", group = "what")]
    files: Vec<PathBuf>,
    /// List public files
    #[arg(long, group = "what")]
    list: bool,
    /// Withdraw this public file
    #[arg(long, value_name = "NAME", group = "what")]
    withdraw: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(settings: &Settings, of: &Publish) -> anyhow::Result<ExitCode> {
    let api = client(settings)?;
    let owner = nix::unistd::User::from_uid(nix::unistd::Uid::current())?;
    let owner = owner.map_or_else(|| "operator".to_owned(), |user| user.name);
    let chunk_client = ChunkClient::new(&service::dial(settings)?)?;
    let course = Course {
        chunk_client: chunk_client.of_owner(owner.clone(), Some(of.course.clone())),
        path: format!("/v1/courses/{}/files", segment(&of.course)),
        owner,
        api,
    };
    run(async {
        let shows = |files: &[PublicFile]| shown(files, of.json, text::public_files);
        if let Some(name) = of.withdraw.clone() {
            let path = format!("{}/withdraw", course.path);
            let left: Page<PublicFile> = course.api.act(&path, &Withdrawal { name }).await?;
            return shows(&left.items);
        }
        // Fails before anything is sent if the person may not see the course.
        let public: Page<PublicFile> = course.api.ask(&course.path, &[]).await?;
        if of.list {
            return shows(&public.items);
        }
        let mut published = Vec::new();
        for file in &of.files {
            match course.publish(file).await {
                Ok(file) => published.push(file),
                Err(error) => {
                    if !published.is_empty() {
                        out!("{}", shows(&published)?);
                    }
                    return Err(error.context(format!("Failed to publish {}", file.display())));
                }
            }
        }
        shows(&published)
    })
}

struct Course {
    api: Api,
    chunk_client: ChunkClient,
    path: String,
    owner: String,
}

impl Course {
    async fn publish(&self, path: &Path) -> anyhow::Result<PublicFile> {
        let name = path.file_name().context("not a file")?;
        let name = name.to_str().context("the name is not UTF-8")?.to_owned();
        let file = File::open(path)?;
        let cuts = cuts(&file)?;
        anyhow::ensure!(!cuts.is_empty(), "the file is empty");
        let hashes: Vec<ChunkHash> = cuts.keys().copied().collect();
        for _ in 0..ROUNDS {
            let missing = self.chunk_client.missing(&hashes).await?;
            for batch in missing.chunks(BATCH) {
                let read = |hash: &ChunkHash| Ok((*hash, cuts[hash].read(&file)?));
                let chunks: io::Result<Vec<(ChunkHash, Bytes)>> = batch.iter().map(read).collect();
                self.chunk_client.put(&chunks?).await?;
            }
            if missing.is_empty() {
                break;
            }
        }
        let publication = Publication {
            name,
            chunks: hashes.iter().map(ChunkHash::to_string).collect(),
            owner: Some(self.owner.clone()),
        };
        Ok(self.api.act(&self.path, &publication).await?)
    }
}

/// The position of a chunk in its file.
#[derive(Clone, Copy)]
struct Cut {
    offset: u64,
    bytes: usize,
}

impl Cut {
    fn read(self, file: &File) -> io::Result<Bytes> {
        let mut bytes = vec![0; self.bytes];
        file.read_exact_at(&mut bytes, self.offset)?;
        Ok(bytes.into())
    }
}

fn cuts(file: &File) -> io::Result<HashMap<ChunkHash, Cut>> {
    let mut cuts = HashMap::new();
    for from in [Some(0), array_of_numpy(file)?].into_iter().flatten() {
        let mut offset = from;
        loop {
            let chunk = baton_mirror::read_chunk(file, offset)?;
            if chunk.is_empty() {
                break;
            }
            let bytes = chunk.len();
            cuts.insert(baton_chunks::hash(&chunk), Cut { offset, bytes });
            offset += bytes as u64;
        }
    }
    Ok(cuts)
}

/// The offset of the elements in an NPY file, according to its header.
fn array_of_numpy(file: &File) -> io::Result<Option<u64>> {
    let mut head = [0; 12];
    let length = file.read_at(&mut head, 0)?;
    let [
        b'\x93',
        b'N',
        b'U',
        b'M',
        b'P',
        b'Y',
        version,
        _,
        a,
        b,
        c,
        d,
    ] = head
    else {
        return Ok(None);
    };
    Ok(match version {
        _ if length < head.len() => None,
        1 => Some(10 + u64::from(u16::from_le_bytes([a, b]))),
        2 | 3 => Some(12 + u64::from(u32::from_le_bytes([a, b, c, d]))),
        _ => None,
    })
}
