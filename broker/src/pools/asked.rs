//! The workers of an external pool that are wanted and have not joined.

use super::PoolSettings;
use crate::{clock::unix_ms, words};

#[derive(Default)]
pub(super) struct Asked {
    /// Since when each of them is wanted.
    since_ms: Vec<i64>,
    /// Why they may never start.
    late: Option<String>,
}

impl Asked {
    pub(super) fn count(&self) -> usize {
        self.since_ms.len()
    }

    pub(super) fn late(&self) -> Option<String> {
        self.late.clone()
    }

    /// A worker joins. Returns since when it was wanted: it counts as the one that was requested first.
    pub(super) fn join(&mut self) -> i64 {
        match self.since_ms.is_empty() {
            true => unix_ms(),
            false => self.since_ms.remove(0),
        }
    }

    /// Records how many workers are missing, and since when.
    pub(super) fn set(&mut self, missing: usize, settings: &PoolSettings) {
        let now_ms = unix_ms();
        self.since_ms.resize(missing, now_ms);
        let limit_ms = i64::try_from(settings.start_limit.as_millis()).unwrap_or(i64::MAX);
        let since = self.since_ms.first();
        let is_late = since.is_some_and(|since| now_ms.saturating_sub(*since) >= limit_ms);
        if !is_late {
            self.late = None;
        } else if self.late.is_none() {
            let why = format!(
                "A worker has been needed for {}, but none has joined: check what starts them",
                words::span(limit_ms.unsigned_abs())
            );
            tracing::warn!("Pool {}: {why}", settings.name);
            self.late = Some(why);
        }
    }
}
