//! Moving files to places in the notebook's folder.

use crate::{
    content::time,
    folder::{Folder, Place},
    walk::STAGING,
};
use std::{
    ffi::{OsStr, OsString},
    fs::{File, Permissions},
    io,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, SystemTime},
};

/// What is older than this and belongs to no running program was left by one that was killed.
const ABANDONED: Duration = Duration::from_hours(1);

/// A name of Baton's own, which never exists yet.
pub(crate) fn own_name() -> String {
    format!("{STAGING}{}", uuid::Uuid::new_v4().simple())
}

fn is_own_name(name: &OsStr) -> bool {
    let random = name.to_str().and_then(|name| name.strip_prefix(STAGING));
    random.is_some_and(|random| uuid::Uuid::try_parse(random).is_ok())
}

/// Removes what killed programs left in this folder under names of Baton's own.
pub(crate) fn remove_abandoned(folder: &Folder) {
    let failed = |error| tracing::debug!(%error, "Failed to remove what killed programs left");
    let removed = folder.each_name(|name| {
        if is_own_name(name) {
            remove_if_abandoned(&folder.child(name)).unwrap_or_else(failed);
        }
        Ok(true)
    });
    removed.unwrap_or_else(failed);
}

fn remove_if_abandoned(place: &Place) -> io::Result<()> {
    let status = place.status()?;
    let age = SystemTime::now().duration_since(time(status.modified_ns));
    if !age.is_ok_and(|age| age > ABANDONED) {
        return Ok(());
    }
    if !status.is_folder() {
        return place.remove_file();
    }
    // A running program locks its folder. Where locks are not supported, nothing is removed.
    let lock = File::from(place.folder()?.readable()?);
    lock.try_lock()?;
    place.remove_tree()
}

/// A free name beside a file whose name is taken: `data (from the GPU).csv`.
pub(crate) fn free_name(taken: &Place) -> io::Result<Place> {
    let name = Path::new(taken.name());
    let (stem, ending) = (name.file_stem(), name.extension());
    for number in 1.. {
        let mut name = stem.map_or_else(OsString::new, OsStr::to_owned);
        match number {
            1 => name.push(" (from the GPU)"),
            _ => name.push(format!(" (from the GPU {number})")),
        }
        if let Some(ending) = ending {
            name.push(".");
            name.push(ending);
        }
        let place = taken.beside(name);
        if place.present()?.is_none() {
            return Ok(place);
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Moves a file, even to another file system: a folder in the notebook's folder may be one. Its old place is free
/// afterwards.
pub(crate) fn move_file(from: &Place, to: &Place) -> io::Result<()> {
    match from.rename_to(to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => {
            copy(from, to)?;
            from.remove_file()
        }
        renamed => renamed,
    }
}

fn copy(from: &Place, to: &Place) -> io::Result<()> {
    let near = to.beside(own_name());
    let copied = match from.status()?.is_link() {
        true => near.make_link(&from.read_link()?),
        false => from
            .open_file()
            .and_then(|from| copy_file(from, near.create_file()?)),
    };
    copied
        .and_then(|()| near.rename_to(to))
        .inspect_err(|_| drop(near.remove_file()))
}

fn copy_file(mut from: File, mut to: File) -> io::Result<()> {
    let metadata = from.metadata()?;
    io::copy(&mut from, &mut to)?;
    describe_file(&to, metadata.modified()?, metadata.permissions().mode());
    Ok(())
}

/// Sets a file's time and permissions, as far as its file system can.
pub(crate) fn describe_file(file: &File, modified: SystemTime, mode: u32) {
    attempt("time", file.set_modified(modified));
    attempt(
        "permissions",
        file.set_permissions(Permissions::from_mode(mode)),
    );
}

/// Some file systems (NFS with one user for all, SMB, FAT) refuse times and permissions, which are worth less than the
/// bytes.
pub(crate) fn attempt(what: &str, set: io::Result<()>) {
    if let Err(error) = set {
        tracing::debug!(%error, "Failed to set a file's {what}");
    }
}
