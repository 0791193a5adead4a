//! Numbers and times in everyday words.

use baton_humanize::whole_seconds;
use baton_protocol::BudgetLeft;
use std::time::Duration;

pub(super) fn seconds(duration: Duration) -> String {
    match duration.as_secs() {
        0..60 => format!("{:.1} s", duration.as_secs_f64()),
        _ => whole_seconds(duration),
    }
}

/// A time that counts up, in steps large enough to read.
pub(super) fn since(duration: Duration) -> String {
    let step = match duration.as_secs() {
        0..60 => 1,
        60..600 => 10,
        _ => 60,
    };
    whole_seconds(Duration::from_secs(duration.as_secs() / step * step))
}

/// A time that is known only roughly.
pub(super) fn roughly(duration: Duration) -> String {
    let step = match duration.as_secs() {
        0..20 => 1,
        20..120 => 5,
        120..600 => 30,
        _ => 60,
    };
    whole_seconds(Duration::from_secs(
        duration.as_secs().max(1).next_multiple_of(step),
    ))
}

/// `1 h 42 min of 4 h left this week (2 h of it granted)`, as `baton explain` says it.
pub(super) fn budget(left: &BudgetLeft) -> String {
    let period = left.period.words();
    let time = |ms| whole_seconds(Duration::from_millis(ms));
    let granted = match left.granted_ms {
        0 => String::new(),
        granted_ms => format!(" ({} of it granted)", time(granted_ms)),
    };
    format!(
        "{} of {} left {period}{granted}",
        time(left.left_ms),
        time(left.of_ms)
    )
}
