//! GPUs that are handed over: identical people, counted.
//!
//! A state consists of [`Holders`] (how many people with a GPU edit, sleep, run) and of how many
//! other people edit, sleep and wait. Waits do not depend on which person is which, so the lumping
//! is exact. With at least as many GPUs as people, no one waits.

use crate::{
    answer::Answer,
    rates::Rates,
    solve::{Chain, Groups},
    wait::{Queueing, Waits},
};

/// The people with a GPU, by what they do; the remaining GPUs run cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Holders {
    pub(crate) editing: usize,
    pub(crate) asleep: usize,
    pub(crate) running: usize,
}

#[derive(Debug, Clone, Copy)]
struct State {
    holders: Holders,
    editing: usize,
    asleep: usize,
    waiting: usize,
}

/// The states in order: grouped by the number of people who wait, and within that by the holders.
struct Space {
    holders: Vec<Holders>,
    gpus: usize,
    others: usize,
}

/// The cost of solving the chain, in states: half a million take a few seconds. With many GPUs the cost comes
/// from the ways in which they can be held, because each step of a wait goes through all of them.
#[must_use]
pub fn work(people: usize, gpus: usize) -> usize {
    let gpus = gpus.min(people);
    let others = people - gpus;
    let holders = (gpus + 1) * (gpus + 2) / 2;
    let states = holders.saturating_mul((others + 1) * (others + 2) / 2);
    states.max(holders.saturating_pow(4) / 10)
}

/// `None` if the solver did not reach twelve digits.
#[must_use]
pub fn solve(rates: &Rates, people: usize, gpus: usize) -> Option<Answer> {
    let space = Space::new(people, gpus.min(people));
    let chain = Chain::new(space.len(), |index, go| {
        space.transitions(rates, space.state(index), go)
    });
    let probabilities = chain.stationary(&[space.by_queue(), space.by_asleep(people)])?;

    let mut arrivals = Queueing::new(space.holders.len(), space.others);
    let (mut busy, mut line) = (0.0, vec![0.0; space.others + 1]);
    for (index, probability) in probabilities.into_iter().enumerate() {
        let state = space.state(index);
        busy += probability * state.holders.running as f64;
        line[state.waiting] += probability;
        let own = probability * rates.submission * state.holders.editing as f64;
        arrivals.at_once(own);
        let queued = probability * rates.submission * state.editing as f64;
        arrivals.queued(space.index_of_holders(state.holders), state.waiting, queued);
    }
    let waits = Waits::new(arrivals, |holder, go| {
        holders_alone(rates, space.holders[holder], &mut |next, rate, handed| {
            go(space.index_of_holders(next), rate, handed);
        });
    });
    Some(Answer::new(people, gpus, rates, busy, line, waits))
}

/// Transitions among the holders while another person waits: `go(next, rate, whether a waiting
/// person gets a GPU)`.
fn holders_alone(rates: &Rates, now: Holders, go: &mut dyn FnMut(Holders, f64, bool)) {
    let Holders {
        editing,
        asleep,
        running,
    } = now;
    if running > 0 {
        let next = Holders {
            editing: editing + 1,
            running: running - 1,
            ..now
        };
        go(next, rates.execution * running as f64, false);
    }
    if editing > 0 {
        let taken = Holders {
            editing: editing - 1,
            running: running + 1,
            ..now
        };
        go(taken, rates.submission * editing as f64, false);
        go(taken, rates.hand_over * editing as f64, true);
        let left = Holders {
            editing: editing - 1,
            asleep: asleep + 1,
            ..now
        };
        go(left, rates.departure * editing as f64, false);
    }
    if asleep > 0 {
        let back = Holders {
            editing: editing + 1,
            asleep: asleep - 1,
            ..now
        };
        go(back, rates.arrival * asleep as f64, false);
        let taken = Holders {
            asleep: asleep - 1,
            running: running + 1,
            ..now
        };
        go(taken, rates.hand_over * asleep as f64, true);
    }
}

impl Space {
    fn new(people: usize, gpus: usize) -> Self {
        let holders = (0..=gpus)
            .flat_map(|editing| {
                (0..=gpus - editing).map(move |asleep| Holders {
                    editing,
                    asleep,
                    running: gpus - editing - asleep,
                })
            })
            .collect();
        Self {
            holders,
            gpus,
            others: people - gpus,
        }
    }

    fn len(&self) -> usize {
        self.begin_of_queue(self.others + 1)
    }

    /// The number of states with fewer people waiting. For each number waiting, the other `rest`
    /// people can be awake or asleep in `rest + 1` ways.
    fn begin_of_queue(&self, waiting: usize) -> usize {
        let pairs: usize = waiting * (self.others + 1) - waiting * waiting.saturating_sub(1) / 2;
        pairs * self.holders.len()
    }

    fn index_of_holders(&self, holders: Holders) -> usize {
        let before = holders.editing * (self.gpus + 1)
            - holders.editing * holders.editing.saturating_sub(1) / 2;
        before + holders.asleep
    }

    fn index(&self, state: State) -> usize {
        let ways = self.others - state.waiting + 1;
        self.begin_of_queue(state.waiting)
            + self.index_of_holders(state.holders) * ways
            + state.asleep
    }

    fn state(&self, index: usize) -> State {
        let mut waiting = self.guess_queue(index);
        while self.begin_of_queue(waiting + 1) <= index {
            waiting += 1;
        }
        let rest = self.others - waiting;
        let within = index - self.begin_of_queue(waiting);
        let asleep = within % (rest + 1);
        State {
            holders: self.holders[within / (rest + 1)],
            editing: rest - asleep,
            asleep,
            waiting,
        }
    }

    /// A lower bound: the root of `begin_of_queue(waiting) = index`, rounded down.
    fn guess_queue(&self, index: usize) -> usize {
        let pairs = (index / self.holders.len()) as f64;
        let width = self.others as f64 + 1.5;
        ((width - (width * width - 2.0 * pairs).max(0.0).sqrt()).floor() - 1.0).max(0.0) as usize
    }

    fn transitions(&self, rates: &Rates, state: State, go: &mut dyn FnMut(usize, f64)) {
        let State {
            editing,
            asleep,
            waiting,
            ..
        } = state;
        holders_alone(rates, state.holders, &mut |next, rate, handed| {
            let to = State {
                holders: next,
                ..state
            };
            if !handed {
                go(self.index(to), rate);
            } else if waiting > 0 {
                let loser_slept = next.asleep < state.holders.asleep;
                let (editing, asleep) = if loser_slept {
                    (editing, asleep + 1)
                } else {
                    (editing + 1, asleep)
                };
                go(
                    self.index(State {
                        editing,
                        asleep,
                        waiting: waiting - 1,
                        ..to
                    }),
                    rate,
                );
            }
        });
        if editing > 0 {
            go(
                self.index(State {
                    editing: editing - 1,
                    waiting: waiting + 1,
                    ..state
                }),
                rates.submission * editing as f64,
            );
            go(
                self.index(State {
                    editing: editing - 1,
                    asleep: asleep + 1,
                    ..state
                }),
                rates.departure * editing as f64,
            );
        }
        if asleep > 0 {
            go(
                self.index(State {
                    editing: editing + 1,
                    asleep: asleep - 1,
                    ..state
                }),
                rates.arrival * asleep as f64,
            );
        }
    }

    fn by_queue(&self) -> Groups {
        let of = |index| {
            let state = self.state(index);
            (state.waiting * self.holders.len() + self.index_of_holders(state.holders)) as u32
        };
        Groups {
            of: (0..self.len()).map(of).collect(),
            count: (self.others + 1) * self.holders.len(),
        }
    }

    fn by_asleep(&self, people: usize) -> Groups {
        let of = |index| {
            let state = self.state(index);
            (state.asleep + state.holders.asleep) as u32
        };
        Groups {
            of: (0..self.len()).map(of).collect(),
            count: people + 1,
        }
    }
}
