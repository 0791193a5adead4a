//! The system's clock.

/// Now, in milliseconds since 1970.
pub(crate) fn unix_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}
