//! Times, sizes, names and sentences for people, written the same way in every message, page and table.

mod causes;
mod command_log;

use std::{fmt::Display, time::Duration};

pub use causes::{root_cause, with_causes};
pub use command_log::{ERROR_PREFIX, last_error};

/// What a student reads if the service failed while a cell ran, and not the cell's own code. `noun`: what ran.
#[must_use]
pub fn safe(noun: &str) -> String {
    format!("Your variables are as they were before the {noun}")
}

/// At most two units, neither of them zero: `7 s`, `2 min 10 s`, `5 min`, `3 h 5 min`.
///
/// What is below the second unit is cut off, so a time that counts up never shows more than has
/// passed. Less than a second is `250 ms`, and zero is `0 s`.
#[must_use]
pub fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    let (first, second) = match seconds {
        0 if !time.is_zero() => return format!("{} ms", time.as_millis().max(1)),
        0..60 => return format!("{seconds} s"),
        60..3600 => ((seconds / 60, "min"), (seconds % 60, "s")),
        _ => ((seconds / 3600, "h"), (seconds / 60 % 60, "min")),
    };
    match second {
        (0, _) => format!("{} {}", first.0, first.1),
        _ => format!("{} {} {} {}", first.0, first.1, second.0, second.1),
    }
}

/// The same in whole seconds; less than one is `0 s`.
#[must_use]
pub fn whole_seconds(time: Duration) -> String {
    duration(Duration::from_secs(time.as_secs()))
}

/// The form used in settings and options: `250ms`, `90s`, `5m`, `2h`. Reads back as the same time,
/// in whole milliseconds.
#[must_use]
pub fn setting(time: Duration) -> String {
    match time.as_millis() {
        ms if ms.is_multiple_of(3_600_000) => format!("{}h", ms / 3_600_000),
        ms if ms.is_multiple_of(60_000) => format!("{}m", ms / 60_000),
        ms if ms.is_multiple_of(1000) => format!("{}s", ms / 1000),
        ms => format!("{ms}ms"),
    }
}

/// A number of people: `1 person`, `30 people`.
#[must_use]
pub fn people<Number: Display + PartialEq + From<u8>>(number: Number) -> String {
    match number == Number::from(1) {
        true => "1 person".to_owned(),
        false => format!("{number} people"),
    }
}

/// Two to three digits of a computed time, in a suitable unit: `250 ms`, `4.0 s`, `2.5 h`.
#[must_use]
pub fn approximate(seconds: f64) -> String {
    match seconds {
        0.0 => "0 s".to_owned(),
        _ if seconds < 1.0 => format!("{:.0} ms", 1000.0 * seconds),
        _ if seconds < 10.0 => format!("{seconds:.1} s"),
        _ if seconds < 120.0 => format!("{seconds:.0} s"),
        _ if seconds < 7200.0 => format!("{:.0} min", seconds / 60.0),
        _ if seconds < 172_800.0 => format!("{:.1} h", seconds / 3600.0),
        _ => format!("{:.1} days", seconds / 86_400.0),
    }
}

/// One decimal below 100 of a unit, the rest cut off: `900 bytes`, `64 KiB`, `1.5 GiB`, `79.9 GiB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let Some(exponent) = (count.max(1).ilog2() / 10).checked_sub(1) else {
        return format!("{count} bytes");
    };
    let tenths = (u128::from(count) * 10) >> (10 * (exponent + 1));
    let unit = UNITS[exponent as usize];
    match tenths % 10 {
        tenth if tenth > 0 && tenths < 1000 => format!("{}.{tenth} {unit}", tenths / 10),
        _ => format!("{} {unit}", tenths / 10),
    }
}

/// Replaces what is not text on one line: control characters, such as those of a terminal, line
/// separators, and characters that change the direction of the text around them. So a name from
/// elsewhere cannot look like something else.
#[must_use]
pub fn one_line(text: &str) -> String {
    let shown = |letter| match stays_in_line(letter) {
        true => letter,
        false => '\u{fffd}',
    };
    text.chars().map(shown).collect()
}

/// Whether a character is text on one line; see [`one_line`].
#[must_use]
pub fn stays_in_line(letter: char) -> bool {
    let turns = matches!(letter, '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let ends = letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}');
    !turns && !ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_line_of_text() {
        assert_eq!(
            one_line("Übung 1 (日本語) 🎓.ipynb"),
            "Übung 1 (日本語) 🎓.ipynb"
        );
        assert_eq!(
            one_line("\u{1b}[31mred\nrow\u{202e}\u{9b}2J"),
            "\u{fffd}[31mred\u{fffd}row\u{fffd}\u{fffd}2J"
        );
    }

    #[test]
    fn people_are_counted_in_words() {
        let counted = [people(0_u32), people(1_usize), people(30_u32)];
        assert_eq!(counted, ["0 people", "1 person", "30 people"]);
    }

    #[test]
    fn a_duration_has_at_most_two_units() {
        for (ms, expected) in [
            (0, "0 s"),
            (250, "250 ms"),
            (7999, "7 s"),
            (130_000, "2 min 10 s"),
            (300_000, "5 min"),
            (3_600_000, "1 h"),
            (3_605_000, "1 h"),
            (11_100_000, "3 h 5 min"),
            (360_000_000, "100 h"),
        ] {
            assert_eq!(duration(Duration::from_millis(ms)), expected);
        }
        assert_eq!(duration(Duration::from_micros(3)), "1 ms");
        assert_eq!(whole_seconds(Duration::from_millis(999)), "0 s");
    }

    #[test]
    fn a_setting_is_exact() {
        for (ms, expected) in [
            (250, "250ms"),
            (90_000, "90s"),
            (300_000, "5m"),
            (7_200_000, "2h"),
        ] {
            assert_eq!(setting(Duration::from_millis(ms)), expected);
        }
    }

    #[test]
    fn a_computed_time_has_the_unit_of_its_size() {
        for (seconds, expected) in [
            (0.0, "0 s"),
            (0.25, "250 ms"),
            (4.04, "4.0 s"),
            (31.2, "31 s"),
            (150.0, "2 min"),
            (9000.0, "2.5 h"),
            (1e6, "11.6 days"),
        ] {
            assert_eq!(approximate(seconds), expected);
        }
    }

    #[test]
    fn sizes_are_never_rounded_up() {
        for (count, expected) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (500 << 20, "500 MiB"),
            ((39 << 30) + (1 << 29), "39.5 GiB"),
            ((80 << 30) - 1, "79.9 GiB"),
            (80 << 30, "80 GiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(bytes(count), expected);
        }
    }
}
