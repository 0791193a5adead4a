//! When a budget is reset and when a deadline counts, in the time zone of the course.

use anyhow::Context;
use jiff::{
    Timestamp, ToSpan, Zoned,
    civil::{DateTime, Time, Weekday},
    tz::TimeZone,
};

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Deadline {
    pub from_ms: i64,
    pub until_ms: i64,
    pub weight: f64,
}

impl Deadline {
    pub fn is_near(&self, now_ms: i64) -> bool {
        (self.from_ms..self.until_ms).contains(&now_ms)
    }
}

/// A reset every day or every week, at the same local time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reset {
    weekday: Option<Weekday>,
    time: Time,
    zone: TimeZone,
}

/// The time between two resets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Period {
    pub start_ms: i64,
    pub end_ms: i64,
    /// As people read it: `Monday 04:00`.
    pub end: String,
    pub is_week: bool,
}

pub(super) const WEEKDAYS: [(&str, Weekday); 7] = [
    ("Mon", Weekday::Monday),
    ("Tue", Weekday::Tuesday),
    ("Wed", Weekday::Wednesday),
    ("Thu", Weekday::Thursday),
    ("Fri", Weekday::Friday),
    ("Sat", Weekday::Saturday),
    ("Sun", Weekday::Sunday),
];

impl Reset {
    /// Parses `04:00` or `Mon 04:00`.
    pub(super) fn parse(text: &str, zone: &TimeZone) -> anyhow::Result<Self> {
        let wrong = || format!("{text:?} is not a time such as \"04:00\" or \"Mon 04:00\"");
        let (weekday, time) = match text.split_once(' ') {
            Some((day, time)) => {
                let known = WEEKDAYS.iter().find(|(name, _)| *name == day);
                (Some(known.with_context(wrong)?.1), time)
            }
            None => (None, text),
        };
        let (time, zone) = (time.parse().with_context(wrong)?, zone.clone());
        Ok(Self {
            weekday,
            time,
            zone,
        })
    }

    /// The period that contains this time. If the clock skips the time of the reset, the reset
    /// happens after the skip.
    pub fn period(&self, now_ms: i64) -> Period {
        let (start, end) = self
            .around(now_ms)
            // The year is out of range.
            .unwrap_or_else(|_| (Zoned::default(), Zoned::default()));
        Period {
            start_ms: start.timestamp().as_millisecond(),
            end_ms: end.timestamp().as_millisecond(),
            end: end.strftime("%A %H:%M").to_string(),
            is_week: self.weekday.is_some(),
        }
    }

    fn around(&self, now_ms: i64) -> Result<(Zoned, Zoned), jiff::Error> {
        let now = Timestamp::from_millisecond(now_ms)?.to_zoned(self.zone.clone());
        let days = if self.weekday.is_some() { 7 } else { 1 };
        let back = self
            .weekday
            .map_or(0, |weekday| now.weekday().since(weekday));
        let latest = now.date().checked_sub(i64::from(back).days())?;
        let at = |date: jiff::civil::Date| date.to_datetime(self.time).to_zoned(self.zone.clone());
        let this = at(latest)?;
        if this <= now {
            let next = at(latest.checked_add(days.days())?)?;
            Ok((this, next))
        } else {
            let before = at(latest.checked_sub(days.days())?)?;
            Ok((before, this))
        }
    }
}

/// Parses a time such as `2026-11-20T23:59` in this zone to milliseconds since 1970. A time with an
/// offset or a zone of its own, such as `2026-11-20T23:59+05:00`, is in that one.
pub fn moment_ms(text: &str, zone: &TimeZone) -> anyhow::Result<i64> {
    let read = || -> Result<Timestamp, jiff::Error> {
        if text.contains('[') {
            return Ok(text.parse::<Zoned>()?.timestamp());
        }
        match text.parse() {
            Ok(timestamp) => Ok(timestamp),
            // A civil time has no offset; `DateTime` would ignore it.
            Err(_) => zone.to_timestamp(text.parse::<DateTime>()?),
        }
    };
    let moment = read().with_context(|| format!("{text:?} is not a time such as 2026-11-20T23:59"));
    Ok(moment?.as_millisecond())
}
