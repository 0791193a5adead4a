//! Times as people say them.

/// Two to three digits of a time in seconds, in the unit that a person would use.
#[must_use]
pub fn duration(seconds: f64) -> String {
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

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn times_have_the_unit_of_their_size() {
        let said = [0.0, 0.25, 4.04, 31.2, 150.0, 9000.0, 1e6].map(duration);
        assert_eq!(
            said,
            [
                "0 s",
                "250 ms",
                "4.0 s",
                "31 s",
                "2 min",
                "2.5 h",
                "11.6 days"
            ]
        );
    }
}
