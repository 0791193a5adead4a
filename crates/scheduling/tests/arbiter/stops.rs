//! Cells that are asked to stop.

use crate::{script::GB, seconds};
use baton_scheduling::arbiter::{Action, Arbiter, Event, Memory, Settings};

#[test]
fn a_long_cell_that_is_asked_to_stop_comes_before_another_long_cell() {
    let mut settings = Settings::new(Memory {
        usable_bytes: 80 * GB,
        reserve_bytes: 0,
        host_bytes: 200 * GB,
    });
    settings.together = 1;
    let mut arbiter = Arbiter::new(settings);
    let mut handle = |event, at| arbiter.handle(event, seconds(at));
    for session in 1..=2 {
        let (user, fixed_bytes) = (session, 0);
        let joined = Event::Joined {
            session,
            user,
            fixed_bytes,
        };
        handle(joined, 0.0);
        handle(Event::CellStarted(session), 0.0);
    }
    let grant = |session, epoch| Action::Grant { session, epoch };
    let yielded = |session, epoch| Event::Yielded { session, epoch };
    assert_eq!(handle(Event::Wanted(2), 0.0), [grant(2, 1)]);
    assert_eq!(handle(yielded(2, 1), 20.0), []);
    assert_eq!(handle(Event::Wanted(1), 20.0), [grant(1, 2)]);
    // Both have used the GPU for 20 s, and take turns of more than a minute.
    assert_eq!(handle(Event::Wanted(2), 40.0).len(), 1);
    assert_eq!(handle(yielded(1, 2), 40.0), [grant(2, 3)]);
    assert_eq!(handle(Event::Wanted(1), 40.0), []);
    let stopped = handle(Event::CellStopped(1), 41.0);
    assert!(
        matches!(
            stopped[..],
            [Action::Preempt {
                session: 2,
                epoch: 3,
                ..
            }]
        ),
        "{stopped:?}"
    );
    assert_eq!(handle(yielded(2, 3), 42.0), [grant(1, 4)]);
}
