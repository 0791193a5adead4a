//! Lessons: how many cells must run at once for them, and how long their people will wait and have waited.
//!
//! In: the timetable of a course, and its cells of the last weeks. The model assumes that everyone
//! stays until the end of the lesson, so the number of people is constant.

use crate::past;
use baton_broker_queue::{
    courses::{Lesson, Span},
    pools::ComingLesson,
};
use baton_broker_store::{DAY_MS, HistoryFilter, Store, StoreError};
use baton_plan::{Effort, Rates, fit, lesson_slots, p99_wait, seconds};
use baton_protocol::api::{
    History, LessonDate, LessonOutlook, LessonWait, PastCell, PastLesson, Pool,
};
use baton_scheduling::pools::{Kind, Scaling};
use std::collections::BTreeSet;
use tokio::task::spawn_blocking;

/// How many past days of cells are used.
pub(crate) const DAYS: u32 = 28;
const MOST_CELLS: u32 = 20_000;
/// With enough machines, no cell should wait longer than this.
const WITHIN_SECONDS: f64 = 60.0;

/// How long people of the course edit, and how long their cells run.
pub(crate) async fn pace(store: &Store, course: &str, now_ms: i64) -> Result<Rates, StoreError> {
    let filter = HistoryFilter {
        courses: Some(vec![course.to_owned()]),
        since_ms: now_ms - i64::from(DAYS) * DAY_MS,
    };
    let cells = past::cells(store.past().jobs(&filter, MOST_CELLS).await?);
    Ok(pace_of(&cells, now_ms))
}

pub(crate) fn pace_of(cells: &[PastCell], now_ms: i64) -> Rates {
    let cells: Vec<_> = cells.iter().map(baton_plan::PastCell::from).collect();
    let of_course = fit(&cells, 1, seconds(now_ms)).map_or(Rates::USUAL, |fit| fit.rates);
    Rates {
        departure: 0.0,
        ..of_course
    }
}

/// How many cells must run at once so that 99 of 100 cells of these people start `within` this many seconds.
pub(crate) async fn enough_slots(rates: Rates, people: u32, within: f64) -> Option<u32> {
    let people = people as usize;
    let enough = spawn_blocking(move || lesson_slots(&rates, people, within));
    enough.await.ok()
}

/// How many cells of a lesson can run at once.
pub(crate) struct Slots {
    pub(crate) now: u32,
    /// When it begins.
    pub(crate) ready: u32,
    /// With pools at their largest size.
    pub(crate) most: u32,
}

/// Returns `None` if the broker is ending.
pub(crate) async fn outlook(
    course: &str,
    lesson: &Lesson,
    span: Span,
    past: &History,
    rates: Rates,
    other_people: u32,
    slots: Slots,
) -> Option<LessonOutlook> {
    let people = lesson.people.saturating_add(other_people);
    let enough = enough_slots(rates, people, WITHIN_SECONDS).await?;
    let counts: BTreeSet<u32> = [slots.now, slots.ready, enough, slots.most]
        .into_iter()
        .filter(|slots| *slots > 0)
        .collect();
    let people = people as usize;
    let wait = move |slots: u32| {
        let seconds = p99_wait(&rates, people, slots as usize, Effort::LIGHT);
        LessonWait {
            slots,
            wait_99_ms: (seconds * 1e3) as u64,
        }
    };
    let waits = spawn_blocking(move || counts.into_iter().map(wait).collect());
    let written = lesson.shown();
    Some(LessonOutlook {
        course: course.to_owned(),
        when: written.when,
        people: written.people,
        other_people,
        starts_ms: span.start_ms,
        ends_ms: span.end_ms,
        slots_now: slots.now,
        ready_slots: slots.ready,
        enough_slots: enough,
        most_slots: slots.most,
        waits: waits.await.ok()?,
        week: week(lesson, past),
        last: lesson
            .last(past.now_ms)
            .and_then(|span| last(&past.cells, span.start_ms, span.end_ms)),
    })
}

/// The people of other lessons at the same time that share workers with this one.
pub(crate) fn other_people(lesson: &ComingLesson, all: &[ComingLesson]) -> u32 {
    let shares = |other: &&ComingLesson| {
        let is_same_time =
            other.span.start_ms < lesson.span.end_ms && lesson.span.start_ms < other.span.end_ms;
        let same_pool = other.pools.iter().any(|pool| lesson.pools.contains(pool));
        let same_worker = lesson.other_slots.min(other.other_slots) > 0;
        *other != lesson && is_same_time && (same_pool || same_worker)
    };
    all.iter()
        .filter(shares)
        .map(|other| other.people)
        .fold(0, u32::saturating_add)
}

/// How many cells of a lesson can run at once on the workers that fit, now and with pools at their
/// maximum size.
pub(crate) fn slots(lesson: &ComingLesson, pools: &[Pool]) -> (u32, u32) {
    let able = lesson.pools.iter().filter_map(|number| pools.get(*number));
    let most = |pool: &Pool| match pool.paused {
        true => pool.up,
        false => pool.max.max(pool.up),
    };
    let now = able.clone().map(|pool| pool.up * pool.slots);
    let later = able.map(|pool| most(pool) * pool.slots);
    let of_others = lesson.other_slots;
    (of_others + now.sum::<u32>(), of_others + later.sum::<u32>())
}

/// How far each pool may scale for lessons, and with which workers. Whether they start in time does not matter here.
pub(crate) fn kinds(pools: &[Pool], scaling: &[Scaling]) -> Vec<(Scaling, Kind)> {
    let kind = |(pool, scaling): (&Pool, &Scaling)| {
        let scaling = match pool.paused {
            true => scaling.while_paused(pool.up),
            false => *scaling,
        };
        let kind = Kind {
            slots: pool.slots,
            start_ms: 0,
        };
        (scaling, kind)
    };
    pools.iter().zip(scaling).map(kind).collect()
}

/// This week's occurrences.
fn week(lesson: &Lesson, past: &History) -> Vec<LessonDate> {
    let spans = lesson.in_week(past.now_ms).into_iter();
    let date = |span: Span| LessonDate {
        starts_ms: span.start_ms,
        ends_ms: span.end_ms,
        was: last(&past.cells, span.start_ms, span.end_ms),
    };
    spans.map(date).collect()
}

/// What happened between these times; `None` if no cell started.
fn last(cells: &[PastCell], from: i64, until: i64) -> Option<PastLesson> {
    let mut people = BTreeSet::new();
    let mut waits = Vec::new();
    for cell in cells {
        if (from..until).contains(&cell.submitted_ms) {
            people.insert(cell.person);
            waits.extend(cell.started_ms.map(|started| started - cell.submitted_ms));
        }
    }
    waits.sort_unstable();
    let longest = waits.get((waits.len() * 99).div_ceil(100).checked_sub(1)?)?;
    Some(PastLesson {
        starts_ms: from,
        people: u32::try_from(people.len()).unwrap_or(u32::MAX),
        cells: u32::try_from(waits.len()).unwrap_or(u32::MAX),
        wait_99_ms: longest.max(&0).unsigned_abs(),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{last, other_people, slots};
    use baton_broker_queue::{courses::Span, pools::ComingLesson};
    use baton_protocol::api::{PastCell, Pool};

    #[test]
    fn a_lesson_has_the_slots_of_its_pools_and_a_paused_pool_starts_no_more() {
        let pool = |up, paused| Pool {
            pool: String::new(),
            min: 0,
            max: 5,
            slots: 2,
            wanted: up,
            up,
            pending: 0,
            leaving: 0,
            failures: 0,
            paused,
            last_failure: None,
            start: None,
            workers: Vec::new(),
        };
        let pools = [pool(1, false), pool(2, true), pool(3, false)];
        let lesson = |pools| ComingLesson {
            course: "ml".to_owned(),
            number: 0,
            people: 9,
            span: Span {
                start_ms: 0,
                end_ms: 1,
            },
            other_slots: 1,
            pools,
        };
        assert_eq!(slots(&lesson(vec![0]), &pools), (3, 11));
        assert_eq!(slots(&lesson(vec![1]), &pools), (5, 5));
        assert_eq!(slots(&lesson(vec![0, 1]), &pools), (7, 15));
        assert_eq!(slots(&lesson(vec![]), &pools), (1, 1));
    }

    #[test]
    fn lessons_at_the_same_time_share_workers() {
        let lesson = |course: &str, number, start_ms, other_slots, pools| ComingLesson {
            course: course.to_owned(),
            number,
            people: 9,
            span: Span {
                start_ms,
                end_ms: start_ms + 10,
            },
            other_slots,
            pools,
        };
        let all = [
            lesson("a", 0, 0, 0, vec![0, 1]),
            lesson("b", 0, 9, 0, vec![1]),
            lesson("c", 0, 10, 0, vec![1]),
            lesson("d", 0, 5, 2, vec![2]),
            // Two rooms.
            lesson("e", 0, 50, 0, vec![2]),
            lesson("e", 1, 50, 0, vec![2]),
        ];
        let others = all.each_ref().map(|lesson| other_people(lesson, &all));
        assert_eq!(others, [9, 18, 9, 0, 9, 9]);
    }

    #[test]
    fn a_lesson_was_what_its_people_did_in_its_time() {
        let cell = |person, submitted_ms, waited: Option<i64>| PastCell {
            person,
            submitted_ms,
            assigned_ms: None,
            started_ms: waited.map(|waited| submitted_ms + waited),
            finished_ms: None,
            ended_itself: true,
        };
        let mut cells: Vec<PastCell> = (0..200)
            .map(|n| cell(n % 7, 1000, Some(n.into())))
            .collect();
        cells.extend([
            cell(50, 999, Some(9_000)),
            cell(51, 2000, Some(9_000)),
            cell(52, 1999, None),
        ]);
        let was = last(&cells, 1000, 2000).unwrap();
        assert_eq!((was.people, was.cells, was.wait_99_ms), (8, 200, 197));
        assert_eq!(last(&cells, 5000, 6000), None);
    }
}
