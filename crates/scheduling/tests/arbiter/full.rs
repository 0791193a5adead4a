//! What the ledger says after the driver had no room for memory that was granted.

use crate::{arbiter_of_moves, leaves, script::GB};
use baton_scheduling::arbiter::{Action, Arbiter, Event, Memory};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Two sessions with 50 GB each on a GPU of 80 GB. 20 GB of the first have left it.
fn crowded() -> Arbiter {
    let mut arbiter = arbiter_of_moves(Memory {
        usable_bytes: 80 * GB,
        reserve_bytes: 0,
        host_bytes: 200 * GB,
    });
    for session in 1..=2 {
        let (user, fixed_bytes) = (session, 0);
        let joined = Event::Joined {
            session,
            user,
            fixed_bytes,
        };
        arbiter.handle(joined, SECOND);
        let bytes = 50 * GB;
        arbiter.handle(Event::Grew { session, bytes }, SECOND);
    }
    let part = Event::PartLeft {
        session: 1,
        bytes: 20 * GB,
    };
    arbiter.handle(part, SECOND);
    arbiter.handle(Event::SwappedOut(1), SECOND);
    assert_eq!(arbiter.bytes_on_gpu(), 80 * GB);
    arbiter
}

fn not_grown(bytes: u64, swapped_out_bytes: u64) -> Event {
    Event::NotGrown {
        session: 1,
        bytes,
        swapped_out_bytes,
        free_bytes: 0,
    }
}

#[test]
fn a_request_for_nothing_is_granted_at_once() {
    let request = Event::Grew {
        session: 1,
        bytes: 0,
    };
    let granted = Action::Grow {
        session: 1,
        bytes: 0,
    };
    assert_eq!(crowded().handle(request, SECOND), [granted]);
}

#[test]
fn what_was_granted_on_paper_and_not_made_was_never_on_the_gpu() {
    let mut arbiter = crowded();
    for _ in 0..3 {
        let (session, bytes) = (1, GB);
        assert_eq!(
            arbiter.handle(Event::Grew { session, bytes }, SECOND),
            [Action::Grow { session, bytes }]
        );
        arbiter.handle(not_grown(GB, GB), SECOND);
        assert_eq!(arbiter.bytes_on_gpu(), 80 * GB);
    }
}

#[test]
fn an_allocation_that_fails_while_memory_returns_does_not_end_the_return() {
    let mut arbiter = crowded();
    // It is granted while the memory is on the host.
    let (session, bytes) = (1, GB);
    arbiter.handle(Event::Grew { session, bytes }, SECOND);
    assert_eq!(
        arbiter.handle(Event::Wanted(1), SECOND),
        [leaves(2, 21 * GB)]
    );
    let part = Event::PartLeft {
        session: 2,
        bytes: 21 * GB,
    };
    assert_eq!(arbiter.handle(part, SECOND), [Action::SwapIn(1)]);
    assert_eq!(arbiter.handle(Event::SwappedOut(2), SECOND), []);
    assert_eq!(arbiter.handle(not_grown(GB, GB), SECOND), []);
    assert_eq!(
        arbiter.handle(Event::SwappedIn(1), SECOND),
        [Action::Grant {
            session: 1,
            epoch: 1
        }]
    );
    assert_eq!(arbiter.bytes_on_gpu(), 79 * GB);
}
