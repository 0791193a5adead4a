//! GPUs, or slices of one, that a session has for itself.
//!
//! In: the available hardware. Out: one GPU or slice for each session, for as long as the session lives. If none is
//! free, a session waits; the agent learns of that and ends sessions that have no cell.

use super::{CUDA_VISIBLE_DEVICES, Hardware};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::{
    process::Command,
    sync::{OwnedSemaphorePermit, Semaphore, watch},
};

pub(crate) struct ExclusiveGpus {
    count: usize,
    free: Mutex<Vec<Hardware>>,
    permits: Arc<Semaphore>,
    /// How many sessions wait for one.
    waiting: watch::Sender<usize>,
}

/// Dropped when the session's processes have ended.
pub(crate) struct ExclusiveGpu {
    gpus: Arc<ExclusiveGpus>,
    hardware: Hardware,
    _permit: OwnedSemaphorePermit,
}

impl ExclusiveGpus {
    pub(crate) fn new(all: Vec<Hardware>) -> Arc<Self> {
        Arc::new(Self {
            count: all.len(),
            permits: Arc::new(Semaphore::new(all.len())),
            free: Mutex::new(all),
            waiting: watch::Sender::default(),
        })
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) async fn take(self: &Arc<Self>) -> ExclusiveGpu {
        let at_once = self.permits.clone().try_acquire_owned();
        let permit = match at_once {
            Ok(permit) => Ok(permit),
            Err(_) => {
                let _waiting = Waiting::new(&self.waiting);
                self.permits.clone().acquire_owned().await
            }
        };
        let _permit = permit.expect("nobody closes it");
        let hardware = self.free().pop();
        ExclusiveGpu {
            gpus: self.clone(),
            hardware: hardware.expect("as many are free as there are permits"),
            _permit,
        }
    }

    pub(crate) fn waiting(&self) -> watch::Receiver<usize> {
        self.waiting.subscribe()
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<Hardware>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ExclusiveGpu {
    /// Lets the session that `command` starts see nothing else.
    pub(crate) fn show_to(&self, command: &mut Command) {
        command.env(CUDA_VISIBLE_DEVICES, &self.hardware.name);
    }

    pub(crate) fn hardware(&self) -> &Hardware {
        &self.hardware
    }
}

impl Drop for ExclusiveGpu {
    fn drop(&mut self) {
        let hardware = self.hardware.clone();
        self.gpus.free().push(hardware);
    }
}

struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn new(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn gpu(name: &str) -> Hardware {
        Hardware {
            name: name.to_owned(),
            gpu: None,
            slice: None,
        }
    }

    fn visible(gpu: &ExclusiveGpu) -> String {
        let mut command = Command::new("true");
        gpu.show_to(&mut command);
        let (_, value) = command.as_std().get_envs().next().unwrap();
        value.unwrap().to_str().unwrap().to_owned()
    }

    #[tokio::test]
    async fn each_has_one_and_the_next_waits_for_it() {
        let gpus = ExclusiveGpus::new(vec![gpu("MIG-b"), gpu("MIG-a")]);
        let (first, second) = (gpus.take().await, gpus.take().await);
        assert_eq!([visible(&first), visible(&second)], ["MIG-a", "MIG-b"]);

        let mut waiting = gpus.waiting();
        let third = tokio::spawn({
            let gpus = gpus.clone();
            async move { gpus.take().await }
        });
        waiting.wait_for(|count| *count == 1).await.unwrap();
        drop(first);
        assert_eq!(visible(&third.await.unwrap()), "MIG-a");
        assert_eq!(*waiting.borrow(), 0);
    }

    #[tokio::test]
    async fn who_gives_up_no_longer_waits() {
        let gpus = ExclusiveGpus::new(Vec::new());
        let mut waiting = gpus.waiting();
        let task = tokio::spawn({
            let gpus = gpus.clone();
            async move { drop(gpus.take().await) }
        });
        waiting.wait_for(|count| *count == 1).await.unwrap();
        task.abort();
        waiting.wait_for(|count| *count == 0).await.unwrap();
    }
}
