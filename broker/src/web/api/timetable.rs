//! Lessons: when they take place, and how long people wait then.

use super::{ApiError, Refusal, ask, courses_of, paging, past};
use crate::{
    clock::unix_ms,
    engine::Event,
    timetable::{self, Slots},
    web::{Caller, Shared},
};
use axum::{Extension, Json, extract::State};
use baton_broker_queue::{courses::Lesson, pools::ComingLessons};
use baton_protocol::api::{LessonOutlook, Page};
use baton_scheduling::pools::ready_slots;

/// The next lessons of the courses where the caller is staff, with predicted waits
#[utoipa::path(get, path = "/v1/timetable", operation_id = "timetable",
    responses((status = 200, body = Page<LessonOutlook>, description = "The answer"), Refusal))]
pub(super) async fn list(
    State(shared): State<Shared>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<Page<LessonOutlook>>, ApiError> {
    Ok(Json(paging::whole(outlooks(&shared, &caller).await?)))
}

/// Sorted by start.
pub(crate) async fn outlooks(
    shared: &Shared,
    caller: &Caller,
) -> Result<Vec<LessonOutlook>, ApiError> {
    let zone = shared.courses.borrow().zone();
    let ComingLessons {
        lessons: coming,
        other_slots,
    } = ask(shared, Event::Lessons).await?;
    let (pools, scaling) = (shared.pools.all(), &shared.pools.scaling);
    let known = &shared.pools.lessons;
    let needed = known
        .needed(&shared.store, &coming, scaling, unix_ms())
        .await?;
    let kinds = timetable::kinds(&pools, scaling);
    let mut outlooks = Vec::new();
    for course in courses_of(shared, caller).await? {
        if course.timetable.is_empty() || !caller.identity.may_steer(&course.course) {
            continue;
        }
        let name = Some(course.course.clone());
        let past = past(shared, &caller.identity, name, timetable::DAYS).await?;
        let rates = timetable::pace_of(&past.cells, past.now_ms);
        // They were checked when they were stored.
        let lessons = course.timetable.iter().enumerate();
        let read = |(number, lesson)| Some((number, Lesson::parse(lesson, &zone).ok()?));
        for (number, lesson) in lessons.filter_map(read) {
            if let Some(span) = lesson.next(past.now_ms) {
                let name = &course.course;
                let mut all = coming.iter().zip(&needed);
                let next = all.find(|(next, _)| {
                    next.course == *name && next.number == number && next.span == span
                });
                let Some((next, needs)) = next else {
                    continue;
                };
                let others = timetable::other_people(next, &coming);
                let (now, most) = timetable::slots(next, &pools);
                let slots = Slots {
                    now,
                    ready: ready_slots(needs, &needed, &kinds, other_slots),
                    most,
                };
                let outlook =
                    timetable::outlook(name, &lesson, span, &past, rates, others, slots).await;
                outlooks.push(outlook.ok_or(ApiError::Ending)?);
            }
        }
    }
    outlooks.sort_by_key(|outlook| outlook.starts_ms);
    Ok(outlooks)
}
