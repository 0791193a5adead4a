//! This week's lessons by day, with predicted and measured waits.

use super::time::Zone;
use baton_humanize::{approximate, people};
use baton_plan::expected_wait;
use baton_protocol::api::{LessonDate, LessonOutlook};
use jiff::{Timestamp, ToSpan, Zoned, civil::Date, tz::TimeZone};
use maud::{Markup, html};
use std::time::Duration;

pub(super) fn week(lessons: &[LessonOutlook], zone: &Zone, now_ms: i64) -> Markup {
    let time_zone = zone.of_forms();
    let Ok(now) = at(now_ms, &time_zone) else {
        return html! {};
    };
    let today = now.date();
    let of_day = |day: Date| {
        let dates = lessons.iter().flat_map(|lesson| {
            let dates = lesson.week.iter();
            dates.map(move |date| (lesson, date))
        });
        let is_then = |date: &LessonDate| {
            at(date.starts_ms, &time_zone).is_ok_and(|start| start.date() == day)
        };
        let mut dates: Vec<_> = dates.filter(|(_, date)| is_then(date)).collect();
        dates.sort_by_key(|(_, date)| date.starts_ms);
        dates
    };
    let monday = today.saturating_sub(i64::from(today.weekday().to_monday_zero_offset()).days());
    html! {
        section.card {
            h2 { "This week" }
            p."quiet small" { "In " (zone.name_in_forms()) ". One in a hundred cells waits longer than the times given here." }
            ol.week {
                @for day in (0..7).map(|days| monday.saturating_add(days.days())) {
                    li aria-current=[(day == today).then_some("date")] {
                        h3 { (day.strftime("%a %d %b")) }
                        @let dates = of_day(day);
                        @for (lesson, date) in &dates { (entry(lesson, date, &time_zone, now_ms)) }
                        @if dates.is_empty() { p.quiet { "–" } }
                    }
                }
            }
        }
    }
}

fn entry(lesson: &LessonOutlook, date: &LessonDate, zone: &TimeZone, now_ms: i64) -> Markup {
    let clock =
        |ms| at(ms, zone).map_or_else(|_| String::new(), |time| time.strftime("%H:%M").to_string());
    let wait = |ms| approximate(Duration::from_millis(ms).as_secs_f64());
    html! {
        div {
            p { (clock(date.starts_ms)) "–" (clock(date.ends_ms)) " " strong { (lesson.course) } }
            p.quiet { (people(lesson.people)) }
            @match expected_wait(lesson) {
                Some(expected) => p { "Predicted: " (approximate(expected.as_secs_f64())) },
                None => p { "Predicted: no worker for them" },
            }
            @if let Some(was) = date.was { p { "Measured: " (wait(was.wait_99_ms)) ", " (people(was.people)) } }
            @else if date.ends_ms <= now_ms { p.quiet { "Measured: no cells" } }
        }
    }
}

fn at(ms: i64, zone: &TimeZone) -> Result<Zoned, jiff::Error> {
    Ok(Timestamp::from_millisecond(ms)?.to_zoned(zone.clone()))
}
