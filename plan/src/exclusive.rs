//! GPUs that each person keeps from arrival to departure: the alternative to sharing, for comparison.
//!
//! A person who arrives takes a free GPU, or waits for one and can do nothing until then. A GPU
//! that becomes free is handed to the first person in the queue. Cells never wait, but people do:
//! the waits of the [`Answer`] are from arrival to having a GPU.

use crate::{
    answer::{Answer, mean},
    rates::Rates,
    solve::{Chain, Groups},
    wait::{Queueing, Waits},
};

/// The number of GPUs in each state; free ones have no holder.
#[derive(Debug, Clone, Copy)]
struct GpuCounts {
    editing: usize,
    running: usize,
    free: usize,
}

struct Space {
    held: Vec<GpuCounts>,
    people: usize,
    gpus: usize,
}

/// `None` if people never leave and there are more of them than GPUs (the others wait for ever), or
/// if the solver did not reach twelve digits.
#[must_use]
pub fn solve(rates: &Rates, people: usize, gpus: usize) -> Option<Answer> {
    if rates.departure == 0.0 && people > gpus {
        return None;
    }
    let space = Space::new(people, gpus.min(people));
    let chain = Chain::new(space.len(), |index, go| space.transitions(rates, index, go));
    let probabilities = chain.stationary(&[space.by_line()])?;

    let mut arrivals = Queueing::new(space.held.len(), people);
    let (mut busy, mut coming) = (0.0, 0.0);
    let mut line = vec![0.0; people + 1];
    for (index, probability) in probabilities.into_iter().enumerate() {
        let (waiting, held) = space.state(index);
        busy += probability * held.running as f64;
        line[waiting] += probability;
        let weight = probability * rates.arrival * space.asleep(waiting, held) as f64;
        coming += weight;
        if waiting == 0 && held.free > 0 {
            arrivals.at_once(weight);
        } else if weight > 0.0 {
            arrivals.queued(space.index_of(held), waiting, weight);
        }
    }
    let waits = Waits::new(arrivals, |held, go| {
        meanwhile(rates, space.held[held], &mut |next, rate, handed| {
            go(space.index_of(next), rate, handed)
        });
    });
    let wait = if coming > 0.0 {
        mean(&line) / coming
    } else {
        0.0
    };
    Some(Answer {
        people,
        gpus,
        utilisation: busy / gpus as f64,
        throughput: busy * rates.execution,
        wait,
        response: 1.0 / rates.execution,
        line,
        waits,
    })
}

/// What happens on the GPUs while a person waits.
fn meanwhile(rates: &Rates, now: GpuCounts, go: &mut dyn FnMut(GpuCounts, f64, bool)) {
    let GpuCounts {
        editing,
        running,
        free,
    } = now;
    if editing > 0 {
        let submitted = GpuCounts {
            editing: editing - 1,
            running: running + 1,
            free,
        };
        go(submitted, rates.submission * editing as f64, false);
        let left = GpuCounts {
            editing: editing - 1,
            running,
            free: free + 1,
        };
        go(left, rates.departure * editing as f64, false);
    }
    if running > 0 {
        let ran = GpuCounts {
            editing: editing + 1,
            running: running - 1,
            free,
        };
        go(ran, rates.execution * running as f64, false);
    }
    if free > 0 {
        let taken = GpuCounts {
            editing: editing + 1,
            running,
            free: free - 1,
        };
        go(taken, rates.hand_over * free as f64, true);
    }
}

impl Space {
    fn new(people: usize, gpus: usize) -> Self {
        // If people never leave, the chain ends with no GPU free, so those states come first.
        let held = (0..=gpus)
            .flat_map(|free| {
                (0..=gpus - free).map(move |editing| GpuCounts {
                    editing,
                    running: gpus - free - editing,
                    free,
                })
            })
            .collect();
        Self { held, people, gpus }
    }

    /// Includes states with more people than exist, which no transition reaches.
    fn len(&self) -> usize {
        (self.people + 1) * self.held.len()
    }

    fn state(&self, index: usize) -> (usize, GpuCounts) {
        (index / self.held.len(), self.held[index % self.held.len()])
    }

    fn index_of(&self, held: GpuCounts) -> usize {
        let before = held.free * (self.gpus + 1) - held.free * held.free.saturating_sub(1) / 2;
        before + held.editing
    }

    fn asleep(&self, waiting: usize, held: GpuCounts) -> usize {
        self.people
            .saturating_sub(waiting + held.editing + held.running)
    }

    fn transitions(&self, rates: &Rates, index: usize, go: &mut dyn FnMut(usize, f64)) {
        let (waiting, held) = self.state(index);
        let to = |waiting: usize, held: GpuCounts| waiting * self.held.len() + self.index_of(held);
        meanwhile(rates, held, &mut |next, rate, handed| {
            if !handed {
                go(to(waiting, next), rate);
            } else if waiting > 0 {
                go(to(waiting - 1, next), rate);
            }
        });
        let coming = rates.arrival * self.asleep(waiting, held) as f64;
        if waiting == 0 && held.free > 0 {
            let taken = GpuCounts {
                editing: held.editing + 1,
                free: held.free - 1,
                ..held
            };
            go(to(0, taken), coming);
        } else if waiting < self.people {
            go(to(waiting + 1, held), coming);
        }
    }

    fn by_line(&self) -> Groups {
        let of = (0..self.len())
            .map(|index| (index / self.held.len()) as u32)
            .collect();
        Groups {
            of,
            count: self.people + 1,
        }
    }
}
