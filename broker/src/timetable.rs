//! Lessons: how many cells must run at once for them, and how long their people will wait and have waited.
//!
//! In: the timetable of a course, and its cells of the last weeks. The model assumes that everyone
//! stays until the end of the lesson, so the number of people is constant.

use crate::past;
use baton_broker_queue::courses::{Lesson, Span};
use baton_broker_store::{HistoryFilter, Store, StoreError};
use baton_plan::{Effort, Rates, fewest_gpus, fit, p99_wait, seconds};
use baton_protocol::api::{History, LessonOutlook, LessonWait, PastCell, PastLesson, Pool};
use std::collections::BTreeSet;
use tokio::task::spawn_blocking;

/// How many past days of cells are used.
pub(crate) const DAYS: u32 = 28;
const DAY_MS: i64 = 86_400_000;
const MOST_CELLS: u32 = 20_000;
/// With enough machines, no cell should wait longer than this.
const WITHIN_SECONDS: f64 = 60.0;

/// How long people of the course edit, and how long their cells run.
pub(crate) async fn pace(store: &Store, course: &str, now_ms: i64) -> Result<Rates, StoreError> {
    let filter = HistoryFilter {
        courses: Some(vec![course.to_owned()]),
        since_ms: now_ms - i64::from(DAYS) * DAY_MS,
    };
    let cells = past::cells(store.history(&filter, MOST_CELLS).await?);
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
    let enough = spawn_blocking(move || fewest_gpus(&rates, people, within, Effort::LIGHT));
    u32::try_from(enough.await.ok()?).ok()
}

/// Returns `None` if the broker is ending.
pub(crate) async fn outlook(
    course: &str,
    lesson: &Lesson,
    span: Span,
    past: &History,
    rates: Rates,
    (now, most): (u32, u32),
) -> Option<LessonOutlook> {
    let enough = enough_slots(rates, lesson.people, WITHIN_SECONDS).await?;
    let counts: BTreeSet<u32> = [now, enough, most]
        .into_iter()
        .filter(|slots| *slots > 0)
        .collect();
    let people = lesson.people as usize;
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
        starts_ms: span.start_ms,
        ends_ms: span.end_ms,
        slots_now: now,
        enough_slots: enough,
        most_slots: most,
        waits: waits.await.ok()?,
        last: lesson
            .last(past.now_ms)
            .and_then(|span| last(&past.cells, span.start_ms, span.end_ms)),
    })
}

/// How many cells can run at once, now and with pools at their maximum size.
pub(crate) fn slots(now: u32, pools: &[Pool]) -> (u32, u32) {
    let more = |pool: &Pool| pool.max.saturating_sub(pool.up) * pool.slots;
    (now, now + pools.iter().map(more).sum::<u32>())
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
    use super::last;
    use baton_protocol::api::PastCell;

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
