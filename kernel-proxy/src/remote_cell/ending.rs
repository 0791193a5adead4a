//! What a kernel leaves to the next one: cells in the background and, where the course wants that,
//! its variables, saved under a name of the notebook when the kernel ends. The next kernel mentions
//! them with its first `%%gpu` cell.

use super::{
    link::{BrokerAccess, Status},
    naming::Naming,
};
use baton_protocol::{SavedState, api};
use baton_transport::states;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio_util::task::AbortOnDropHandle;

/// How long to ask the broker. Nothing waits for its answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The name under which a kernel that is about to end saves its variables, if it should.
pub(super) fn autosave_name(broker: &Status, naming: &Naming) -> Option<String> {
    let wanted = matches!(broker, Status::Up(broker) if broker.autosave);
    (wanted && !naming.is_program()).then(|| saved_as(&naming.notebook))
}

/// What the notebook's earlier kernels left, which is looked up and mentioned once.
#[derive(Default)]
pub(super) enum EarlierKernels {
    #[default]
    Unknown,
    /// Asking the broker, while the cell runs.
    LookingUp(AbortOnDropHandle<Vec<String>>),
    Mentioned,
}

impl EarlierKernels {
    pub(super) fn look_up(&mut self, broker: &BrokerAccess, naming: &Naming) {
        if matches!(self, Self::Unknown) {
            *self = match naming.is_program() {
                true => Self::Mentioned,
                false => {
                    let found = left_by_them(broker.clone(), naming.notebook.clone());
                    Self::LookingUp(AbortOnDropHandle::new(tokio::spawn(found)))
                }
            };
        }
    }

    /// Waits for something to mention. If the cell ends earlier, the next one mentions it. Cancel safe.
    pub(super) async fn text(&mut self) -> String {
        if let Self::LookingUp(found) = self {
            let lines = found.await.unwrap_or_default();
            *self = Self::Mentioned;
            if !lines.is_empty() {
                return lines.join("\n");
            }
        }
        std::future::pending().await
    }
}

async fn left_by_them(broker: BrokerAccess, notebook: String) -> Vec<String> {
    let states = async {
        match broker.autosave {
            true => states::all(&broker.chunks).await.unwrap_or_default(),
            false => Vec::new(),
        }
    };
    let jobs = async { states::attachable(&broker.chunks).await.unwrap_or_default() };
    let found = async { tokio::join!(states, jobs) };
    let found = tokio::time::timeout(PATIENCE, found).await;
    let (states, jobs) = found.unwrap_or_default();
    let name = saved_as(&notebook);
    let saved = states.iter().find(|state| state.name == name);
    let of_notebook = |job: &&api::AttachableJob| job.notebook == notebook;
    let left = jobs.iter().filter(of_notebook).count();
    let of_states = saved.map(of_state).into_iter();
    of_states.chain(of_jobs(left)).collect()
}

/// The name of the saved state for the notebook with this file name.
fn saved_as(notebook: &str) -> String {
    let stem = notebook.strip_suffix(".ipynb").unwrap_or(notebook);
    let fitting = |letter: char| match letter.is_alphanumeric() || "._-".contains(letter) {
        true => letter,
        false => '-',
    };
    let name = "auto-".chars().chain(stem.chars().map(fitting));
    name.take(SavedState::LONGEST_NAME).collect()
}

fn of_state(state: &api::SavedState) -> String {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let saved = Duration::from_millis(u64::try_from(state.saved_ms).unwrap_or(0));
    let age = baton_humanize::approximate(now.saturating_sub(saved).as_secs_f64());
    let name = &state.name;
    format!(
        "The variables of this notebook's last kernel were saved {age} ago. %gpu_load {name} restores them"
    )
}

fn of_jobs(count: usize) -> Option<String> {
    let line = match count {
        0 => return None,
        1 => "A background cell of this notebook's last kernel can be attached: %gpu_jobs shows it"
            .to_owned(),
        _ => format!(
            "{count} background cells of this notebook's earlier kernels can be attached: %gpu_jobs lists them"
        ),
    };
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_notebook_has_a_name_for_its_state() {
        for (notebook, name) in [
            ("train.ipynb", "auto-train"),
            ("Übung 3 (final).ipynb", "auto-Übung-3--final-"),
            ("notebook", "auto-notebook"),
            (".ipynb", "auto-"),
        ] {
            assert_eq!(saved_as(notebook), name);
            assert!(SavedState::is_name(&saved_as(notebook)));
        }
        assert!(SavedState::is_name(&saved_as(&"x".repeat(300))));
    }
}
