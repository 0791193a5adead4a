//! Which waiting jobs compete for a worker.
//!
//! In: the jobs that may start, in queue order. Out: the jobs that compete at the beginning, and for each job its
//! successor, which competes after the job has started. A person may have thousands of jobs in one notebook that differ only in how long
//! they have waited. Such jobs start in queue order, so only the first of them competes.
//!
//! Their time limits may differ. If a worker leaves soon, a job whose limit is too long for it therefore delays
//! shorter ones of the same notebook.

use super::entry::Entry;
use foldhash::{HashMap, HashMapExt};

/// `fits` has for each job whether each worker meets its requirements.
pub(super) fn link_alike(
    line: &[Entry],
    fits: &[Option<Vec<bool>>],
) -> (Vec<usize>, Vec<Option<usize>>) {
    let mut first = Vec::new();
    let mut next = vec![None; line.len()];
    let mut last_of_notebook: HashMap<Option<usize>, Vec<usize>> = HashMap::new();
    for (number, entry) in line.iter().enumerate() {
        let fits = |entry: &Entry| entry.job.map(|job| &fits[job]);
        let is_alike = |last: &usize| {
            let last = &line[*last];
            entry.is_alike(last) && fits(entry) == fits(last)
        };
        let last = last_of_notebook.entry(entry.person.notebook).or_default();
        match last.iter_mut().find(|last| is_alike(last)) {
            Some(last) => next[std::mem::replace(last, number)] = Some(number),
            None => {
                first.push(number);
                last.push(number);
            }
        }
    }
    (first, next)
}
