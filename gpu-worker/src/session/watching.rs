//! Combines the two parts of the worker that answer system calls of a session.
//!
//! In: the observer of the session's mirror, and the guard of a session under Landlock. Out: one filter and one judge
//! for both, because the system allows a process only one filter with a listener.

use crate::{
    calls::{self, Notification, Waiting, Watched, Watching, Works},
    mirror::Observer,
    sandbox::Guard,
};
use std::io;

/// `None` if no system call has to wait.
pub(super) fn watch(
    observer: Option<Observer>,
    guard: Option<Guard>,
) -> io::Result<Option<(Works, Watching)>> {
    let of_mirror = observer.as_ref().map(Observer::watched).unwrap_or_default();
    let watched = Watched {
        shared: guard.is_some(),
        ..of_mirror
    };
    if watched == Watched::default() {
        return Ok(None);
    }
    let judge = move |call: Notification, waiting: Waiting| {
        let observe = |waiting| match &observer {
            Some(observer) => observer.judge(&call, waiting),
            None => Waiting::resume(waiting),
        };
        match &guard {
            Some(guard) => return guard.answer(&call, waiting, observe),
            None => observe(waiting),
        }
        None
    };
    calls::watch(watched, judge).map(Some)
}
