//! The settings of courses, and the form with which staff change them.

use super::{
    allowances,
    form::{Fields, Refused, complaint, is_wrong, value},
    layout::{Page, form_key},
    time::Zone,
};
use crate::{
    web::{
        ApiError, Caller, Shared,
        api::{allowances_of, courses_of},
    },
    words,
};
use axum::{
    Extension,
    extract::{Query, State},
    response::Response,
};
use baton_broker_queue::{
    NotDone,
    courses::{Wrong, milliseconds},
};
use baton_protocol::api::{Course, CourseChange, Deadline, Lesson};
use maud::{Markup, html};
use std::{collections::BTreeMap, str::FromStr, time::Duration};

/// The hidden field with what the page showed in the other fields when it was loaded.
const SHOWN: &str = "shown";

#[derive(serde::Deserialize)]
pub(super) struct Asked {
    name: String,
}

pub(super) async fn list(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    let courses = courses_of(&shared, &caller).await?;
    let page = Page {
        here: "courses",
        title: "Courses".to_owned(),
        live: None,
        main: html! {
            div.head { h1 { "Courses" } p.quiet { "Limits and current use" } }
            section.card { (table(&courses)) }
        },
    };
    Ok(page.show(&caller))
}

fn table(courses: &[Course]) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label="Courses" { table {
            caption { "Courses" }
            thead { tr {
                th scope="col" { "Course" }
                th scope="col" { "State" }
                th.number scope="col" { "Running" }
                th.number scope="col" { "Waiting" }
                th.number scope="col" { "Weight" }
                th.number scope="col" { "Time limit" }
                th scope="col" { "Message to waiting students" }
            } }
            tbody {
                @for course in courses {
                    tr {
                        th scope="row" { a href={ "course?" (words::query(&[("name", course.course.clone())])) } { (course.course) } }
                        td { (state(course)) }
                        td.number { (course.running) }
                        td.number { (course.waiting) }
                        td.number { (course.weight) @if course.boost > 1.0 { " × " (course.boost) } }
                        td.number { (limit(course.timeout_ms)) }
                        td.words { (course.message.as_deref().unwrap_or("–")) }
                    }
                }
                @if courses.is_empty() { tr { td.empty colspan="7" { "No courses yet. They come from the courses file and from the roles of people." } } }
            }
        } }
    }
}

fn state(course: &Course) -> Markup {
    match &course.paused {
        Some(why) => {
            html! { span."state busy" { span aria-hidden="true" { "◇ " } "paused" } ": " (why) }
        }
        None if course.boost > 1.0 => {
            html! { span."state busy" { span aria-hidden="true" { "▲ " } "deadline" } }
        }
        None => html! { span."state good" { span aria-hidden="true" { "● " } "open" } },
    }
}

fn limit(ms: Option<u64>) -> String {
    ms.map_or_else(|| "none".to_owned(), words::span)
}

pub(super) async fn one(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
    Query(asked): Query<Asked>,
) -> Result<Response, ApiError> {
    let page = page_of(&shared, &caller, &asked.name, None).await?;
    Ok(page.show(&caller))
}

pub(super) async fn page_of(
    shared: &Shared,
    caller: &Caller,
    name: &str,
    refused: Option<&Refused>,
) -> Result<Page, ApiError> {
    let course = find(shared, caller, name).await?;
    let zone = Zone::of(shared);
    let allowances = allowances_of(shared, caller, course.course.clone()).await?;
    let of =
        |actions: &[&str]| refused.filter(|refused| actions.contains(&refused.field("action")));
    Ok(Page {
        here: "courses",
        title: course.course.clone(),
        live: None,
        main: html! {
            div.head { h1 { (course.course) } p.quiet { (state(&course)) } }
            @if caller.identity.may_steer(&course.course) { (form(&course, &zone, caller, of(&["change_course"]))) }
            @else { (facts(&course, &zone)) }
            @if course.budget.is_some() { (allowances::section(&course.course, &allowances, &zone, caller, of(&["grant", "revoke"]))) }
        },
    })
}

async fn find(shared: &Shared, caller: &Caller, name: &str) -> Result<Course, ApiError> {
    let mut courses = courses_of(shared, caller).await?.into_iter();
    let found = courses.find(|course| course.course == name);
    found.ok_or_else(|| NotDone::UnknownCourse(name.to_owned()).into())
}

fn facts(course: &Course, zone: &Zone) -> Markup {
    html! {
        section.card { dl.facts {
            dt { "Weight" } dd { (course.weight) }
            dt { "Time limit" } dd { (limit(course.timeout_ms)) }
            dt { "Longest" } dd { (limit(course.longest_timeout_ms)) }
            @if let Some(budget) = &course.budget { dt { "Your GPU time" } dd { (allowances::left(budget)) } }
            @for deadline in &course.deadlines { dt { "Deadline" } dd { (zone.moment(deadline.until_ms)) ", weight " (deadline.weight) } }
            @for lesson in &course.timetable { dt { "Lesson" } dd { (lesson.when) ", " (baton_humanize::people(lesson.people)) } }
            @if let Some(environment) = &course.environment { dt { "Environment" } dd { (environment) } }
            @if !course.environments.is_empty() { dt { "Cells can choose" } dd { (course.environments.join(", ")) } }
            dt { "Message" } dd { (course.message.as_deref().unwrap_or("–")) }
        } }
    }
}

fn form(course: &Course, zone: &Zone, caller: &Caller, refused: Option<&Refused>) -> Markup {
    let stored = texts(course, zone);
    let shown = |name| value(refused, name, &stored[name]).to_owned();
    let wrong = |name| is_wrong(refused, name);
    let complaint = |name| complaint(refused, name);
    let first_shown = serde_json::json!(stored).to_string();
    html! {
        section.card #settings {
            h2 { "Settings" }
            form.fields method="post" action="act" {
                (form_key(caller))
                input type="hidden" name="course" value=(course.course);
                input type="hidden" name=(SHOWN) value=(value(refused, SHOWN, &first_shown));
                label.wide { "Message to waiting students" small { "One line. They read it in their notebook." } (complaint("message"))
                    input name="message" maxlength="500" value=(shown("message")) autocomplete="off" autofocus[wrong("message")]; }
                label.wide { "Pause, because" small { "Fill this in to pause the course. Its cells do not start, and waiting students read the reason." } (complaint("paused"))
                    input name="paused" maxlength="500" value=(shown("paused")) autocomplete="off" autofocus[wrong("paused")]; }
                label { "Weight" small { "Twice the weight means twice the share." } (complaint("weight"))
                    input name="weight" type="number" min="0.1" max="1000" step="any" required value=(shown("weight")) autofocus[wrong("weight")]; }
                label { "Time limit" small { "For cells without --timeout: 5m, 1h, or empty for none." } (complaint("timeout"))
                    input name="timeout" value=(shown("timeout")) autocomplete="off" autofocus[wrong("timeout")]; }
                label { "Longest time limit" small { "The most that a cell can ask for with --timeout. Empty for no limit." } (complaint("longest"))
                    input name="longest" value=(shown("longest")) autocomplete="off" autofocus[wrong("longest")]; }
                label { "Deadline" small { "In " (zone.name_in_forms()) ". Until then, cells of this course have priority." } (complaint("until"))
                    input name="until" type="datetime-local" value=(shown("until")) autofocus[wrong("until")]; }
                label { "Deadline counts" small { "From this long before the deadline: 30m, 6h." } (complaint("before"))
                    input name="before" value=(shown("before")) autocomplete="off" autofocus[wrong("before")]; }
                label { "Weight of the deadline" small { "The weight is multiplied by this number." } (complaint("boost"))
                    input name="boost" type="number" min="1" max="1000" step="any" value=(shown("boost")) autofocus[wrong("boost")]; }
                label.wide { "Timetable" small { "When the people of this course work together, one time on each line, with their number: Mon 17:00-18:30 350. The capacity page says whether there are enough GPUs." } (complaint("timetable"))
                    textarea name="timetable" rows="3" autofocus[wrong("timetable")] { (shown("timetable")) } }
                label."check wide" { input name="staff_see_outputs" type="checkbox" value="yes" checked[refused.map_or(course.staff_see_outputs, |refused| refused.field("staff_see_outputs") == "yes")]; "Staff can read the output of students' cells" }
                div."buttons wide" { button.first name="action" value="change_course" { "Save" } }
            }
        }
    }
}

/// The text of each field in the form, as a browser sends it back.
fn texts(course: &Course, zone: &Zone) -> BTreeMap<&'static str, String> {
    let setting = |ms| baton_humanize::setting(Duration::from_millis(ms));
    let time = |ms: Option<u64>| ms.map_or_else(String::new, setting);
    let deadline = course.deadlines.first();
    let until = deadline.map_or_else(String::new, |deadline| zone.field(deadline.until_ms));
    let before = deadline.map_or_else(
        || "24h".to_owned(),
        |deadline| setting(deadline.until_ms.abs_diff(deadline.from_ms)),
    );
    let boost = deadline.map_or(3.0, |deadline| deadline.weight);
    let outputs = if course.staff_see_outputs { "yes" } else { "" };
    BTreeMap::from([
        ("message", course.message.clone().unwrap_or_default()),
        ("paused", course.paused.clone().unwrap_or_default()),
        ("weight", course.weight.to_string()),
        ("timeout", time(course.timeout_ms)),
        ("longest", time(course.longest_timeout_ms)),
        ("until", until),
        ("before", before),
        ("boost", boost.to_string()),
        ("timetable", lines_of(&course.timetable)),
        ("staff_see_outputs", outputs.to_owned()),
    ])
}

/// The settings that were changed in a form, and differ from the present ones. The page may be old: the fields that it
/// shows, but that the person left alone, do not undo what others have changed since.
pub(super) async fn change(
    shared: &Shared,
    caller: &Caller,
    name: &str,
    form: &Fields,
) -> Result<CourseChange, ApiError> {
    let course = find(shared, caller, name).await?;
    let given = |field: &str| form.get(field).map(|text| text.trim()).unwrap_or_default();
    let shown = form.get(SHOWN).map(|shown| serde_json::from_str(shown));
    let shown: BTreeMap<String, String> = shown.and_then(Result::ok).unwrap_or_default();
    // Browsers change the ends of lines.
    let touched = |field: &str| {
        let shown = shown.get(field).map(|shown| shown.trim().lines());
        shown.is_none_or(|shown| shown.ne(given(field).lines()))
    };
    let some = |field: &str| Some(given(field).to_owned()).filter(|text| !text.is_empty());
    let limit = |field: &'static str| match given(field) {
        "" => Ok(None),
        text => milliseconds(text)
            .map(Some)
            .map_err(|_| wrong(field, "must be a time such as 90s, 5m or 2h")),
    };
    let weight: f64 = number("weight", given("weight"))?;
    let (timeout, longest) = (limit("timeout")?, limit("longest")?);
    let (paused, message) = (some("paused"), some("message"));
    let zone = Zone::of(shared);
    let deadlines = deadlines(
        &course,
        &zone,
        given("until"),
        given("before"),
        given("boost"),
    )?;
    let touches_deadline = ["until", "before", "boost"].into_iter().any(touched);
    let outputs = given("staff_see_outputs") == "yes";
    let timetable = lessons(given("timetable"))?;
    Ok(CourseChange {
        weight: changed(touched("weight"), weight, &course.weight),
        timeout_ms: changed(touched("timeout"), timeout, &course.timeout_ms),
        longest_timeout_ms: changed(touched("longest"), longest, &course.longest_timeout_ms),
        paused: changed(touched("paused"), paused, &course.paused),
        message: changed(touched("message"), message, &course.message),
        deadlines: changed(touches_deadline, deadlines, &course.deadlines),
        staff_see_outputs: changed(
            touched("staff_see_outputs"),
            outputs,
            &course.staff_see_outputs,
        ),
        timetable: changed(touched("timetable"), timetable, &course.timetable),
    })
}

fn changed<T: PartialEq>(is_touched: bool, value: T, present: &T) -> Option<T> {
    (is_touched && value != *present).then_some(value)
}

fn lines_of(timetable: &[Lesson]) -> String {
    let lines = timetable
        .iter()
        .map(|lesson| format!("{} {}", lesson.when, lesson.people));
    lines.collect::<Vec<_>>().join("\n")
}

fn lessons(text: &str) -> Result<Vec<Lesson>, ApiError> {
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let lessons = lines.map(|line| {
        let (when, people) = line.rsplit_once(' ')?;
        Some(Lesson {
            when: when.trim().to_owned(),
            people: people.parse().ok()?,
        })
    });
    let lessons: Option<Vec<Lesson>> = lessons.collect();
    lessons.ok_or_else(|| {
        wrong(
            "timetable",
            "must be times with a number of people, such as Mon 17:00-18:30 350",
        )
    })
}

/// The form shows only the first deadline. The others are unchanged.
fn deadlines(
    course: &Course,
    zone: &Zone,
    until: &str,
    before: &str,
    boost: &str,
) -> Result<Vec<Deadline>, ApiError> {
    let mut deadlines = course.deadlines.clone();
    let shown = deadlines
        .first()
        .map_or_else(String::new, |first| zone.field(first.until_ms));
    if until.is_empty() {
        if !deadlines.is_empty() {
            deadlines.remove(0);
        }
        return Ok(deadlines);
    }
    let before_ms = milliseconds(before)
        .map_err(|_| wrong("before", "must be a time such as 30m or 6h"))?
        .cast_signed();
    let weight: f64 = number("boost", boost)?;
    if weight < 1.0 {
        return Err(wrong("boost", "must be at least 1"));
    }
    let until_ms = match deadlines.first() {
        // The field of the form has no seconds, so an unchanged time keeps its own.
        Some(first) if shown == until => first.until_ms,
        _ => {
            let until = zone.of_field(until);
            until.map_err(|_| wrong("until", "must be a date and a time"))?
        }
    };
    let deadline = Deadline {
        from_ms: until_ms.saturating_sub(before_ms),
        until_ms,
        weight,
    };
    match deadlines.first_mut() {
        Some(first) => *first = deadline,
        None => deadlines.push(deadline),
    }
    Ok(deadlines)
}

fn number<Number: FromStr>(field: &'static str, text: &str) -> Result<Number, ApiError> {
    text.parse().map_err(|_| wrong(field, "must be a number"))
}

fn wrong(field: &'static str, says: &str) -> ApiError {
    NotDone::from(Wrong::new(field, says)).into()
}
