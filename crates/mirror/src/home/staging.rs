//! A hidden folder beside the notebook, in which everything that a cell wrote waits until all of it has arrived.
//!
//! **Invariant:** nothing outside of the hidden folder changes before [`commit`](super::commit::commit).

use crate::{
    FilesError, Root,
    errors::at,
    folder::{Below, Folder, Place},
    places::{own_name, remove_abandoned},
    trash::Trash,
};
use baton_protocol::files::{Change, Content, RelativePath};
use std::{fs::File, path::PathBuf};

/// Files that wait to be put in place.
#[derive(Debug)]
pub struct Staging {
    pub(super) root: PathBuf,
    pub(super) home: Folder,
    /// This folder's name in the notebook's folder.
    place: Place,
    folder: Folder,
    /// Others remove a folder without a lock if it is old.
    _lock: File,
    pub(super) trash: Trash,
    changes: Vec<(Change, Option<Below>)>,
}

impl Staging {
    /// Fails if the notebook's folder has been replaced.
    pub fn create(root: &Root, trash: &Trash) -> Result<Self, FilesError> {
        root.check()?;
        let name = own_name();
        let path = root.path().join(&name);
        let home = root.folder().clone();
        remove_abandoned(&home);
        let place = home.child(name);
        place.make_folder(0o700).map_err(at(&path))?;
        let folder = place.folder().map_err(at(&path))?;
        Ok(Self {
            root: root.path().to_owned(),
            _lock: folder.lock().map_err(at(&path))?,
            folder,
            home,
            place,
            trash: trash.clone(),
            changes: Vec::new(),
        })
    }

    /// Adds a change. Returns the file to fill with its bytes, if it has any.
    pub fn add(&mut self, change: Change) -> Result<Option<(File, Content)>, FilesError> {
        let Change::Written { content, .. } = &change else {
            self.changes.push((change, None));
            return Ok(None);
        };
        let waiting = self.waiting(&format!("new-{}", self.changes.len()));
        let file = waiting
            .place()
            .and_then(|place| place.create_file())
            .map_err(at(&self.root.join(self.place.name())))?;
        let content = content.clone();
        self.changes.push((change, Some(waiting)));
        Ok(Some((file, content)))
    }

    /// A name in this folder.
    pub(super) fn waiting(&self, name: &str) -> Below {
        Below {
            folder: self.folder.clone(),
            path: RelativePath::new(name).expect("a name without slashes is a path"),
        }
    }

    /// Everything that was added, with the files that wait.
    pub(super) fn take_changes(&mut self) -> Vec<(Change, Option<Below>)> {
        std::mem::take(&mut self.changes)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if let Err(error) = self.place.remove_tree() {
            let name = self.place.name().display();
            tracing::warn!(%error, "Failed to remove a folder of arriving files: {name}");
        }
    }
}
