//! Numbers and times as people say them.

use std::time::Duration;

use baton_protocol::{BudgetLeft, Period};

pub(super) fn seconds(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0..60 => format!("{:.1} s", duration.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// A time that counts up in steps which can be read.
pub(super) fn since(duration: Duration) -> String {
    let step = match duration.as_secs() {
        0..60 => 1,
        60..600 => 10,
        _ => 60,
    };
    whole(duration.as_secs() / step * step)
}

/// A time that is not known better.
pub(super) fn roughly(duration: Duration) -> String {
    let step = match duration.as_secs() {
        0..20 => 1,
        20..120 => 5,
        120..600 => 30,
        _ => 60,
    };
    whole(duration.as_secs().max(1).next_multiple_of(step))
}

pub(super) fn whole(seconds: u64) -> String {
    let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes, rest) {
        (0, 0, _) => format!("{rest} s"),
        (0, _, 0) => format!("{minutes} min"),
        (0, ..) => format!("{minutes} min {rest} s"),
        (_, 0, _) => format!("{hours} h"),
        _ => format!("{hours} h {minutes} min"),
    }
}

pub(super) fn bytes(number: u64) -> String {
    let (value, unit) = match number {
        0..1_048_576 => (number as f64 / 1024.0, "KiB"),
        1_048_576..1_073_741_824 => (number as f64 / 1_048_576.0, "MiB"),
        _ => (number as f64 / 1_073_741_824.0, "GiB"),
    };
    match value >= 100.0 {
        true => format!("{value:.0} {unit}"),
        false => format!("{value:.1} {unit}"),
    }
}

/// `102 of 120 min left this week`
pub(super) fn budget(left: &BudgetLeft) -> String {
    let period = match left.period {
        Period::Day => "today",
        Period::Week => "this week",
    };
    let (left_minutes, of) = (left.left_ms / 60_000, left.of_ms.div_ceil(60_000));
    format!("{left_minutes} of {of} min left {period}")
}
