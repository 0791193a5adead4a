//! Workers for lessons: how many slots the people of a course need, and which workers stay for them.

use super::managed_pool::Report;
use crate::timetable;
use baton_broker_queue::pools::ComingLesson;
use baton_broker_store::{Store, StoreError};
use baton_scheduling::pools::{Floor, Lesson, Scaling};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// The behaviour of a course changes slowly, so the result is cached.
const COUNTED_AGAIN_AFTER: Duration = Duration::from_secs(3600);

/// The slots that the people of a course need, as last computed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lessons {
    slots: Arc<Mutex<HashMap<Question, (Instant, u32)>>>,
}

/// The course, the number of people, and the time within which their cells should start.
type Question = (String, u32, u64);

impl Lessons {
    /// How many slots each of the lessons needs. A lesson that no pool can serve needs none of them.
    pub(crate) async fn needed(
        &self,
        store: &Store,
        coming: &[ComingLesson],
        pools: &[Scaling],
        now_ms: i64,
    ) -> Result<Vec<Lesson>, StoreError> {
        let mut lessons = Vec::with_capacity(coming.len());
        for lesson in coming {
            let first = lesson.pools.first().and_then(|first| pools.get(*first));
            lessons.push(Lesson {
                slots: match first {
                    Some(scaling) => {
                        self.slots(store, lesson, scaling.target_wait_ms, now_ms)
                            .await?
                    }
                    None => 0,
                },
                start_ms: lesson.span.start_ms,
                end_ms: lesson.span.end_ms,
                other_slots: lesson.other_slots,
                pools: lesson.pools.clone(),
            });
        }
        Ok(lessons)
    }

    async fn slots(
        &self,
        store: &Store,
        lesson: &ComingLesson,
        within_ms: u64,
        now_ms: i64,
    ) -> Result<u32, StoreError> {
        let question = (lesson.course.clone(), lesson.people, within_ms);
        if let Some(slots) = self.counted(&question) {
            return Ok(slots);
        }
        let rates = timetable::pace(store, &lesson.course, now_ms).await?;
        let within = Duration::from_millis(within_ms).as_secs_f64();
        let slots = timetable::enough_slots(rates, lesson.people, within).await;
        let slots = slots.unwrap_or(lesson.people);
        tracing::info!(
            "The lesson of {} people of {} needs {slots} slots",
            lesson.people,
            lesson.course
        );
        let mut known = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(question, (Instant::now(), slots));
        Ok(slots)
    }

    fn counted(&self, question: &Question) -> Option<u32> {
        let known = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        let (counted, slots) = known.get(question)?;
        (counted.elapsed() < COUNTED_AGAIN_AFTER).then_some(*slots)
    }
}

/// Which workers stay for the lessons: as many as the floor of their pool, in the order of their
/// requests.
pub(super) fn stays(pools: &[Report], floors: &[Floor]) -> HashMap<String, i64> {
    let pools_and_floors = pools.iter().zip(floors);
    let stays = pools_and_floors.flat_map(|(pool, floor)| {
        let staying = pool.staying.iter().take(floor.workers as usize);
        staying.map(|name| (name.clone(), floor.until_ms))
    });
    stays.collect()
}
