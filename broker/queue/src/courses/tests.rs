#![allow(clippy::unwrap_used)]

use super::*;
use crate::Account;
use jiff::Timestamp;

const FILE: &str = r#"
time_zone = "Europe/Berlin"
half_life = "6h"
jobs_per_person = 2

[default]
time_limit = "5m"
longest_time_limit = "30m"

[course.ml101]
weight = 2
message = "The lab closes at six"
budget = { gpu_time = "2h", reset = "Mon 04:00" }

[[course.ml101.deadline]]
until = "2026-11-20T23:59"
weight = 3
before = "6h"

[course.thesis]
time_limit = "10h"
paused = "Back on Monday"

[worker.gpu-2]
paused = "The fan is loud"
"#;

fn ms(text: &str) -> i64 {
    text.parse::<Timestamp>().unwrap().as_millisecond()
}

#[test]
fn a_local_time_is_read_in_the_zone_of_this_machine() {
    let time = jiff::civil::date(2026, 11, 25).at(14, 0, 5, 0);
    let zoned = time.to_zoned(TimeZone::system()).unwrap();
    let expected = zoned.timestamp().as_millisecond();
    assert_eq!(local_time("2026-11-25T14:00:05"), Some(expected));
    for unknown in ["", "N/A", "Unknown", "2026-13-01T00:00:00"] {
        assert_eq!(local_time(unknown), None, "{unknown}");
    }
}

#[test]
fn a_course_has_what_the_file_says_and_the_rest_from_the_default() {
    let courses = Courses::parse(FILE).unwrap();
    assert_eq!(courses.half_life_ms, 6 * 3600 * 1000);
    assert_eq!(courses.jobs_per_person, 2);
    let limits = |course| {
        let course = courses.of(course);
        (
            course.time_limit_ms.unwrap() / 60_000,
            course.longest_ms.unwrap() / 60_000,
        )
    };
    assert_eq!(limits("unknown"), (5, 30));
    assert_eq!(limits("ml101"), (5, 30));
    assert_eq!(limits("thesis"), (600, 600));
    assert_eq!(
        courses.of("thesis").paused.as_deref(),
        Some("Back on Monday")
    );
    assert_eq!(courses.of("").paused, None);
    assert_eq!(courses.worker_paused("gpu-2"), Some("The fan is loud"));
    assert_eq!(courses.worker_paused("gpu-1"), None);
}

#[test]
fn the_longest_limit_holds_for_cells_that_ask_for_none() {
    let file = "[default]\ntime_limit = \"10m\"\n[course.short]\nlongest_time_limit = \"2m\"\n\
                [course.long]\ntime_limit = \"1h\"\n";
    let courses = Courses::parse(file).unwrap();
    let limits = |courses: &Courses, course| {
        let course = courses.of(course);
        let minutes = |ms: Option<u64>| ms.map(|ms| ms / 60_000);
        (minutes(course.time_limit_ms), minutes(course.longest_ms))
    };
    assert_eq!(limits(&courses, "other"), (Some(10), Some(10)));
    assert_eq!(limits(&courses, "short"), (Some(2), Some(2)));
    assert_eq!(limits(&courses, "long"), (Some(60), Some(60)));

    let minutes = |minutes: Option<u64>| Some(minutes.map(|minutes| minutes * 60_000));
    let change = |timeout_ms, longest_timeout_ms| api::CourseChange {
        timeout_ms,
        longest_timeout_ms,
        ..api::CourseChange::default()
    };
    let mut stored = api::CourseChange::default();
    for (next, expected) in [
        (change(minutes(Some(2)), None), (Some(2), Some(10))),
        (change(None, minutes(Some(1))), (Some(1), Some(1))),
        (change(minutes(Some(3)), None), (Some(3), Some(3))),
        (change(None, minutes(None)), (Some(3), None)),
        (change(minutes(Some(90)), None), (Some(90), None)),
        (change(None, minutes(Some(60))), (Some(60), Some(60))),
        (change(minutes(None), None), (None, Some(60))),
        (
            change(minutes(Some(1)), minutes(Some(5))),
            (Some(1), Some(5)),
        ),
    ] {
        assert_eq!(check(&next), Ok(()));
        stored = over(stored, next);
        let changes = Changes {
            courses: [("other".to_owned(), stored.clone())].into(),
            ..Changes::default()
        };
        assert_eq!(limits(&courses.with(&changes), "other"), expected);
    }
    let wrong = check(&change(minutes(Some(2)), minutes(Some(1)))).unwrap_err();
    assert_eq!(wrong.field, "timeout_ms");
}

#[test]
fn a_deadline_counts_in_its_last_hours_only() {
    let courses = Courses::parse(FILE).unwrap();
    let boost = |time| courses.of("ml101").boost(ms(time));
    assert_eq!(boost("2026-11-20T16:58:00Z"), 1.0);
    assert_eq!(boost("2026-11-20T16:59:00Z"), 3.0);
    assert_eq!(boost("2026-11-20T22:58:59Z"), 3.0);
    assert_eq!(boost("2026-11-20T22:59:00Z"), 1.0);
    assert_eq!(courses.of("thesis").boost(ms("2026-11-20T20:00:00Z")), 1.0);
}

#[test]
fn what_a_change_adds_is_not_over_yet() {
    let file = "[[course.a.deadline]]\nuntil = \"2020-01-01T00:00\"\nweight = 2\n\
                [[course.a.lesson]]\nwhen = \"2020-01-01 09:00-11:00\"\npeople = 3\n";
    let courses = Courses::parse(file).unwrap();
    let (course, now_ms) = (courses.of("a"), ms("2026-11-20T12:00:00Z"));
    let field = |deadlines: &[i64], lessons: &[&str]| {
        let deadlines = deadlines.iter().map(|until_ms| api::Deadline {
            from_ms: 0,
            until_ms: *until_ms,
            weight: 2.0,
        });
        let lessons = lessons.iter().map(|when| api::Lesson {
            when: (*when).to_owned(),
            people: 4,
        });
        let change = api::CourseChange {
            deadlines: Some(deadlines.collect()),
            timetable: Some(lessons.collect()),
            ..api::CourseChange::default()
        };
        let checked = check_is_coming(course, &change, &courses.zone(), now_ms);
        checked.err().map(|wrong| wrong.field)
    };
    let known_ms = course.deadlines[0].until_ms;
    assert_eq!(field(&[now_ms + 1, known_ms], &[]), None);
    assert_eq!(field(&[now_ms], &[]), Some("deadlines"));
    let known = "2020-01-01 09:00-11:00";
    assert_eq!(
        field(&[], &["Mon 17:00-18:30", known, "2026-12-01 09:00-11:00"]),
        None
    );
    let past = &["2020-12-01 09:00-11:00"];
    assert_eq!(field(&[], past), Some("timetable"));
}

#[test]
fn a_time_may_have_an_offset_or_a_zone_of_its_own() {
    let berlin = TimeZone::get("Europe/Berlin").unwrap();
    let read = |text| moment_ms(text, &berlin).ok();
    for (text, expected) in [
        ("2026-12-20T23:59", "2026-12-20T22:59:00Z"),
        ("2026-12-20 23:59:30", "2026-12-20T22:59:30Z"),
        ("2026-12-20", "2026-12-19T23:00:00Z"),
        ("2026-12-20T23:59+05:00", "2026-12-20T18:59:00Z"),
        ("2026-12-20T23:59Z", "2026-12-20T23:59:00Z"),
        ("2026-12-20T23:59[Asia/Karachi]", "2026-12-20T18:59:00Z"),
        (
            "2026-12-20T23:59+05:00[Asia/Karachi]",
            "2026-12-20T18:59:00Z",
        ),
    ] {
        assert_eq!(read(text), Some(ms(expected)), "{text}");
    }
    for wrong in [
        "tomorrow",
        "23:59",
        "2026-12-20T23:59+99:00",
        "2026-12-20T23:59[Mars/Olympus]",
        "2026-12-20T23:59+05:00[Europe/Berlin]",
    ] {
        assert_eq!(read(wrong), None, "{wrong}");
    }
    let file = |until: &str| {
        let text = format!("[[course.a.deadline]]\nuntil = \"{until}\"\nweight = 2\n");
        Courses::parse(&text).unwrap().of("a").deadlines[0].until_ms
    };
    assert_eq!(file("2026-12-20T23:59+05:00"), ms("2026-12-20T18:59:00Z"));
}

#[test]
fn a_week_begins_on_its_day_by_the_clock_on_the_wall() {
    let courses = Courses::parse(FILE).unwrap();
    let reset = courses.of("ml101").budget.clone().unwrap().reset;
    let check = |now, start| {
        let period = reset.period(ms(now));
        assert_eq!(period.start_ms, ms(start), "{now}");
        assert_eq!(period.end, "Monday 04:00");
        assert!(period.is_week);
    };
    check("2026-11-21T12:00:00Z", "2026-11-16T03:00:00Z");
    check("2026-11-16T03:00:00Z", "2026-11-16T03:00:00Z");
    check("2026-11-16T02:59:59Z", "2026-11-09T03:00:00Z");
    // The week in which the clock is set back is an hour longer.
    check("2026-10-26T02:30:00Z", "2026-10-19T02:00:00Z");
    check("2026-10-26T03:00:00Z", "2026-10-26T03:00:00Z");
}

#[test]
fn a_day_begins_at_its_time() {
    let reset = Reset::parse("04:00", &TimeZone::UTC).unwrap();
    let period = reset.period(ms("2026-11-21T03:00:00Z"));
    assert_eq!(period.start_ms, ms("2026-11-20T04:00:00Z"));
    assert_eq!(period.end, "Saturday 04:00");
    assert!(!period.is_week);
}

#[test]
fn a_lesson_has_the_dates_of_this_week() {
    let zone = TimeZone::get("Europe/Berlin").unwrap();
    let dates = |when: &str, now| {
        let lesson = api::Lesson {
            when: when.to_owned(),
            people: 9,
        };
        let lesson = Lesson::parse(&lesson, &zone).unwrap();
        let spans = lesson.in_week(ms(now));
        spans
            .into_iter()
            .map(|span| span.start_ms)
            .collect::<Vec<_>>()
    };
    let (monday, friday) = (ms("2026-11-23T16:00:00Z"), ms("2026-11-27T16:00:00Z"));
    // Also on its first and its last minute, by the clock on the wall.
    for now in [
        "2026-11-22T23:00:00Z",
        "2026-11-26T12:00:00Z",
        "2026-11-29T22:59:00Z",
    ] {
        assert_eq!(dates("Fri,Mon 17:00-18:30", now), [monday, friday], "{now}");
        assert_eq!(dates("2026-11-27 17:00-18:30", now), [friday], "{now}");
    }
    assert!(dates("2026-11-27 17:00-18:30", "2026-11-29T23:00:00Z").is_empty());
}

#[test]
fn a_course_has_the_environment_of_the_default_or_its_own_or_none() {
    let text = "[default]\nenvironment = \"common\"\n[course.a]\nenvironment = \"a.1\"\n[course.b]\nenvironment = \"\"\n";
    let courses = Courses::parse(text).unwrap();
    for (course, expected) in [("a", Some("a.1")), ("b", None), ("c", Some("common"))] {
        assert_eq!(courses.of(course).environment.as_deref(), expected);
    }
}

#[test]
fn cells_of_a_course_choose_among_its_environments() {
    let text = "[default]\nenvironments = [\"common\"]\n[course.a]\nenvironment = \"a\"\n[course.b]\nenvironments = [\"b\", \"c\"]\nenvironment = \"c\"\n[course.d]\nenvironments = []\n";
    let courses = Courses::parse(text).unwrap();
    for (course, expected) in [
        ("a", &["a", "common"][..]),
        ("b", &["c", "b"]),
        ("d", &[]),
        ("e", &["common"]),
    ] {
        let all: Vec<&str> = courses.of(course).all_environments().collect();
        assert_eq!(all, expected, "{course}");
    }
}

#[test]
fn a_lesson_takes_place_by_the_clock_on_the_wall() {
    let zone = TimeZone::get("Europe/Berlin").unwrap();
    let lesson = |when: &str| {
        let written = api::Lesson {
            when: when.to_owned(),
            people: 350,
        };
        Lesson::parse(&written, &zone).unwrap()
    };
    let span = |span: Option<Span>| span.map(|span| (span.start_ms, span.end_ms));
    let is = |start: &str, end: &str| Some((ms(start), ms(end)));
    let weekly = lesson("Mon,Wed 17:00-18:30");
    // 2026-11-25 is a Wednesday.
    let next = |now: &str| span(weekly.next(ms(now)));
    let wednesday = is("2026-11-25T16:00:00Z", "2026-11-25T17:30:00Z");
    let monday = is("2026-11-30T16:00:00Z", "2026-11-30T17:30:00Z");
    assert_eq!(next("2026-11-25T09:00:00Z"), wednesday);
    assert_eq!(next("2026-11-25T17:29:59Z"), wednesday);
    assert_eq!(next("2026-11-25T17:30:00Z"), monday);
    assert_eq!(span(weekly.last(ms("2026-11-25T17:30:00Z"))), wednesday);
    assert_eq!(
        span(weekly.last(ms("2026-11-25T17:29:59Z"))),
        is("2026-11-23T16:00:00Z", "2026-11-23T17:30:00Z")
    );
    // After the clock is set back, it takes place an hour later in UTC.
    assert_eq!(
        next("2026-10-22T00:00:00Z"),
        is("2026-10-26T16:00:00Z", "2026-10-26T17:30:00Z")
    );
    let night = lesson("Fri 22:00-02:00");
    assert_eq!(
        span(night.next(ms("2026-11-28T00:30:00Z"))),
        is("2026-11-27T21:00:00Z", "2026-11-28T01:00:00Z")
    );
    let once = lesson("2026-12-01 09:00-11:00");
    let exam = is("2026-12-01T08:00:00Z", "2026-12-01T10:00:00Z");
    assert_eq!(span(once.next(ms("2026-11-25T09:00:00Z"))), exam);
    assert_eq!(span(once.next(ms("2026-12-01T10:00:00Z"))), None);
    assert_eq!(span(once.last(ms("2026-12-01T10:00:00Z"))), exam);
    assert_eq!(span(once.last(ms("2026-12-01T09:59:00Z"))), None);
}

#[test]
fn a_course_has_the_lessons_of_the_file_or_those_that_staff_entered() {
    let text = "[[course.a.lesson]]\nwhen = \"Mon 17:00-18:30\"\npeople = 350\n";
    let courses = Courses::parse(text).unwrap();
    let lessons = |courses: &Courses| -> Vec<(String, api::Lesson)> {
        let lessons = courses.lessons();
        lessons
            .map(|(course, _, lesson)| (course.to_owned(), lesson.shown()))
            .collect()
    };
    let entered = |when: &str, people| api::Lesson {
        when: when.to_owned(),
        people,
    };
    assert_eq!(
        lessons(&courses),
        [("a".to_owned(), entered("Mon 17:00-18:30", 350))]
    );
    let changed = |timetable| {
        let change = api::CourseChange {
            timetable: Some(timetable),
            ..api::CourseChange::default()
        };
        assert_eq!(check(&change), Ok(()));
        let changes = Changes {
            courses: [("a".to_owned(), change)].into(),
            ..Changes::default()
        };
        lessons(&courses.with(&changes))
    };
    let exam = entered("2026-12-01 09:00-11:00", 20);
    assert_eq!(changed(vec![exam.clone()]), [("a".to_owned(), exam)]);
    assert_eq!(changed(Vec::new()), []);
    for (when, people) in [
        ("Monday 17:00-18:30", 1),
        ("Mon 17:00", 1),
        ("Mon 17:00-17:00", 1),
        ("Mon 25:00-26:00", 1),
        ("2026-13-01 09:00-11:00", 1),
        ("Mon 17:00-18:30", 0),
    ] {
        let change = api::CourseChange {
            timetable: Some(vec![entered(when, people)]),
            ..api::CourseChange::default()
        };
        assert_eq!(check(&change).unwrap_err().field, "timetable", "{when}");
    }
}

#[test]
fn nonsense_is_refused_with_its_place() {
    for (text, why) in [
        ("[course.a]\nweight = 0", "[course.a]"),
        ("[course.a]\ntime_limit = 5", "invalid type"),
        ("[course.a]\ntime_limit = \"5 apples\"", "time_limit"),
        ("[course.a]\ncolour = 1", "unknown field"),
        (
            "[[course.a.lesson]]\nwhen = \"Mon 17:00\"\npeople = 3",
            "lesson: \"Mon 17:00\" is not a time",
        ),
        (
            "[default]\nbudget = { gpu_time = \"1h\", reset = \"Monday\" }",
            "budget.reset",
        ),
        (
            "[[course.a.deadline]]\nuntil = \"tomorrow\"\nweight = 2",
            "deadline.until",
        ),
        (
            "[default]\ntime_limit = \"2m\"\nlongest_time_limit = \"1m\"",
            "[default]: time_limit is above longest_time_limit",
        ),
        ("time_zone = \"Mars/Olympus\"", "Mars/Olympus"),
        ("half_life = \"0s\"", "half_life"),
        ("jobs_per_person = 0", "jobs_per_person must be above 0"),
        ("[course.a]\nweight = nan", "The weight must be above 0"),
        ("[course.a]\nweight = inf", "The weight must be above 0"),
        ("[course.a]\nmost_weight = -1", "most_weight"),
        (
            "[course.a]\npaused = \"\"",
            "[course.a]: The reason of the pause is missing",
        ),
        (
            "[default]\nmessage = \"one\\ntwo\"",
            "[default]: The message must be one line of text",
        ),
        ("[worker.gpu-2]\npaused = \" \"", "[worker.gpu-2]"),
        (
            "[[course.a.deadline]]\nuntil = \"2030-01-01T00:00\"\nweight = nan",
            "Deadlines must each have a weight from 1 to 1000",
        ),
        ("[course.a]\nenvironment = \"../b\"", "environment"),
        ("[course.a]\nenvironments = [\"\"]", "environments"),
    ] {
        let error = format!("{:#}", Courses::parse(text).unwrap_err());
        assert!(error.contains(why), "{text}: {error}");
    }
}

#[test]
fn staff_grant_as_much_as_the_admin_allows() {
    let text = "[default]\nbudget = { gpu_time = \"2h\", reset = \"04:00\" }\n[course.a]\nmost_allowance = \"5h\"\n[course.b]\nmost_allowance = \"0s\"\n";
    let courses = Courses::parse(text).unwrap();
    let hours = |hours: u64| hours * 3_600_000;
    let account = |owner: &str| Account {
        owner: owner.to_owned(),
        course: "a".to_owned(),
    };
    let allowance = |extra_ms, until_ms| Allowance {
        extra_ms,
        until_ms,
        by: None,
    };
    let mut allowances = Allowances::default();
    let allows = |allowances: &Allowances, course, account: &Account, extra_ms| {
        let course = courses.of(course);
        course
            .allows_extra(allowances, account, extra_ms, 0)
            .is_ok()
    };
    let (ada, all) = (&account("ada"), &everyone("a"));
    for (course, most_ms) in [("a", hours(5)), ("b", 0), ("c", hours(2))] {
        assert!(allows(&allowances, course, ada, most_ms), "{course}");
        assert!(!allows(&allowances, course, ada, most_ms + 1), "{course}");
    }
    // One person's own allowance and that of everyone count together.
    allowances.grant(account("ada"), allowance(hours(3), 10), 0);
    assert!(allows(&allowances, "a", all, hours(2)));
    assert!(!allows(&allowances, "a", all, hours(2) + 1));
    allowances.grant(everyone("a"), allowance(hours(1), 20), 0);
    assert!(allows(&allowances, "a", ada, hours(4)));
    assert!(!allows(&allowances, "a", ada, hours(4) + 1));

    let extra = |allowances: &Allowances, owner, now_ms| {
        let extra = allowances.extra(&account(owner), now_ms);
        (extra.ms, extra.until_ms)
    };
    assert_eq!(extra(&allowances, "ada", 9), (hours(4), Some(10)));
    assert_eq!(extra(&allowances, "ada", 10), (hours(1), Some(20)));
    assert_eq!(extra(&allowances, "bob", 9), (hours(1), Some(20)));
    assert_eq!(extra(&allowances, "bob", 20), (0, None));
    // A later one replaces the earlier one, and those that have ended are forgotten.
    allowances.grant(everyone("a"), allowance(hours(2), 30), 15);
    assert_eq!(extra(&allowances, "ada", 15), (hours(2), Some(30)));
    assert_eq!(allowances.0.len(), 1);
}

#[test]
fn the_audit_log_says_what_a_change_sets() {
    let courses = Courses::parse(FILE).unwrap();
    let sets = |change: &str| summary(&serde_json::from_str(change).unwrap(), &courses);
    let all = r#"{
        "weight": 2.5, "timeout_ms": 600000, "longest_timeout_ms": null, "paused": "Back on Monday", "message": null,
        "deadlines": [{"from_ms": 1763668740000, "until_ms": 1763690340000, "weight": 3}],
        "staff_see_outputs": false, "timetable": [{"when": "Mon 17:00-18:30", "people": 30}]
    }"#;
    assert_eq!(
        sets(all),
        "weight 2.5; time limit 10 min; no longest time limit; paused: Back on Monday; no message; \
         weight times 3 from Thursday 2025-11-20 20:59 until Friday 2025-11-21 02:59; \
         staff do not see outputs; lesson Mon 17:00-18:30 for 30"
    );
    let ends = r#"{"paused": null, "deadlines": [], "timetable": [], "staff_see_outputs": true}"#;
    assert_eq!(
        sets(ends),
        "resumed; no deadlines; staff see outputs; no lessons"
    );
}
