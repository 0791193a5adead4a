//! Explores every order of events for one job: two workers, a proxy, connections that break at
//! either end with messages in flight, a broker that restarts, workers that die, a student who
//! presses stop, and the passing of time.
//!
//! The broker is the real [`Dispatch`], and each worker uses its real [`Outbox`](baton_protocol::outbox::Outbox). `world.rs` models
//! what the worker does with it. Each reachable state is visited once.
//!
//! In every state the cell has begun at most once. From every state the job can still end, with
//! nothing left on any worker.
#![allow(clippy::unwrap_used)]

mod world;

use std::collections::{HashMap, VecDeque};
use world::{Faults, Rules, Step, World};

/// The result of an exploration.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    /// The number of states, all of which are good.
    Good(usize),
    /// The steps after which a cell begins twice.
    BegunTwice(Vec<Step>),
    /// The steps after which the job can never end.
    NoEnd(Vec<Step>),
}

/// How each state was first reached, and from which states it can be reached.
#[derive(Default)]
struct Found {
    known: HashMap<u64, usize>,
    first: Vec<Option<(usize, Step)>>,
    before: Vec<Vec<usize>>,
}

impl Found {
    /// Returns `None` if the state is already known.
    fn add(&mut self, world: &World, from: Option<(usize, Step)>) -> Option<usize> {
        let next = self.first.len();
        let number = *self.known.entry(world.fingerprint()).or_insert(next);
        if number == next {
            self.first.push(from);
            self.before.push(Vec::new());
        }
        if let Some((before, _)) = from {
            self.before[number].push(before);
        }
        (number == next).then_some(number)
    }

    fn steps_to(&self, mut state: usize) -> Vec<Step> {
        let mut steps = Vec::new();
        while let Some((before, step)) = self.first[state] {
            steps.push(step);
            state = before;
        }
        steps.reverse();
        steps
    }

    /// A state from which none of `ends` can be reached.
    fn cut_off_from(&self, ends: Vec<usize>) -> Option<usize> {
        let mut reaches = vec![false; self.first.len()];
        let mut left = ends;
        while let Some(state) = left.pop() {
            if !std::mem::replace(&mut reaches[state], true) {
                left.extend(&self.before[state]);
            }
        }
        reaches.iter().position(|reaches| !reaches)
    }
}

fn explore(rules: Rules, faults: Faults) -> Verdict {
    let mut found = Found::default();
    let mut ends = Vec::new();
    let mut left = VecDeque::new();
    let world = World::new(rules, faults);
    left.extend(found.add(&world, None).map(|number| (number, world)));
    while let Some((number, world)) = left.pop_front() {
        if world.begun > 1 {
            return Verdict::BegunTwice(found.steps_to(number));
        }
        if world.is_over() {
            ends.push(number);
        }
        for step in world.steps() {
            let mut next = world.clone();
            next.take(step);
            let added = found.add(&next, Some((number, step)));
            left.extend(added.map(|number| (number, next)));
        }
    }
    match found.cut_off_from(ends) {
        Some(state) => Verdict::NoEnd(found.steps_to(state)),
        None => Verdict::Good(found.first.len()),
    }
}

fn check_all(faults: Faults) {
    check(Rules::default(), faults);
}

fn check(rules: Rules, faults: Faults) {
    match explore(rules, faults) {
        Verdict::Good(states) => println!("{faults:?}: {states} states"),
        bad => panic!("{bad:#?}"),
    }
}

#[test]
fn a_cell_begins_at_most_once_when_lines_break() {
    check_all(Faults {
        breaks: 3,
        ..Faults::default()
    });
}

#[test]
fn a_cell_begins_at_most_once_when_the_connection_of_the_proxy_breaks() {
    check_all(Faults {
        breaks: 1,
        proxy_breaks: 1,
        ..Faults::default()
    });
}

#[test]
fn a_cell_begins_at_most_once_when_workers_die() {
    check_all(Faults {
        breaks: 1,
        deaths: 1,
        ..Faults::default()
    });
}

#[test]
fn a_cell_begins_at_most_once_when_workers_with_tokens_of_their_own_die() {
    let rules = Rules {
        named_by_token: true,
        ..Rules::default()
    };
    let (breaks, deaths, restarts) = (1, 1, 1);
    for faults in [
        Faults {
            breaks,
            deaths,
            ..Faults::default()
        },
        Faults {
            deaths,
            restarts,
            ..Faults::default()
        },
    ] {
        check(rules, faults);
    }
}

#[test]
fn a_cell_begins_at_most_once_when_the_broker_restarts() {
    check_all(Faults {
        restarts: 1,
        ..Faults::default()
    });
}

#[test]
fn a_cell_begins_at_most_once_when_the_student_presses_stop() {
    check_all(Faults {
        breaks: 2,
        cancels: 1,
        ..Faults::default()
    });
}

/// This holds if the proxy receives the start before the records are lost.
#[test]
fn a_cell_begins_at_most_once_when_the_database_loses_its_last_changes() {
    check_all(Faults {
        losses: 1,
        ..Faults::default()
    });
}

#[test]
fn the_exploration_finds_a_worker_that_does_not_wait() {
    let rules = Rules {
        waits_for_its_start: false,
        ..Rules::default()
    };
    let faults = Faults {
        breaks: 1,
        ..Faults::default()
    };
    assert!(matches!(explore(rules, faults), Verdict::BegunTwice(_)));
}
