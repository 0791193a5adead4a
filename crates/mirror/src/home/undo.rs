//! Undoes a cell's changes in the notebook's folder, one step for each change.
//!
//! **Invariant:** what another program has written here since then is neither deleted nor replaced.

use super::listing::stamp;
use crate::{
    folder::{Below, Place},
    places::move_file,
};
use baton_protocol::files::Stamp;
use std::io;

#[derive(Debug)]
pub(super) enum Undo {
    /// Takes away what was put in a place.
    Take {
        placed: Below,
        /// Of what was put there; `None` if its status could not be read.
        stamp: Option<Stamp>,
        /// What the cell renamed returns to the trash, and goes from there to its old name.
        renamed: Option<Below>,
    },
    /// Moves what was here back from the trash.
    Restore {
        kept: Below,
        to: Below,
    },
    RemoveFolder(Below),
    MakeFolder(Below, u32),
    /// Restores the permissions of a file.
    SetMode {
        file: Below,
        before: u32,
        /// Of the file with its new permissions; `None` for a file in the trash, which nothing else changes.
        stamp: Option<Stamp>,
    },
}

impl Undo {
    /// Undoes the steps, the last one first. Returns a line for each file that something else has changed since then.
    /// `noun`: what made the changes.
    pub(super) fn run_all(steps: Vec<Self>, noun: &str) -> Vec<String> {
        let mut notes = Vec::new();
        for step in steps.into_iter().rev() {
            match step.run(noun) {
                Ok(note) => notes.extend(note),
                Err(error) => tracing::error!(%error, "Failed to restore a file: {step:?}"),
            }
        }
        notes
    }

    /// Returns a note if nothing was done because something else has changed the file.
    fn run(&self, noun: &str) -> io::Result<Option<String>> {
        match self {
            Self::Take {
                placed,
                stamp,
                renamed,
            } => {
                let place = placed.place()?;
                if is_changed(&place, *stamp)? {
                    return Ok(Some(stays(placed, noun)));
                }
                match renamed {
                    Some(to) => move_file(&place, &to.place()?)?,
                    None => place.remove_file()?,
                }
            }
            Self::Restore { kept, to } => {
                let (place, path) = (to.place()?, &to.path);
                let kept = kept.place()?;
                match (kept.status()?, place.present()?) {
                    // Renaming one of two names of a file to the other does nothing.
                    (kept_file, Some(there)) if kept_file.is_same(&there) => kept.remove_file()?,
                    (_, Some(_)) => {
                        return Ok(Some(format!(
                            "the version of '{path}' from before the {noun} is in the trash; \
                             `baton files restore '{path}'` restores it"
                        )));
                    }
                    (_, None) => move_file(&kept, &place)?,
                }
            }
            Self::RemoveFolder(path) => path.place()?.remove_folder()?,
            Self::MakeFolder(path, mode) => {
                let place = path.place()?;
                place.make_folder(0o700)?;
                place.set_mode(*mode)?;
            }
            Self::SetMode {
                file,
                before,
                stamp,
            } => {
                let place = file.place()?;
                if is_changed(&place, *stamp)? {
                    return Ok(Some(stays(file, noun)));
                }
                place.set_mode(*before)?;
            }
        }
        Ok(None)
    }
}

fn stays(file: &Below, noun: &str) -> String {
    let path = &file.path;
    format!("'{path}' stays here as it is, because something else changed it after the {noun}")
}

fn is_changed(place: &Place, placed: Option<Stamp>) -> io::Result<bool> {
    let now = stamp(&place.status()?);
    Ok(placed.is_some_and(|placed| placed != now))
}
