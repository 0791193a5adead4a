//! What courses have in public: files that staff published, as the chunks that they were cut into.
//!
//! A course holds the chunks of its files like a person would: as an [`Account`] without an owner.
//!
//! **Invariant:** a file is known only after the course holds its chunks, and what is withdrawn is nobody's before it
//! is no longer the course's. So the sweep alone takes a chunk's last row.

use super::{
    Store, StoreError, Writer, actions,
    chunks::{NAMED, hash, hold, list, listed, names},
    columns::{count, number},
    row::Row,
    statement::sql,
};
use baton_broker_queue::{Account, AuditEntry};
use baton_protocol::ChunkHash;
use std::collections::HashSet;

/// A file of a course's public set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicFile {
    pub course: String,
    pub name: String,
    /// `None`: the broker's own token.
    pub person: Option<String>,
    pub at_ms: i64,
    /// Of its chunks, each counted once.
    pub bytes: u64,
    pub chunks: Vec<ChunkHash>,
}

impl PublicFile {
    /// Who holds what is public there.
    pub fn holder(course: &str) -> Account {
        Account {
            owner: String::new(),
            course: course.to_owned(),
        }
    }
}

const FILES: &str = "SELECT course, name, person, at_ms, bytes, chunks FROM public_files";

impl Store {
    /// Of one course, by name.
    pub async fn public_files(&self, course: &str) -> Result<Vec<PublicFile>, StoreError> {
        let files = sql(format!("{FILES} WHERE course = ? ORDER BY name")).bind(course);
        self.fetch(files).await?.iter().map(public_file).collect()
    }

    /// Of all courses.
    pub(super) async fn all_public_files(&self) -> Result<Vec<PublicFile>, StoreError> {
        self.fetch(sql(FILES))
            .await?
            .iter()
            .map(public_file)
            .collect()
    }

    /// The course has this file, in place of one of the same name. It holds its chunks already.
    pub async fn publish(
        &self,
        file: &PublicFile,
        chunks: &[(ChunkHash, u64)],
        entry: &AuditEntry,
    ) -> Result<(), StoreError> {
        let before = self.public_files(&file.course).await?;
        let insert = sql("INSERT INTO public_files (course, name, person, at_ms, bytes, chunks) VALUES (?, ?, ?, ?, ?, ?)
             ON CONFLICT (course, name) DO UPDATE SET
             person = excluded.person, at_ms = excluded.at_ms, bytes = excluded.bytes, chunks = excluded.chunks")
        .bind(&file.course)
        .bind(&file.name)
        .bind(file.person.clone())
        .bind(file.at_ms)
        .bind(number(file.bytes))
        .bind(list(&file.chunks));
        let writer = self.writer().await?;
        writer.apply(vec![insert, actions::record(entry)]).await?;
        // Another file with some of these chunks may have been withdrawn before this one was known.
        let holder = PublicFile::holder(&file.course);
        self.hold_chunks(&holder, chunks, file.at_ms).await?;
        let replaced = before.into_iter().find(|other| other.name == file.name);
        let replaced = replaced.map_or_else(Vec::new, |other| other.chunks);
        self.release(&file.course, &replaced, file.at_ms).await
    }

    /// Whether there was such a file.
    pub async fn withdraw(&self, entry: &AuditEntry) -> Result<bool, StoreError> {
        let files = self.public_files(&entry.course).await?;
        let Some(file) = files.into_iter().find(|file| file.name == entry.subject) else {
            return Ok(false);
        };
        let delete = sql("DELETE FROM public_files WHERE course = ? AND name = ?")
            .bind(&file.course)
            .bind(&file.name);
        let writer = self.writer().await?;
        writer.apply(vec![delete, actions::record(entry)]).await?;
        self.release(&file.course, &file.chunks, entry.at_ms)
            .await?;
        Ok(true)
    }

    /// Those of the chunks that no file of the course names are no longer the course's, but nobody's for a term.
    async fn release(
        &self,
        course: &str,
        chunks: &[ChunkHash],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        for batch in chunks.chunks(NAMED) {
            let mut writer = self.writer().await?;
            let named = named_by_files(&mut writer, course).await?;
            let gone: Vec<&ChunkHash> = batch.iter().filter(|hash| !named.contains(hash)).collect();
            if gone.is_empty() {
                continue;
            }
            let mut held =
                sql("SELECT hash, bytes, object FROM chunks WHERE owner = '' AND course = ?")
                    .bind(course);
            held.push(" AND hash IN ").push_list(names(gone));
            let mut statements = Vec::new();
            for row in writer.fetch(held).await? {
                let (hash, bytes) = (hash(&row)?, count(row.get("bytes")?)?);
                statements.push(hold(&Account::default(), (hash, bytes), now_ms));
                statements.push(
                    sql("UPDATE chunks SET object = ? WHERE hash = ? AND owner = '' AND course = '' AND object IS NULL")
                        .bind(row.get::<Option<String>>("object")?)
                        .bind(hash.0.as_slice()),
                );
                statements.push(
                    sql("DELETE FROM chunks WHERE hash = ? AND owner = '' AND course = ?")
                        .bind(hash.0.as_slice())
                        .bind(course),
                );
            }
            writer.apply(statements).await?;
        }
        Ok(())
    }
}

async fn named_by_files(
    writer: &mut Writer,
    course: &str,
) -> Result<HashSet<ChunkHash>, StoreError> {
    let files = sql(format!("{FILES} WHERE course = ?")).bind(course);
    let mut named = HashSet::new();
    for row in writer.fetch(files).await? {
        named.extend(public_file(&row)?.chunks);
    }
    Ok(named)
}

fn public_file(row: &Row) -> Result<PublicFile, StoreError> {
    let chunks: Vec<u8> = row.get("chunks")?;
    Ok(PublicFile {
        course: row.get("course")?,
        name: row.get("name")?,
        person: row.get("person")?,
        at_ms: row.get("at_ms")?,
        bytes: count(row.get("bytes")?)?,
        chunks: listed(&chunks, "the chunks of a public file")?,
    })
}
