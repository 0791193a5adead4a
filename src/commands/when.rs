//! Times that people write as arguments, in the time zone of the courses, as in the courses file.

use anyhow::Context;
use baton_broker::moment_ms;
use baton_protocol::api::Course;
use jiff::{Timestamp, tz::TimeZone};

/// Parses the end of something, such as `2026-11-20T23:59`, and prints which moment was understood.
/// All courses have the same time zone. `option` is the argument's name, for errors.
pub(super) fn read_end(courses: &[Course], option: &str, when: &str) -> anyhow::Result<i64> {
    let has_offset = when.parse::<Timestamp>().is_ok();
    let zone = match zone(courses) {
        Err(_) if has_offset => TimeZone::UTC,
        zone => zone?,
    };
    let end_ms = moment_ms(when, &zone).context(option.to_owned())?;
    let end = Timestamp::from_millisecond(end_ms)?;
    anyhow::ensure!(end > Timestamp::now(), "{option} {when} is in the past");
    let end = end.to_zoned(zone);
    errln!("Until {}", end.strftime("%A %Y-%m-%d %H:%M %Z"));
    Ok(end_ms)
}

/// This machine's zone if the broker's has no name.
fn zone(courses: &[Course]) -> anyhow::Result<TimeZone> {
    let mut named = courses
        .iter()
        .filter_map(|course| course.time_zone.as_ref());
    match named.next() {
        Some(name) => TimeZone::get(name).with_context(|| {
            format!(
                "This machine does not know the time zone {name}\nhint: write the time with an offset, such as 2026-11-20T23:59+01:00"
            )
        }),
        None => Ok(TimeZone::system()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::read_end;
    use baton_protocol::api::Course;

    fn in_zone(name: &str) -> Course {
        Course {
            course: "ml101".to_owned(),
            weight: 1.0,
            boost: 1.0,
            timeout_ms: None,
            longest_timeout_ms: None,
            paused: None,
            message: None,
            budget: None,
            deadlines: Vec::new(),
            time_zone: Some(name.to_owned()),
            staff_see_outputs: false,
            environment: None,
            environments: Vec::new(),
            timetable: Vec::new(),
            running: 0,
            waiting: 0,
        }
    }

    #[test]
    fn a_time_is_in_the_zone_of_the_courses() {
        let end = |zone: &str, when: &str| {
            let end = read_end(&[in_zone(zone)], "--until", when);
            end.map_err(|error| format!("{error:#}"))
        };
        let midnight_ms = 4_102_444_800_000; // 2100-01-01 in UTC
        let hour_ms = 3_600_000;
        assert_eq!(end("UTC", "2100-01-01T00:00"), Ok(midnight_ms));
        let ahead = end("Asia/Tokyo", "2100-01-01T00:00");
        assert_eq!(ahead, Ok(midnight_ms - 9 * hour_ms));
        let own = end("Asia/Tokyo", "2100-01-01T00:00+01:00");
        assert_eq!(own, Ok(midnight_ms - hour_ms));
        let own = end("Mars/Olympus", "2100-01-01T00:00+01:00");
        assert_eq!(own, Ok(midnight_ms - hour_ms));
        let unknown = end("Mars/Olympus", "2100-01-01T00:00").unwrap_err();
        assert!(
            unknown.contains("write the time with an offset"),
            "{unknown}"
        );
        let past = end("UTC", "2020-01-01T00:00").unwrap_err();
        assert_eq!(past, "--until 2020-01-01T00:00 is in the past");
        let wrong = end("UTC", "soon").unwrap_err();
        assert!(
            wrong.starts_with("--until: \"soon\" is not a time"),
            "{wrong}"
        );
    }
}
