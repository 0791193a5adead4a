//! `baton files`: restores files beside a notebook that `%%gpu` cells deleted or replaced.

use super::ask::text;
use crate::settings::Settings;
use anyhow::Context;
use baton_mirror::{Kept, Trash, Was};
use clap::{Args, Subcommand};
use jiff::{Timestamp, tz::TimeZone};
use serde::Serialize;
use std::{
    collections::BTreeSet,
    path::{Component, Path, PathBuf},
    process::ExitCode,
};

/// As JSON.
#[derive(Serialize)]
struct Shown {
    path: String,
    was: String,
    bytes: u64,
    unix_ms: i64,
}

/// Restore files that %%gpu cells deleted or replaced
#[derive(Subcommand)]
pub(crate) enum Files {
    /// List the files that can be restored, newest first
    List {
        #[command(flatten)]
        notebook: Notebook,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Restore files
    ///
    /// With PATH, restore the newest version of that file, or of every file in that folder. What is there now goes to
    /// the trash.
    ///
    /// Without PATH, restore every file that was deleted and is still missing.
    Restore {
        /// A file or a folder, as `baton files list` shows it
        #[arg(value_name = "PATH")]
        paths: Vec<PathBuf>,
        #[command(flatten)]
        notebook: Notebook,
    },
}

#[derive(Args)]
pub(crate) struct Notebook {
    /// The notebook's folder
    /// [default: this folder, or the nearest one above it with a trash]
    #[arg(long, verbatim_doc_comment)]
    folder: Option<PathBuf>,
}

pub(crate) fn main(settings: &Settings, of: &Files) -> anyhow::Result<ExitCode> {
    let (Files::List { notebook, .. } | Files::Restore { notebook, .. }) = of;
    let folder = notebook_folder(settings, notebook.folder.as_ref())?;
    let trash = Trash::of(&folder, &settings.state_folder);
    let kept = trash
        .kept()
        .with_context(|| format!("Failed to look through the trash of {}", folder.display()))?;
    match of {
        Files::List { json, .. } => list(&kept, *json),
        Files::Restore { paths, .. } => restore(&folder, &trash, &chosen(&folder, &kept, paths)?),
    }
}

/// The nearest folder with a trash; this folder if there is none.
fn notebook_folder(settings: &Settings, named: Option<&PathBuf>) -> anyhow::Result<PathBuf> {
    let here = std::env::current_dir().context("This folder is gone")?;
    if let Some(named) = named {
        let path = here.join(named);
        return path
            .canonicalize()
            .with_context(|| format!("There is no folder {}", path.display()));
    }
    let has_trash = |folder: &&Path| {
        let kept = Trash::of(folder, &settings.state_folder).kept();
        kept.is_ok_and(|kept| !kept.is_empty())
    };
    Ok(here.ancestors().find(has_trash).unwrap_or(&here).to_owned())
}

fn list(kept: &[Kept], json: bool) -> anyhow::Result<ExitCode> {
    if json {
        let shown: Vec<Shown> = kept
            .iter()
            .map(|kept| Shown {
                path: kept.path.to_string(),
                was: kept.was.to_string(),
                bytes: kept.bytes,
                unix_ms: kept.at_ms,
            })
            .collect();
        outln!("{}", serde_json::to_string_pretty(&shown)?);
    } else {
        let rows = kept.iter().map(|kept| {
            let (path, was) = (kept.path.to_string(), kept.was.to_string());
            [time(kept.at_ms), was, kept.bytes.to_string(), path]
        });
        let nothing = "No %%gpu cell has deleted or replaced files here lately";
        out!(
            "{}",
            text::table(["WHEN", "WHAT", "BYTES", "PATH"], rows, nothing)
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The newest version of each requested file.
fn chosen<'kept>(
    folder: &Path,
    kept: &'kept [Kept],
    paths: &[PathBuf],
) -> anyhow::Result<Vec<&'kept Kept>> {
    let mut seen = BTreeSet::new();
    let newest: Vec<&Kept> = kept.iter().filter(|kept| seen.insert(&kept.path)).collect();
    if paths.is_empty() {
        let is_missing = |kept: &&Kept| {
            kept.was != Was::Replaced
                && folder.join(kept.path.as_path()).symlink_metadata().is_err()
        };
        return Ok(newest.into_iter().filter(is_missing).collect());
    }
    let here = std::env::current_dir().context("This folder is gone")?;
    let mut chosen = Vec::new();
    for path in paths {
        let named = without_dots(&here.join(path));
        let below = named.strip_prefix(folder).unwrap_or(path);
        let found: Vec<&Kept> = newest
            .iter()
            .copied()
            .filter(|kept| kept.path.as_path().starts_with(below))
            .collect();
        anyhow::ensure!(
            !found.is_empty(),
            "Nothing called '{}' is in the trash\nhint: `baton files list` shows what is",
            path.display()
        );
        chosen.extend(found);
    }
    Ok(chosen)
}

/// Judged by the text alone, because the file no longer exists.
fn without_dots(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

fn restore(folder: &Path, trash: &Trash, chosen: &[&Kept]) -> anyhow::Result<ExitCode> {
    if chosen.is_empty() {
        outln!("No file that a %%gpu cell deleted is missing here");
    }
    let mut all = ExitCode::SUCCESS;
    for kept in chosen {
        match kept.restore(folder, trash) {
            Ok(()) => {
                let when = time(kept.at_ms);
                outln!("Restored '{}', {} {when}", kept.path, kept.was);
            }
            Err(error) => {
                errln!("Failed to restore '{}': {error}", kept.path);
                all = ExitCode::FAILURE;
            }
        }
    }
    Ok(all)
}

/// In local time.
fn time(unix_ms: i64) -> String {
    let at = Timestamp::from_millisecond(unix_ms).unwrap_or_default();
    at.to_zoned(TimeZone::system())
        .strftime("%Y-%m-%d %H:%M:%S")
        .to_string()
}
