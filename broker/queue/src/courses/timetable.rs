//! The lessons of a course: when its people work at the same time.
//!
//! **Invariant:** pure.

use super::calendar::WEEKDAYS;
use anyhow::Context;
use baton_protocol::api;
use jiff::{
    Timestamp, ToSpan,
    civil::{Date, Time, Weekday},
    tz::TimeZone,
};

const MOST_PEOPLE: u32 = 10_000;
/// How many days before and after now contain the last and the next date of a weekly lesson.
const LOOKED_AT_DAYS: i64 = 15;

#[derive(Debug, Clone, PartialEq)]
pub struct Lesson {
    days: Days,
    from: Time,
    /// If this is before `from`, the lesson ends on the next day.
    until: Time,
    zone: TimeZone,
    pub people: u32,
    /// The text from which it was parsed.
    when: String,
}

#[derive(Debug, Clone, PartialEq)]
enum Days {
    Weekly(Vec<Weekday>),
    Once(Date),
}

/// The start and the end of a lesson, in milliseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub start_ms: i64,
    pub end_ms: i64,
}

impl Lesson {
    /// Parses `Mon 17:00-18:30`, `Mon,Wed 10:00-12:00` or `2026-12-01 09:00-11:00`.
    pub fn parse(lesson: &api::Lesson, zone: &TimeZone) -> anyhow::Result<Self> {
        let when = lesson.when.trim();
        let wrong = || {
            format!(
                "{when:?} is not a time such as \"Mon 17:00-18:30\" or \"2026-12-01 09:00-11:00\""
            )
        };
        let (days, times) = when.split_once(' ').with_context(wrong)?;
        let (from, until) = times.trim().split_once('-').with_context(wrong)?;
        let (from, until): (Time, Time) = (
            from.trim().parse().with_context(wrong)?,
            until.trim().parse().with_context(wrong)?,
        );
        anyhow::ensure!(from != until, wrong());
        anyhow::ensure!(
            (1..=MOST_PEOPLE).contains(&lesson.people),
            "people must be from 1 to {MOST_PEOPLE}"
        );
        let weekday = |name: &str| {
            let known = WEEKDAYS.iter().find(|(known, _)| *known == name.trim());
            known.map(|(_, weekday)| *weekday)
        };
        let days = match days.parse() {
            Ok(date) => Days::Once(date),
            Err(_) => {
                let weekdays: Option<Vec<Weekday>> = days.split(',').map(weekday).collect();
                Days::Weekly(weekdays.with_context(wrong)?)
            }
        };
        Ok(Self {
            days,
            from,
            until,
            zone: zone.clone(),
            people: lesson.people,
            when: when.to_owned(),
        })
    }

    pub fn shown(&self) -> api::Lesson {
        api::Lesson {
            when: self.when.clone(),
            people: self.people,
        }
    }

    /// The lesson in progress, or the next one. `None` if there are no more.
    pub fn next(&self, now_ms: i64) -> Option<Span> {
        let mut spans = self.around(now_ms).into_iter();
        spans.find(|span| span.end_ms > now_ms)
    }

    /// The last lesson that has ended.
    pub fn last(&self, now_ms: i64) -> Option<Span> {
        let mut spans = self.around(now_ms).into_iter().rev();
        spans.find(|span| span.end_ms <= now_ms)
    }

    /// When it takes place in the week, from Monday to Sunday, that contains this time.
    pub fn in_week(&self, now_ms: i64) -> Vec<Span> {
        let day = |ms| {
            Some(
                Timestamp::from_millisecond(ms)
                    .ok()?
                    .to_zoned(self.zone.clone())
                    .date(),
            )
        };
        let monday = day(now_ms).and_then(|today| {
            let past = i64::from(today.weekday().to_monday_zero_offset());
            today.checked_sub(past.days()).ok()
        });
        let Some(week) = monday.and_then(|monday| Some(monday..monday.checked_add(7.days()).ok()?))
        else {
            return Vec::new();
        };
        let mut spans = self.around(now_ms);
        spans.retain(|span| day(span.start_ms).is_some_and(|date| week.contains(&date)));
        spans
    }

    /// When it takes place, in order. For a weekly lesson, only the dates near `now_ms`.
    fn around(&self, now_ms: i64) -> Vec<Span> {
        let dates = match &self.days {
            Days::Once(date) => vec![*date],
            Days::Weekly(weekdays) => {
                let Ok(now) = Timestamp::from_millisecond(now_ms) else {
                    return Vec::new();
                };
                let today = now.to_zoned(self.zone.clone()).date();
                (-LOOKED_AT_DAYS..LOOKED_AT_DAYS)
                    .filter_map(|days| today.checked_add(days.days()).ok())
                    .filter(|date| weekdays.contains(&date.weekday()))
                    .collect()
            }
        };
        dates.into_iter().filter_map(|date| self.on(date)).collect()
    }

    /// If the clock skips one of its times, the time after the skip is used.
    fn on(&self, date: Date) -> Option<Span> {
        let last = match self.until > self.from {
            true => date,
            false => date.checked_add(1.day()).ok()?,
        };
        let ms = |date: Date, time| {
            let zoned = date.to_datetime(time).to_zoned(self.zone.clone()).ok()?;
            Some(zoned.timestamp().as_millisecond())
        };
        Some(Span {
            start_ms: ms(date, self.from)?,
            end_ms: ms(last, self.until)?,
        })
    }
}
