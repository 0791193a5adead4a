//! The system's clock.

pub(crate) const HOUR_MS: i64 = 3_600_000;

/// Now, in milliseconds since 1970.
pub(crate) fn unix_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}
