//! The public files of courses: files that staff published, stored as chunks.
//!
//! A course holds the chunks of its files as a person would, in an [`Account`] without an owner.
//!
//! **Invariant:** a file is listed only after the course holds its chunks. When it is withdrawn,
//! its chunks first get a row without owner and course, and then lose that of the course. So only
//! the sweep deletes a chunk's last row.

use super::{
    Store, StoreError, Writer, audit_log,
    chunks::{NAMED, hash, hold, list, listed},
    columns::{count, number},
    row::Row,
    statement::sql,
};
use baton_broker_queue::{Account, AuditEntry};
use baton_protocol::ChunkHash;
use std::collections::HashSet;

/// A public file of a course.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicFile {
    pub course: String,
    pub name: String,
    /// `None` for the broker's own token.
    pub person: Option<String>,
    pub at_ms: i64,
    /// The size of its chunks, each counted once.
    pub bytes: u64,
    pub chunks: Vec<ChunkHash>,
}

impl PublicFile {
    /// The account that holds the course's public files.
    pub fn holder(course: &str) -> Account {
        Account {
            owner: String::new(),
            course: course.to_owned(),
        }
    }
}

const FILES: &str = "SELECT course, name, person, at_ms, bytes, chunks FROM public_files";

/// A handle of the store for public files.
#[derive(Clone, Copy)]
pub struct PublicFiles<'store>(pub(super) &'store Store);

impl PublicFiles<'_> {
    /// The files of one course, by name.
    pub async fn of_course(self, course: &str) -> Result<Vec<PublicFile>, StoreError> {
        let files = sql(format!("{FILES} WHERE course = ? ORDER BY name")).bind(course);
        self.0.list(files, public_file).await
    }

    /// The files of all courses.
    pub(super) async fn all(self) -> Result<Vec<PublicFile>, StoreError> {
        self.0.list(sql(FILES), public_file).await
    }

    /// Stores the file, in place of one with the same name. The course must already hold its chunks.
    pub async fn publish(
        self,
        file: &PublicFile,
        chunks: &[(ChunkHash, u64)],
        entry: &AuditEntry,
    ) -> Result<(), StoreError> {
        let before = self.of_course(&file.course).await?;
        let insert = sql("INSERT INTO public_files (course, name, person, at_ms, bytes, chunks) VALUES (?, ?, ?, ?, ?, ?)
             ON CONFLICT (course, name) DO UPDATE SET
             person = excluded.person, at_ms = excluded.at_ms, bytes = excluded.bytes, chunks = excluded.chunks")
        .bind(&file.course)
        .bind(&file.name)
        .bind(file.person.clone())
        .bind(file.at_ms)
        .bind(number(file.bytes))
        .bind(list(&file.chunks));
        let writer = self.0.writer().await?;
        writer.apply(vec![insert, audit_log::record(entry)]).await?;
        // Another file with some of these chunks may have been withdrawn before this one was listed.
        let holder = PublicFile::holder(&file.course);
        self.0.chunks().hold(&holder, chunks, file.at_ms).await?;
        let replaced = before.into_iter().find(|other| other.name == file.name);
        let replaced = replaced.map_or_else(Vec::new, |other| other.chunks);
        self.release(&file.course, &replaced, file.at_ms).await
    }

    /// Returns whether there was such a file.
    pub async fn withdraw(self, entry: &AuditEntry) -> Result<bool, StoreError> {
        let files = self.of_course(&entry.course).await?;
        let Some(file) = files.into_iter().find(|file| file.name == entry.subject) else {
            return Ok(false);
        };
        let delete = sql("DELETE FROM public_files WHERE course = ? AND name = ?")
            .bind(&file.course)
            .bind(&file.name);
        let writer = self.0.writer().await?;
        writer.apply(vec![delete, audit_log::record(entry)]).await?;
        self.release(&file.course, &file.chunks, entry.at_ms)
            .await?;
        Ok(true)
    }

    /// Takes from the course those chunks that none of its files names. They are kept without an
    /// owner for one more term.
    async fn release(
        self,
        course: &str,
        chunks: &[ChunkHash],
        now_ms: i64,
    ) -> Result<(), StoreError> {
        for batch in chunks.chunks(NAMED) {
            let mut writer = self.0.writer().await?;
            let named = named_by_files(&mut writer, course).await?;
            let gone: Vec<&ChunkHash> = batch.iter().filter(|hash| !named.contains(hash)).collect();
            if gone.is_empty() {
                continue;
            }
            let mut held =
                sql("SELECT hash, bytes, object FROM chunks WHERE owner = '' AND course = ?")
                    .bind(course);
            held.push(" AND hash IN ").push_list(gone);
            let mut statements = Vec::new();
            for row in writer.fetch(held).await? {
                let (hash, bytes) = (hash(&row)?, count(row.get("bytes")?)?);
                statements.push(hold(&Account::default(), (hash, bytes), now_ms));
                statements.push(
                    sql("UPDATE chunks SET object = ? WHERE hash = ? AND owner = '' AND course = '' AND object IS NULL")
                        .bind(row.get::<Option<String>>("object")?)
                        .bind(&hash),
                );
                statements.push(
                    sql("DELETE FROM chunks WHERE hash = ? AND owner = '' AND course = ?")
                        .bind(&hash)
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
