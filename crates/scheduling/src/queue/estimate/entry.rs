//! Jobs and people of a play, with numbers instead of names.

use super::{
    chance::Chance,
    needs::limit_ms,
    sort_key::{SortKey, Turn},
};
use crate::queue::{Job, Outlook, Precedence, Returning, Worker};
use baton_protocol::NotebookId;
use foldhash::{HashMap, HashMapExt};
use std::sync::Arc;

/// A job, or one that a person submits later.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) key: SortKey,
    /// Its number among the waiting jobs.
    pub(super) waiting: Option<usize>,
    pub(super) person: Person,
    /// Its number in [`Outlook::jobs`]; `None` if it is not submitted yet.
    pub(super) job: Option<usize>,
    /// The job's time limit, if it has one.
    pub(super) limit_ms: u64,
    /// How long it is likely to run; 0 if unknown.
    pub(super) takes_ms: u64,
    pub(super) chance: Chance,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Person {
    pub(super) owner: usize,
    /// `None`: an unknown notebook, which may have a warm session anywhere.
    pub(super) notebook: Option<usize>,
    pub(super) course: usize,
    pub(super) precedence: Precedence,
    pub(super) absent_ms: u64,
    pub(super) chance: Chance,
}

impl Entry {
    /// Whether both differ at most in their time limits and in how long they have waited and run.
    pub(super) fn is_alike(&self, other: &Self) -> bool {
        let (own, others) = (&self.person, &other.person);
        (own.owner, own.course) == (others.owner, others.course)
            && self.key.front() == other.key.front()
            && own.precedence.is_alike(&others.precedence)
    }
}

/// Gives names consecutive numbers.
pub(super) struct Numbers<Name>(pub(super) HashMap<Name, usize>);

impl<Name: std::hash::Hash + Eq> Numbers<Name> {
    pub(super) fn of(&mut self, name: Name) -> usize {
        let next = self.0.len();
        *self.0.entry(name).or_insert(next)
    }
}

/// The numbers of people and notebooks.
pub(super) struct Numbering {
    pub(super) owners: Numbers<Arc<str>>,
    pub(super) notebooks: Numbers<NotebookId>,
}

impl Numbering {
    pub(super) fn with_capacity(capacity: usize) -> Self {
        Self {
            owners: Numbers(HashMap::with_capacity(capacity)),
            notebooks: Numbers(HashMap::with_capacity(capacity)),
        }
    }

    pub(super) fn entry(
        &mut self,
        (number, job): (usize, &Job),
        waiting: Option<usize>,
        outlook: &Outlook,
    ) -> Entry {
        Entry {
            key: SortKey::of(
                job.front,
                &job.precedence,
                0,
                Turn {
                    since: 0,
                    number: waiting.unwrap_or(0),
                },
            ),
            waiting,
            person: Person {
                owner: self.owners.of(job.owner.clone()),
                notebook: Some(self.notebooks.of(job.notebook)),
                course: outlook.jobs[number].course,
                precedence: job.precedence,
                absent_ms: 0,
                chance: Chance::of_name(&job.owner),
            },
            job: Some(number),
            limit_ms: limit_ms(&job.needs),
            takes_ms: job.takes_ms.unwrap_or(0),
            chance: Chance::of_id(job.job.0.as_u128()),
        }
    }

    pub(super) fn person(&mut self, returning: &Returning) -> Person {
        Person {
            owner: self.owners.of(returning.owner.clone()),
            notebook: None,
            course: returning.course,
            precedence: returning.precedence,
            absent_ms: returning.absent_ms,
            chance: Chance::of_name(&returning.owner),
        }
    }

    /// The workers on which each notebook has a warm session, and the one on which it has a session that holds what
    /// no other session can have.
    pub(super) fn sessions(&self, workers: &[&Worker]) -> (Vec<Vec<usize>>, Vec<Option<usize>>) {
        let notebooks = &self.notebooks.0;
        let mut warm = vec![Vec::new(); notebooks.len()];
        let mut keeping = vec![None; notebooks.len()];
        for (at, worker) in workers.iter().enumerate() {
            for number in worker.warm.iter().filter_map(|one| notebooks.get(one)) {
                warm[*number].push(at);
            }
            for number in worker.keeping.iter().filter_map(|one| notebooks.get(one)) {
                keeping[*number].get_or_insert(at);
            }
        }
        (warm, keeping)
    }
}
