//! What is known about the workers of a pool while none is connected.
//!
//! In: `offers = { gpu = "h100", … }` in the settings, and what workers report. Out: whether their
//! labels and environments still count after they have left.

use anyhow::Context;
use baton_broker_queue::courses::bytes;
use baton_protocol::ComputeCapability;
use baton_scheduling::queue::Declared;
use std::time::Duration;
use tokio::time::Instant;

/// A pool whose workers lacked a label or an environment starts another one for it after this time,
/// which doubles with each worker that lacks it too.
const FIRST_PAUSE: Duration = Duration::from_secs(300);
const LONGEST_PAUSE: Duration = Duration::from_secs(2 * 3600);

/// `offers` of a pool.
#[derive(Debug, Clone, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OffersSection {
    gpu: Option<String>,
    gpu_memory: Option<String>,
    compute_capability: Option<ComputeCapability>,
    memory: Option<String>,
    labels: Option<Vec<String>>,
    environments: Option<Vec<String>>,
}

impl OffersSection {
    /// # Errors
    /// If a size is wrong; the message names the key.
    pub fn read(self) -> anyhow::Result<Declared> {
        let size = |text: Option<String>, key| {
            let bytes = text.map(|text| bytes(&text).context(key));
            bytes.transpose()
        };
        Ok(Declared {
            gpu: self.gpu,
            gpu_memory_bytes: size(self.gpu_memory, "gpu_memory")?,
            compute_capability: self.compute_capability,
            memory_bytes: size(self.memory, "memory")?,
            labels: self.labels,
            environments: self.environments,
        })
    }
}

/// What waiting jobs require and a pool's workers lacked, although the next worker may have it: a
/// label or an environment. An administrator may have added it after the last worker had started.
#[derive(Debug, Default)]
pub(super) struct Lacking {
    /// A worker has connected since the last call of [`Self::see`].
    has_come: bool,
    /// How many workers in a row lacked it.
    workers: u32,
    until: Option<Instant>,
}

impl Lacking {
    pub(super) fn comes(&mut self) {
        self.has_come = true;
    }

    /// Records whether the last worker lacks something that jobs wait for.
    pub(super) fn see(&mut self, lacks: bool, is_connected: bool) {
        let has_come = std::mem::take(&mut self.has_come);
        if !has_come && !is_connected {
            return;
        }
        if !lacks {
            *self = Self::default();
            return;
        }
        if has_come || self.workers == 0 {
            self.workers = self.workers.saturating_add(1);
        }
        self.until = Some(Instant::now() + self.pause());
    }

    /// Whether no worker is to be started for it yet.
    pub(super) fn is_paused(&self) -> bool {
        self.until.is_some_and(|until| until > Instant::now())
    }

    fn pause(&self) -> Duration {
        let doubled = 2_u32.saturating_pow(self.workers.saturating_sub(1));
        FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::Lacking;
    use std::time::Duration;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn the_pause_grows_with_each_worker_that_lacks_the_same() {
        let mut lacking = Lacking::default();
        assert!(!lacking.is_paused());
        for minutes in [5, 10, 20, 40, 80, 120, 120] {
            lacking.comes();
            lacking.see(true, true);
            lacking.see(true, true);
            lacking.see(true, false);
            advance(Duration::from_secs(minutes * 60 - 1)).await;
            assert!(lacking.is_paused(), "{minutes}");
            advance(Duration::from_secs(1)).await;
            assert!(!lacking.is_paused(), "{minutes}");
        }
        lacking.see(false, true);
        lacking.comes();
        lacking.see(true, false);
        assert!(lacking.is_paused());
        advance(Duration::from_secs(300)).await;
        assert!(!lacking.is_paused());
    }
}
