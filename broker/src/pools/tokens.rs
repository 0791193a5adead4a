//! Tokens of pool workers. Each belongs to one worker, and is valid until the end of this worker is
//! recorded in the store.

use crate::people::hash_of;
use std::{
    io,
    path::{Path, PathBuf},
};
use tokio::{
    fs::{self, OpenOptions},
    io::AsyncWriteExt as _,
};

/// The prefix of these tokens. A token with it is looked up only in the store.
pub(crate) const PREFIX: &str = "baton-pool-";

/// A new token.
pub(super) fn random() -> String {
    let random = [uuid::Uuid::new_v4(), uuid::Uuid::new_v4()];
    PREFIX.to_owned() + &random.map(|part| part.simple().to_string()).concat()
}

/// Writes a new token to a file that only this user may read. Returns the file and the token's hash.
pub(super) async fn create(folder: &Path, name: &str) -> io::Result<(PathBuf, String)> {
    fs::create_dir_all(folder).await?;
    let token = random();
    let path = file(folder, name);
    let mut options = OpenOptions::new();
    let mut opened = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .await?;
    opened.write_all(token.as_bytes()).await?;
    opened.sync_all().await?;
    Ok((path, hash_of(&token)))
}

pub(super) fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{name}.token"))
}

pub(super) async fn remove(folder: &Path, name: &str) -> io::Result<()> {
    match fs::remove_file(file(folder, name)).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
