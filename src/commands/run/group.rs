//! The record of each array of jobs, in a folder of the state folder beside those of its jobs:
//! `group.json`, `log` and, if it was cancelled, `cancelled`.

use super::record::{self, LOG, RunFolder};
use crate::settings::Settings;
use anyhow::Context;
use baton_protocol::{GroupId, JobId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

const RECORD: &str = "group.json";
const CANCELLED: &str = "cancelled";

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct GroupRecord {
    pub(super) group: GroupId,
    pub(super) program: PathBuf,
    pub(super) jobs: Vec<JobId>,
    started: Timestamp,
    /// When all of its jobs had ended.
    pub(super) ended: Option<Timestamp>,
}

#[derive(Debug)]
pub(super) struct GroupFolder {
    path: PathBuf,
    state_folder: PathBuf,
}

impl GroupFolder {
    pub(super) fn of(state_folder: &Path, group: GroupId) -> Self {
        Self {
            path: record::folder_of(state_folder, &group),
            state_folder: state_folder.to_owned(),
        }
    }

    /// The only group whose identifier ends with these digits, if there is one.
    pub(super) fn find(state_folder: &Path, end: &str) -> anyhow::Result<Option<Self>> {
        let found = record::find(state_folder, end)?;
        let found = found.filter(|folder| folder.join(RECORD).exists());
        Ok(found.map(|path| Self {
            path,
            state_folder: state_folder.to_owned(),
        }))
    }

    pub(super) fn begin(
        &self,
        group: GroupId,
        program: &Path,
        jobs: Vec<JobId>,
    ) -> anyhow::Result<()> {
        record::make_folder(&self.path)?;
        record::open_log(&self.log())?;
        self.write(&GroupRecord {
            group,
            program: std::path::absolute(program).context("This folder is gone")?,
            jobs,
            started: Timestamp::now(),
            ended: None,
        })
    }

    pub(super) fn end(&self) -> anyhow::Result<()> {
        let ended = Some(Timestamp::now());
        self.write(&GroupRecord {
            ended,
            ..self.read()?
        })
    }

    pub(super) fn read(&self) -> anyhow::Result<GroupRecord> {
        record::read_json(&self.path.join(RECORD))
    }

    fn write(&self, group: &GroupRecord) -> anyhow::Result<()> {
        record::write_json(&self.path.join(RECORD), group)
    }

    pub(super) fn log(&self) -> PathBuf {
        self.path.join(LOG)
    }

    pub(super) fn lock(&self) -> anyhow::Result<File> {
        record::lock(&self.log())
    }

    pub(super) fn is_running(&self) -> io::Result<bool> {
        record::is_locked(&self.log())
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.path.join(CANCELLED).exists()
    }

    pub(super) fn job(&self, job: JobId) -> RunFolder {
        RunFolder::of(&self.state_folder, job)
    }
}

/// Keeps a group that this machine runs from submitting more jobs. Returns how many it had not submitted.
pub(crate) fn cancel(settings: &Settings, end: &str) -> anyhow::Result<Option<usize>> {
    let Some(folder) = GroupFolder::find(&settings.state_folder, end)? else {
        return Ok(None);
    };
    let to_come = jobs_to_come(&folder)?;
    fs::write(folder.path.join(CANCELLED), []).context("Failed to cancel the group")?;
    Ok(Some(to_come))
}

/// The number of jobs of a group that have not been submitted, if this machine runs the group.
pub(crate) fn to_come(settings: &Settings, end: &str) -> anyhow::Result<usize> {
    match GroupFolder::find(&settings.state_folder, end)? {
        Some(folder) => jobs_to_come(&folder),
        None => Ok(0),
    }
}

fn jobs_to_come(folder: &GroupFolder) -> anyhow::Result<usize> {
    if !folder.is_running().context("Failed to check the group")? {
        return Ok(0);
    }
    let jobs = folder.read()?.jobs.into_iter();
    let is_to_come = |job: &JobId| {
        let run = folder.job(*job);
        let has_ended = run.read().map_or(true, |record| record.ended.is_some());
        !(has_ended || run.has_begun() || run.is_cancelled())
    };
    Ok(jobs.filter(is_to_come).count())
}
